"""Pictures in class folders, with or without splits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from frugalvit.data.files import folders_in, from_class_folders, is_filled, listed, pictures_in, refuse_other_classes
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.data.split import NoSplit, held_out, refuse_impossible_share
from frugalvit.errors import DataError

SPELLINGS = {  # of the folders, in any case
    "train": ("train", "training"),
    "val": ("val", "valid", "validation", "dev", "eval"),
    "test": ("test", "testing"),
}
SPLIT_OF = {word: split for split, words in SPELLINGS.items() for word in words}
LAYOUT = "a folder with train/<class>/*.jpg (and val/<class>/*.jpg), or with <class>/*.jpg"


@dataclass(frozen=True)
class ImageFolder:
    """root/train/<class>/*, root/val/<class>/* and root/test/<class>/*, or root/<class>/*.

    Other names of the splits, in capitals or not: training; valid, validation, dev, eval; testing. Classes are the folders'
    names, sorted. Without a val folder, `holdout` of the training pictures, stratified by class, are kept for validation; a
    class with a single picture stays in training. Pictures directly in val/ have no labels and are refused; those in test/
    only where the test split is asked for. Where no folder of such a name holds folders, and others lie beside it, it is a
    class: "train", beside "car" and "bus".
    """

    holdout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_share(self.holdout, "holdout")

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        root = needs(root, LAYOUT)
        found = layout(root)
        refuse_unlabeled(found, split)
        if split == "test" and "test" not in found.splits:
            classes = [name for name in found.alike if SPLIT_OF[name.lower()] == "test"]
            read = f", since the folder {classes[0]} is read as a class" if classes else ""
            raise NoSplit(f"there is no split 'test'{read}. Add test/<class>/*, or evaluate on val.", path=str(root))
        if split not in found.splits and "train" not in found.splits:
            raise NoSplit(without_train(found), path=str(root))
        folder = found.splits.get(split) or found.splits["train"]
        classes = folders_in(folder)
        if not classes:
            raise DataError(f"no class folders here. Expected {LAYOUT}.", path=str(folder))
        if "train" in found.splits and split != "train":
            refuse_other_classes(classes, folders_in(found.splits["train"]), str(folder), "train")
        source = from_class_folders(folder, classes, classes)
        if split == "test" or "val" in found.splits:
            return source
        return held_out(source, split, self.holdout, self.seed, "add val/<class>/*")


@dataclass(frozen=True)
class Layout:
    """Which folder below a root is which split."""

    splits: dict[str, Path]  # those that hold class folders; where there are no splits, the root is for training
    unlabeled: dict[str, Path] = field(default_factory=dict)  # those that hold pictures alone
    others: tuple[str, ...] = ()  # folders beside the splits, which are left out
    alike: tuple[str, ...] = ()  # classes that are called like a split


def layout(root: Path) -> Layout:
    """By the names of the folders and what lies in them. Two folders for one split are an error.

    There are splits where a folder of such a name holds folders, or where there are none but such folders.
    """
    names = folders_in(root)
    named = [name for name in names if name.lower() in SPLIT_OF]
    if not named:
        return Layout({"train": root})
    there = [name for name in named if folders_in(root / name) or pictures_in(root / name)]
    others = tuple(name for name in names if name not in named and is_filled(root / name))
    if not there or (others and not any(folders_in(root / name) for name in there)):
        return Layout({"train": root}, alike=tuple(named))
    splits: dict[str, Path] = {}
    unlabeled: dict[str, Path] = {}
    for split in SPELLINGS:
        own = [name for name in there if SPLIT_OF[name.lower()] == split]
        if len(own) > 1:
            raise DataError(
                f"{' and '.join(own)} are both here. Keep the one that is to be the split '{split}'.", path=str(root)
            )
        for name in own:
            (splits if folders_in(root / name) else unlabeled)[split] = root / name
    return Layout(splits, unlabeled, others)


def refuse_unlabeled(found: Layout, split: str) -> None:
    """Whether val is there decides what train is, so that both are refused."""
    for one, folder in found.unlabeled.items():
        if (one == "test") == (split == "test"):
            kind = NoSplit if split == "test" else DataError
            raise kind(f"pictures in one folder have no labels. {labeled_by(folder)}", path=str(folder))


def labeled_by(folder: Path) -> str:
    return f"Put them into {folder.name}/<class>/*, or give a CSV of paths and labels, or move the folder away."


def without_train(found: Layout) -> str:
    names = " and ".join(folder.name for folder in (found.splits | found.unlabeled).values())
    if found.others:
        return f"there is {names} beside {listed(found.others)}, but no train. Put the folders of the classes into train."
    return f"there is {names}, but no train. Add train/<class>/*."
