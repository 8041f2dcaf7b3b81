"""The data sets, and how training opens them."""

from __future__ import annotations

import contextlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from frugalvit.data.arrays import ArrayFolder
from frugalvit.data.cars import StanfordCars
from frugalvit.data.cifar import Cifar10, Cifar100
from frugalvit.data.digits import Digits
from frugalvit.data.files import refuse_other_classes
from frugalvit.data.flowers import Flowers102
from frugalvit.data.folder import ImageFolder
from frugalvit.data.imagenet import ImageNet, ImageNetReal, ImageNetV2
from frugalvit.data.inaturalist import INaturalist
from frugalvit.data.source import DatasetPart, Source
from frugalvit.data.split import NoSplit
from frugalvit.data.subset import FirstClasses, Subset
from frugalvit.data.svhn import Svhn
from frugalvit.data.table import LabelTable
from frugalvit.data.tiny_imagenet import TinyImageNet
from frugalvit.errors import DataError

Dataset = (  # what may stand in `Data.dataset`; adding here is the whole registration
    Digits  # scikit-learn's 1,797 digits, 8 x 8; needs no files
    | ArrayFolder  # your own arrays: train_images.npy, train_labels.npy, ...
    | ImageFolder  # your own pictures in class folders, with or without splits
    | LabelTable  # your own pictures, listed in a CSV file
    | Cifar10  # 10 classes, 32 x 32; downloaded
    | Cifar100  # 100 classes, 32 x 32; downloaded
    | Svhn  # house numbers, 32 x 32; downloaded
    | Flowers102  # 102 flowers; downloaded
    | StanfordCars  # 196 models of cars; from disk
    | INaturalist  # 2018: 8,142 species, 2019: 1,010; from disk
    | TinyImageNet  # 200 classes, 64 x 64; from disk
    | ImageNet  # 1,000 classes; from disk
    | ImageNetV2  # new test pictures for ImageNet's classes; from disk
    | ImageNetReal  # new labels for ImageNet's validation pictures; from disk
    | DatasetPart  # one of your own
)

SIDES: dict[type, int] = {Digits: 8, Cifar10: 32, Cifar100: 32, Svhn: 32, TinyImageNet: 64}  # of pictures that are all alike


def opened_splits(dataset: DatasetPart, root: Path | None, subset: Subset | None = None) -> dict[str, Source]:
    """The splits that training reads, "train" and "val" where there is one. A fraction is taken of train only."""
    splits = {"train": dataset.open("train", root)}
    with contextlib.suppress(NoSplit):  # holdout=0: all pictures are trained on, and only the test split is left to measure
        splits["val"] = dataset.open("val", root)
        refuse_other_classes(splits["val"].classes, splits["train"].classes, "val", "train")
    for split, source in splits.items():
        if subset is not None and (split == "train" or isinstance(subset, FirstClasses)):
            splits[split] = subset.pick(source)
        if not len(splits[split]):
            raise DataError("no pictures are left in it. Keep more classes, or check the data.", path=split)
    return splits


def whole(dataset: DatasetPart, root: Path | None) -> Source:
    """All pictures of a data set without splits of its own, those held out of training included."""
    undivided: Any = dataset
    if "holdout" in {field.name for field in fields(undivided)}:
        undivided = replace(undivided, holdout=0.0)
    for split in ("val", "test"):
        with contextlib.suppress(NoSplit):
            undivided.open(split, root)
            raise DataError(
                f"there is a {split} split. All pictures are measured where there is none; name one.", path="--split all"
            )
    return undivided.open("train", root)
