"""What is said where a recipe meets another data set than its own."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.data.trees import arrays, class_folders, tiny_imagenet, write

import frugalvit
from frugalvit.beginning import opened
from frugalvit.data.dataset import ArrayFolder, Flowers102, ImageFolder, ImageNet, TinyImageNet
from frugalvit.data.mistaken import another, naming_what_is_there
from frugalvit.data.source import Source
from frugalvit.errors import DataError
from frugalvit.training.recipe import filled

CLASSES = {"ant": 12, "bee": 13, "cat": 14}


def words_said(name: str, root: Path, *assignments: str) -> list[str]:
    """What the error says to say."""
    with pytest.raises(DataError) as caught:
        opened(frugalvit.recipe(name, *assignments), root)
    said = re.search(r" This is (?:an? )?\S+: say (.*)\.$", str(caught.value))
    assert said, caught.value
    return said[1].split()


@pytest.mark.parametrize("layout", ["plain", "splits"])
@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("deit.tiny_cifar10", False),
        ("small.tiny_imagenet", True),
        ("small.svhn", True),
        ("small.cifar100", True),
        ("deit.imagenet", True),
        ("transfer.flowers", True),
        ("transfer.cars", True),
        ("transfer.inat18", True),
    ],
)
def test_a_recipe_for_another_data_set_says_how_to_read_ones_own(tmp_path: Path, name: str, fixed: bool, layout: str) -> None:
    root = tmp_path / "pictures"
    class_folders(root if layout == "plain" else root / "train", CLASSES)
    words = words_said(name, root)
    assert words == ["data.dataset=ImageFolder", *["model.classes=none"] * fixed]
    recipe = frugalvit.recipe(name, *words)
    sources = opened(recipe, root)
    assert filled(recipe, sources["train"]).model.classes == len(sources["train"].classes) == 3


def test_a_class_count_that_fits_is_left(tmp_path: Path) -> None:
    class_folders(tmp_path, dict.fromkeys("abcdefghij", 3))
    assert words_said("small.cifar10", tmp_path) == ["data.dataset=ImageFolder"]


def test_tables_arrays_and_public_sets_are_named_too(tmp_path: Path) -> None:
    write(tmp_path / "1.jpg", 1)
    (tmp_path / "labels.csv").write_text("path,label\n1.jpg,a\n")
    arrays(tmp_path / "arrays", "train", 40, 2)
    tiny_imagenet(tmp_path / "tiny")
    (tmp_path / "moths").mkdir()
    (tmp_path / "moths" / "train2019.json").write_text("{}")
    assert words_said("transfer.folder", tmp_path / "labels.csv") == ["data.dataset=LabelTable"]
    assert words_said("transfer.folder", tmp_path / "arrays") == ["data.dataset=ArrayFolder"]
    assert words_said("transfer.folder", tmp_path / "tiny") == ["data.dataset=TinyImageNet"]
    assert words_said("transfer.folder", tmp_path / "moths") == ["'data.dataset=INaturalist(year=2019)'"]
    assert words_said("small.svhn", tmp_path / "tiny") == ["data.dataset=TinyImageNet", "model.classes=none"]


def test_pictures_with_a_mistake_of_their_own_are_named_all_the_same(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", CLASSES)
    (tmp_path / "train" / "empty").mkdir()
    assert words_said("small.tiny_imagenet", tmp_path) == ["data.dataset=ImageFolder", "model.classes=none"]


def test_the_right_data_set_with_a_mistake_is_not_taken_for_another(tmp_path: Path) -> None:
    class_folders(tmp_path / "mine", CLASSES)
    class_folders(tmp_path / "imagenet" / "train", {"n01440764": 1, "n01443537": 1})
    (tmp_path / "downloads" / "cifar-10-batches-py").mkdir(parents=True)
    (tmp_path / "downloads" / "cifar-10-batches-py" / "test_batch").touch()
    write(tmp_path / "flowers-102" / "jpg" / "1.jpg", 1)
    for dataset, place in (
        (ImageFolder(holdout=0), "mine"),
        (ImageNet(), "imagenet"),
        (Flowers102(), "downloads"),
        (Flowers102(), "flowers-102"),
        (ImageFolder(), "nowhere"),
    ):
        assert another(dataset, tmp_path / place) is None
    assert another(TinyImageNet(), tmp_path / "mine") == ImageFolder()


class Mine:
    """A data set of one's own, which reads class folders in its way."""

    def open(self, split: str, root: Path | None) -> Source:
        raise DataError("no mine.json.", path=str(root))


def test_parts_of_ones_own_know_their_folders_best(tmp_path: Path) -> None:
    class_folders(tmp_path, CLASSES)
    with pytest.raises(DataError, match=r"no mine\.json\.$"), naming_what_is_there(Mine(), tmp_path, "data.dataset="):
        Mine().open("train", tmp_path)


def test_where_a_flag_names_data_sets_the_error_says_that_flag(tmp_path: Path) -> None:
    np.save(tmp_path / "train_images.npy", np.zeros((2, 4, 4), np.uint8))
    for dataset, message in (
        (ImageFolder(), r"Expected a folder with train.* This is an ArrayFolder: say --dataset ArrayFolder\.$"),
        (ArrayFolder(), r"no such file. Expected a folder with [^:]*$"),
    ):
        with pytest.raises(DataError, match=message), naming_what_is_there(dataset, tmp_path, "--dataset"):
            dataset.open("train", tmp_path)
