from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from frugalvit.cli.pictures import same_classes
from frugalvit.data.arrays import Arrays
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.adopt import imagenet_names
from frugalvit.errors import DataError
from frugalvit.training.devices import place_for
from frugalvit.training.evaluate import Framed, calibration_error, measures, per_class, real_accuracy

LOGITS = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0], [0.0, 0.0, 4.0], [9.0, 0.0, 0.0]])
LABELS = torch.tensor([0, 2, 2, -1])  # the last picture could not be read


def test_unreadable_pictures_do_not_count() -> None:
    found = dict(measures(LOGITS, LABELS))
    assert found["pictures"] == 3
    assert found["top1"] == pytest.approx(200 / 3)
    assert found["top5"] == 100
    losses = [
        math.log(sum(math.exp(v) for v in row)) - row[label] for row, label in zip(LOGITS.tolist()[:3], [0, 2, 2], strict=True)
    ]
    assert found["loss"] == pytest.approx(sum(losses) / 3)
    with pytest.raises(DataError, match="no readable picture"):
        dict(measures(LOGITS, torch.full((4,), -1)))


@pytest.mark.parametrize(("pictures", "shapes"), [(8, [8]), (256, [256]), (257, [256, 256]), (0, [])])
def test_batches_have_one_shape_and_are_no_larger_than_the_split(pictures: int, shapes: list[int]) -> None:
    images = np.random.default_rng(0).integers(0, 256, (pictures, 5, 7), dtype=np.uint8)
    source = Arrays(images, np.arange(pictures) % 2, ["a", "b"], "noise")
    framed = Framed(source, Preprocess(5, 7, (0.5,), (0.5,), crop=1.0), place_for("cpu", "fp32"))
    found = list(framed.batches(0))
    assert [len(image_BCHW) for image_BCHW, _ in found] == shapes
    assert [label for _, label_B in found for label in label_B.tolist()] == source.labels.tolist()
    seen = [image_BCHW[: len(label_B), 0].numpy() for image_BCHW, label_B in found]
    np.testing.assert_array_equal(np.concatenate([images[:0], *seen]), images)


def test_calibration_error_is_its_equation() -> None:
    logits = torch.randn(500, 4, generator=torch.Generator().manual_seed(0)) * 2
    labels = torch.randint(4, (500,), generator=torch.Generator().manual_seed(1))
    bins: dict[int, list[tuple[float, float]]] = {}
    for row, label in zip(logits.double(), labels, strict=True):
        confidence, guess = row.softmax(0).max(0)
        place = min(max(math.ceil(confidence.item() * 15), 1), 15)
        bins.setdefault(place, []).append((confidence.item(), float(guess == label)))
    expected = sum(abs(sum(r - c for c, r in pairs)) for pairs in bins.values()) / 500
    assert calibration_error(logits, labels) == pytest.approx(expected)


def test_recall_and_precision_of_each_class() -> None:
    found = per_class(LOGITS, LABELS, ("a", "b", "c"))
    assert found["a"] == {"recall": 100, "precision": 100, "pictures": 1}
    assert found["b"] == {"recall": 0, "precision": 0, "pictures": 0}
    assert found["c"] == {"recall": 50, "precision": 100, "pictures": 2}


def test_a_guess_among_the_reassessed_labels_is_right() -> None:
    assert real_accuracy(LOGITS, LABELS, ((1, 0), (2,), (2,), (0,))) == pytest.approx(200 / 3)


def test_classes_are_the_same_by_name_by_place_or_as_imagenets() -> None:
    assert same_classes(("a", "b"), ("a", "b"))
    assert same_classes(("0", "1"), ("a", "b"))
    assert not same_classes(("b", "a"), ("a", "b"))
    assert not same_classes(("0", "1"), ("1", "0"))
    assert not same_classes(("0", "1", "2"), ("a", "b"))
    wnids = tuple(f"n{number:08d}" for number in range(1000))
    assert same_classes(wnids, imagenet_names())
    assert not same_classes(wnids, tuple(map(str, range(1000))))
