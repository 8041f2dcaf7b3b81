from __future__ import annotations

import numpy as np
import pytest
from PIL import Image as Pillow

from frugalvit.data.augment import Augment, Resize
from frugalvit.data.batches import EvaluationBatches, TrainingBatches, read
from frugalvit.data.order import Shuffled
from frugalvit.data.preprocess import Preprocess
from frugalvit.errors import DataError

PREPROCESS = Preprocess(4, 6, (0.5,), (0.5,), crop=1.0)


class Spotted:
    """Seven gray pictures, each of its own brightness; the third cannot be read."""

    classes = ("a", "b")
    labels = np.array([0, 1, 0, 1, 0, 1, 1])

    def __len__(self) -> int:
        return 7

    def picture(self, index: int) -> Pillow.Image:
        if index == 2:
            raise DataError("broken", path=self.name(index))
        return Pillow.new("L", (6, 4), 10 * index)

    def name(self, index: int) -> str:
        return f"picture {index}"

    def fingerprint(self) -> str:
        return "0" * 16


def batches(unreadable: str = "replaced") -> TrainingBatches:
    return TrainingBatches(Spotted(), Augment((Resize(),)), Shuffled(), 3, 7, PREPROCESS, unreadable)


def test_an_unreadable_picture_is_replaced_by_the_next_with_its_own_label() -> None:
    batch = batches()[0]
    assert batch.bad == ("picture 2",)
    assert sorted(batch.index_B.tolist()) == [0, 1, 3, 3, 4, 5, 6]
    assert batch.image_BCHW.shape == (7, 1, 4, 6)
    for index, label, image_CHW in zip(batch.index_B.tolist(), batch.label_B.tolist(), batch.image_BCHW, strict=True):
        assert label == Spotted.labels[index]
        assert (image_CHW == 10 * index).all()


def test_an_unreadable_picture_ends_the_training_where_that_is_asked_for() -> None:
    with pytest.raises(DataError, match=r"picture 2: cannot be read, and the recipe refuses such pictures"):
        batches("refused")[0]


def test_a_source_without_any_readable_picture_is_refused() -> None:
    broken = Spotted()
    broken.picture = lambda index: Spotted.picture(broken, 2)  # type: ignore[method-assign]
    with pytest.raises(DataError, match="not one of the 7 pictures can be read"):
        TrainingBatches(broken, Augment((Resize(),)), Shuffled(), 3, 2, PREPROCESS)[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_the_same_whoever_reads_them(workers: int) -> None:
    alone, helped = (list(read(batches(), range(3, 8), count)) for count in (0, workers))
    for one, two in zip(alone, helped, strict=True):
        assert (one.image_BCHW == two.image_BCHW).all()
        assert one.index_B.tolist() == two.index_B.tolist()


def test_evaluation_reads_every_picture_once_and_marks_the_unreadable() -> None:
    reader = EvaluationBatches(Spotted(), 3, PREPROCESS)
    found = list(read(reader, range(len(reader)), 0))
    assert [len(batch.label_B) for batch in found] == [3, 3, 1]
    assert [label for batch in found for label in batch.label_B.tolist()] == [0, 1, -1, 1, 0, 1, 1]
