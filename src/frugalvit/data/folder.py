"""Pictures in class folders, with or without splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frugalvit.data.files import folders_in, from_class_folders, refuse_other_classes
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.data.split import NoSplit, held_out, refuse_impossible_share
from frugalvit.errors import DataError

SPELLINGS = {"train": ("train",), "val": ("val", "valid", "validation"), "test": ("test",)}
LAYOUT = "a folder with train/<class>/*.jpg (and val/<class>/*.jpg), or with <class>/*.jpg"


@dataclass(frozen=True)
class ImageFolder:
    """root/train/<class>/* and root/{val,valid,validation}/<class>/* and root/test/<class>/*, or root/<class>/*.

    Classes are the folders' names, sorted. Without a val folder, `holdout` of the training pictures, stratified by class, are
    kept for validation; a class with a single picture stays in training.
    """

    holdout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_share(self.holdout, "holdout")

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        root = needs(root, LAYOUT)
        folders = split_folders(root)
        if split == "test" and "test" not in folders:
            raise NoSplit("there is no split 'test'. Add test/<class>/*, or evaluate on val.", path=str(root))
        if split == "train" and "train" not in folders:
            raise NoSplit(f"there is {' and '.join(folders)}, but no train. Add train/<class>/*.", path=str(root))
        folder = folders.get(split, folders.get("train", root))
        classes = folders_in(folder)
        if not classes:
            raise DataError(f"no class folders here. Expected {LAYOUT}.{other_kind(root)}", path=str(folder))
        if "train" in folders and split != "train":
            refuse_other_classes(classes, folders_in(folders["train"]), str(folder), "train")
        source = from_class_folders(folder, classes, classes)
        if split == "test" or "val" in folders:
            return source
        return held_out(source, split, self.holdout, self.seed, "add val/<class>/*")


def split_folders(root: Path) -> dict[str, Path]:
    """The folder of each split that is there. Without any, everything is for training.

    A folder of pictures that is called "train" is a class (beside "car" and "bus"), not a split.
    """
    found = {}
    for split, spellings in SPELLINGS.items():
        there = [root / word for word in spellings if folders_in(root / word)]
        if len(there) > 1:
            names = " and ".join(folder.name for folder in there)
            raise DataError(f"{names} are both here. Keep the one that is to be the validation split.", path=str(root))
        if there:
            found[split] = there[0]
    return found or {"train": root}


def other_kind(root: Path) -> str:
    """What to say where the pictures are there, in another layout."""
    if root.suffix.lower() == ".csv":
        return " This is a table: say data.dataset=LabelTable."
    return " These are arrays: say data.dataset=ArrayFolder." if (root / "train_images.npy").exists() else ""
