"""Whether a folder holds somebody's own pictures, among which nothing may be downloaded."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from frugalvit.data.files import folders_in, is_filled, pictures_in
from frugalvit.data.folder import SPLIT_OF
from frugalvit.data.table import found_columns
from frugalvit.errors import DataError

HOMES = ("flowers-102",)  # folders that public data sets are unpacked to, with pictures in folders inside


@dataclass(frozen=True)
class Own:
    """What reads them, and one of them, below the folder."""

    dataset: str
    example: str


def refuse_own_pictures(root: Path, name: str) -> None:
    """Before `name` is downloaded to a folder."""
    if root.is_file():
        raise DataError(f"a file. Give a folder to download {name} to.", path=str(root))
    found = own_pictures(root)
    if found is not None:
        raise DataError(
            f"holds pictures of your own ({found.example}, ...), and nothing is downloaded among them. "
            f"Read them as {found.dataset}, or give another folder to download {name} to.",
            path=str(root),
        )


def own_pictures(root: Path) -> Own | None:
    """Tables, arrays, class folders with pictures, or splits with pictures however deep."""
    if (root / "train_images.npy").exists():
        return Own("ArrayFolder", "train_images.npy")
    folders = [] if root.name in HOMES else folders_in(root)
    for folder in (name for name in folders if is_filled(root / name)):
        example = next(iter(pictures_in(root / folder)), "") or (
            first_below(root / folder) if folder.lower() in SPLIT_OF else ""
        )
        if example:
            return Own("ImageFolder", f"{folder}/{example}")
    return next((Own("LabelTable", table.name) for table in sorted(root.glob("*.csv")) if is_table(table)), None)


def is_table(file: Path) -> bool:
    """Whether it has the columns of pictures and labels: other files end in .csv too."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            found_columns(next(csv.reader(stream), []), file)
    except (DataError, OSError, UnicodeDecodeError, csv.Error):
        return False
    return True


def first_below(folder: Path, deep: int = 2) -> str:
    """A picture in the folders of a folder, links followed, or nothing."""
    for name in folders_in(folder):
        found = next(iter(pictures_in(folder / name)), "") or (first_below(folder / name, deep - 1) if deep > 1 else "")
        if found:
            return f"{name}/{found}"
    return ""
