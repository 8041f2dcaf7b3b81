"""Whether a folder holds somebody's own pictures, among which nothing may be downloaded."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from frugalvit.data.files import ENDINGS, folders_in, is_filled, pictures_in
from frugalvit.data.folder import SPLIT_OF
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
    return next((Own("LabelTable", table.name) for table in sorted(root.glob("*.csv"))), None)


def first_below(folder: Path) -> str:
    """A picture somewhere below a folder, or nothing."""
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                return (Path(place) / name).relative_to(folder).as_posix()
    return ""
