"""What training and evaluation read: one split of a data set, by index."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from PIL import Image as Pillow

from frugalvit.errors import DataError, suggestion

SPLITS = ("train", "val", "test")


@runtime_checkable
class Source(Protocol):
    """One split of a data set. It can be pickled, so that worker processes can read it."""

    classes: tuple[str, ...]  # names, in the order of the labels
    labels: np.ndarray  # int64, one a picture

    def __len__(self) -> int: ...

    def picture(self, index: int) -> Pillow.Image:
        """The picture, decoded and upright. A DataError with its name where it cannot be read."""
        ...

    def name(self, index: int) -> str:
        """The picture's path, or its place in an array, for messages."""
        ...

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change when the pictures, their names or labels do, as far as is cheap to tell.

        They are the same for a copy elsewhere: by them a run that is resumed knows its data, and a file of a teacher's answers.
        """
        ...


class DatasetPart(Protocol):
    """What may stand in `Data.dataset`."""

    def open(self, split: str, root: Path | None) -> Source:
        """The split ("train", "val" or "test"), below `root` where the data set lies on disk."""
        ...


def refuse_other_splits(split: str, known: tuple[str, ...]) -> None:
    if split not in known:
        raise DataError(f"there is no split '{split}'. {suggestion(split, known)}", path="split")


def needs(root: Path | None, what: str) -> Path:
    """The root, or an error that says what it should hold."""
    if root is None:
        raise DataError(f"where is the data? Say --data PATH: {what}.", path="--data")
    if not root.exists():
        raise DataError(f"there is no such file or folder. Expected {what}.", path=str(root))
    return root
