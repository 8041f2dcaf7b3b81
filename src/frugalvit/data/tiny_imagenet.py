"""Tiny ImageNet (Stanford CS231n): 100,000 + 10,000 pictures of 64 x 64, 200 classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frugalvit.data.files import Files, folders_in, listed, pictures_in, unique_names
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.errors import DataError

LAYOUT = "the folder tiny-imagenet-200 with wnids.txt, words.txt, train/<wnid>/images and val/val_annotations.txt"


@dataclass(frozen=True)
class TinyImageNet:
    """Tiny ImageNet as it is unpacked, its flat validation folder included. "val" and "test" are both the official val.

    Classes are sorted by WordNet id, as readers of class folders sort them, and named by words.txt. A validation folder that a
    script has sorted into val/<wnid> is read as well.
    """

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        root = needs(root, LAYOUT)
        inner = root / "tiny-imagenet-200"
        root = inner if inner.is_dir() else root
        ids = [words[0] for words in lines(root / "wnids.txt")]
        ids.sort()
        names = {words[0]: words[1] for words in lines(root / "words.txt") if len(words) > 1}
        classes = unique_names([names.get(own, own) for own in ids], ids)
        if split == "train":
            return sorted_by_class(root / "train", ids, classes)
        if (root / "val" / "val_annotations.txt").is_file() and not folders_in(root / "val")[1:]:
            return annotated(root / "val", ids, classes)
        return sorted_by_class(root / "val", ids, classes)


def sorted_by_class(folder: Path, ids: list[str], classes: list[str]) -> Files:
    """Pictures in <wnid>/images or <wnid>."""
    names: list[str] = []
    labels: list[int] = []
    empty = []
    for label, own in enumerate(ids):
        inside = f"{own}/images" if (folder / own / "images").is_dir() else own
        found = [f"{inside}/{name}" for name in pictures_in(folder / inside)]
        names += found
        labels += [label] * len(found)
        empty += [] if found else [own]
    if empty:
        raise DataError(f"no pictures for {listed(empty)}. Expected {LAYOUT}.", path=str(folder))
    return Files(folder, names, labels, classes)


def annotated(folder: Path, ids: list[str], classes: list[str]) -> Files:
    """Pictures in one folder, and a file that says what they show."""
    file = folder / "val_annotations.txt"
    labels = {own: label for label, own in enumerate(ids)}
    rows = lines(file)
    for number, words in enumerate(rows, 1):
        if len(words) < 2 or words[1] not in labels:
            raise DataError("not a picture's name and one of the ids in wnids.txt. Unpack it again.", path=f"{file}:{number}")
    rows.sort()
    return Files(folder, [f"images/{words[0]}" for words in rows], [labels[words[1]] for words in rows], classes)


def lines(file: Path) -> list[list[str]]:
    """The lines of a text file, split at tabs."""
    if not file.is_file():
        raise DataError(f"there is no such file. Expected {LAYOUT}.", path=str(file))
    return [line.strip().split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
