from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.data.trees import arrays, class_folders

from frugalvit.data.arrays import ArrayFolder, Arrays
from frugalvit.data.cifar import Cifar10
from frugalvit.data.dataset import Dataset, opened_splits
from frugalvit.data.digits import Digits
from frugalvit.data.folder import ImageFolder
from frugalvit.data.inaturalist import INaturalist
from frugalvit.data.source import Source
from frugalvit.data.split import Picked, stratified
from frugalvit.data.subset import FirstClasses, FirstFraction, SeededFraction, Subset
from frugalvit.errors import DataError, SpecError
from frugalvit.slots import choices
from frugalvit.spec import decode, encode


def names(source: Source) -> list[str]:
    return [source.name(index) for index in range(len(source))]


def shuffled_arrays(counts: list[int]) -> Arrays:
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    return Arrays(np.zeros((len(labels), 3, 5), np.uint8), labels, [f"class {n}" for n in range(len(counts))], "toy")


def test_the_first_fraction_is_the_first_of_every_class_by_name(tmp_path: Path) -> None:
    class_folders(tmp_path, {"b": 10, "a": 7, "c": 1})
    source = ImageFolder(holdout=0).open("train", tmp_path)
    assert [Path(one).relative_to(tmp_path).as_posix() for one in names(FirstFraction(0.3).pick(source))] == [
        *("a/000.jpg", "a/001.jpg"),
        *("b/000.jpg", "b/001.jpg", "b/002.jpg"),
        "c/000.jpg",
    ]


def test_the_first_fraction_of_arrays_is_the_first_in_them() -> None:
    source = shuffled_arrays([110, 13])
    picked = FirstFraction(0.1).pick(source)
    first = np.sort(np.concatenate([np.flatnonzero(source.labels == 0)[:11], np.flatnonzero(source.labels == 1)[:1]]))
    assert isinstance(picked, Picked)
    np.testing.assert_array_equal(picked.indices, first)


def test_a_seeded_fraction_keeps_the_order_and_a_larger_one_holds_it() -> None:
    source = shuffled_arrays([40, 30, 5, 1])
    small, large = SeededFraction(0.2, seed=3).pick(source), SeededFraction(0.5, seed=3).pick(source)
    assert np.bincount(small.labels).tolist() == [8, 6, 1, 1]
    assert np.bincount(large.labels).tolist() == [20, 15, 2, 1]
    assert set(names(small)) < set(names(large))
    assert names(small) == sorted(names(small))
    assert names(small) == names(SeededFraction(0.2, seed=3).pick(source)) != names(SeededFraction(0.2, seed=4).pick(source))
    assert small.fingerprint() != large.fingerprint()


def test_a_subset_is_drawn_independently_of_the_validation_split() -> None:
    source = shuffled_arrays([400])
    held = set(stratified(source.labels, 200, seed=0).tolist())
    picked = SeededFraction(0.5, seed=0).pick(source)
    assert isinstance(picked, Picked)
    assert 70 < len(held & set(picked.indices.tolist())) < 130


def test_the_whole_is_a_fraction_too() -> None:
    source = shuffled_arrays([3, 5])
    assert names(FirstFraction(1.0).pick(source)) == names(SeededFraction(1.0).pick(source)) == names(source)


def test_the_first_classes_keep_their_names_and_labels() -> None:
    source = shuffled_arrays([3, 5, 4])
    picked = FirstClasses(2).pick(source)
    assert picked.classes == ("class 0", "class 1")
    assert np.bincount(picked.labels).tolist() == [3, 5]
    with pytest.raises(SpecError, match=r"count: 4 classes where there are 3. Keep fewer"):
        FirstClasses(4).pick(source)


def test_impossible_subsets_are_refused() -> None:
    for kind in (FirstFraction, SeededFraction):
        for fraction in (0.0, 1.5):
            with pytest.raises(SpecError, match=rf"fraction: a fraction of {fraction}. Use more than 0, up to 1"):
                kind(fraction)
    with pytest.raises(SpecError, match=r"count: 1 classes. Keep 2 or more"):
        FirstClasses(1)


# ------------------------------------------------------------------------------------------------ opening for training


def test_training_opens_train_and_val() -> None:
    splits = opened_splits(Digits(), None)
    assert {split: len(source) for split, source in splits.items()} == {"train": 1297, "val": 500}


@pytest.mark.parametrize("subset", [FirstFraction(0.1), SeededFraction(0.1)])
def test_a_fraction_leaves_val_whole(subset: Subset) -> None:
    splits = opened_splits(Digits(), None, subset)
    assert 120 < len(splits["train"]) < 130
    assert len(splits["val"]) == 500


def test_the_first_classes_are_taken_of_both() -> None:
    splits = opened_splits(Digits(), None, FirstClasses(3))
    assert splits["train"].classes == splits["val"].classes == ("0", "1", "2")
    assert set(splits["val"].labels.tolist()) == {0, 1, 2}


@dataclass(frozen=True)
class Crooked:
    """A data set of one's own whose validation classes come in another order."""

    def open(self, split: str, root: Path | None) -> Source:
        classes = ("a", "b") if split == "train" else ("b", "a")
        return Arrays(np.zeros((4, 3, 5), np.uint8), np.arange(4) % 2, classes, split)


def test_classes_in_another_order_are_refused() -> None:
    with pytest.raises(DataError, match=r"val: its classes are not those of train \(their order differs\)"):
        opened_splits(Crooked(), None)


def test_a_split_that_becomes_empty_is_refused(tmp_path: Path) -> None:
    arrays(tmp_path, "train", 12, 3)
    arrays(tmp_path, "val", 6, 3)
    np.save(tmp_path / "val_labels.npy", np.full(6, 2))
    with pytest.raises(DataError, match=r"val: no pictures are left in it"):
        opened_splits(ArrayFolder(), tmp_path, FirstClasses(2))


# ------------------------------------------------------------------------------------------------ as specs


@dataclass(frozen=True)
class Holder:
    """Something that names a data set."""

    dataset: Dataset
    subset: Subset | None = None


def test_every_data_set_survives_being_written_and_read() -> None:
    for kind in choices(Dataset).values():
        part = kind(2019) if kind is INaturalist else kind()
        holder = Holder(part, FirstFraction(0.3))
        assert decode(encode(holder), Holder) == holder
    assert decode({"format": 1, "dataset": {"part": "Cifar10", "seed": 4}}, Holder).dataset == Cifar10(seed=4)
