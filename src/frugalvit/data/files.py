"""Pictures that lie in files, and folders of them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from frugalvit.data.preprocess import opened
from frugalvit.errors import DataError

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
LISTED = 5  # names in an error message
LOST = "lost+found"  # of a disk, at the top of it; nobody may look into it
SAMPLED = 256  # files whose bytes enter the fingerprint
BEGINNING = 1 << 20  # bytes of each that do


class Files:
    """Pictures in files below one folder, decoded when they are asked for."""

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int] | np.ndarray, classes: Sequence[str]):
        self.root = root
        self.names = tuple(names)  # relative to the root
        self.labels = np.asarray(labels, dtype=np.int64)
        self.classes = tuple(classes)
        assert len(self.names) == len(self.labels)

    def __len__(self) -> int:
        return len(self.names)

    def path(self, index: int) -> Path:
        return Path(self.name(index))

    def picture(self, index: int) -> Pillow.Image:
        return opened(self.path(index))

    def name(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])  # noqa: PTH118 -- a million times, so no Path for each

    def fingerprint(self) -> str:
        """Of class names, labels, the names below the root and the lengths of all files, and the first MiB of some.

        It is of the files as they are when it is first asked for, and computed once: whoever opens them anew sees a change.
        Folders that were moved or copied keep theirs: no times enter. Not noticed is a file that changes and keeps its length,
        unless it is among the `SAMPLED` whose bytes are read; of up to so many files, all are. A missing file has length -1.
        """
        return self.digest

    @cached_property
    def digest(self) -> str:
        digest = hashlib.blake2b(repr(self.classes).encode(), digest_size=8)
        for index, name in enumerate(self.names):
            try:
                size = os.stat(self.name(index)).st_size  # noqa: PTH116
            except OSError:
                size = -1
            digest.update(f"{name}\0{size}\n".encode(errors="surrogateescape"))
        digest.update(self.labels.tobytes())
        for index in spread(len(self), SAMPLED):
            with contextlib.suppress(OSError), self.path(index).open("rb") as file:
                digest.update(file.read(BEGINNING))
        return digest.hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "digest"}  # the files may be others by then


def spread(count: int, most: int) -> list[int]:
    """All indices, or `most` of them evenly spread from the first to the last."""
    return sorted(set(np.linspace(0, count - 1, min(count, most)).astype(int).tolist())) if count else []


def folders_in(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted; hidden ones and a disk's lost+found are left out, links followed."""
    return sorted(entry.name for entry in entries_in(folder) if entry.is_dir())


def pictures_in(folder: Path) -> list[str]:
    """The names of the files in a folder that end like pictures, sorted; hidden ones are left out, links followed."""
    return [name for name in files_in(folder) if name.lower().endswith(ENDINGS)]


def files_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in entries_in(folder) if not entry.is_dir())


def entries_in(folder: Path) -> list[os.DirEntry[str]]:
    if not folder.is_dir():
        return []
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".") and entry.name != LOST]
    except PermissionError as error:
        raise DataError("may not be read. Give yourself the right to, or move it away.", path=str(folder)) from error


def is_filled(folder: Path) -> bool:
    """Whether folders or pictures lie in it."""
    return bool(folders_in(folder) or pictures_in(folder))


def from_class_folders(root: Path, folders: Sequence[str], classes: Sequence[str]) -> Files:
    """The pictures of `root/<folder>/*`, the n-th folder being the n-th class."""
    names: list[str] = []
    labels: list[int] = []
    for label, folder in enumerate(folders):
        found = pictures_in(root / folder)
        if not found:
            deeper = " They must lie directly in it, not in folders inside." if folders_in(root / folder) else ""
            endings = " ".join(ending.lstrip(".") for ending in ENDINGS)
            raise DataError(
                f"no pictures in this class folder ({endings}).{deeper} Add some, or remove the folder.",
                path=str(root / folder),
            )
        names += [f"{folder}/{name}" for name in found]
        labels += [label] * len(found)
    return Files(root, names, labels, classes)


def refuse_other_classes(own: Iterable[str], expected: Iterable[str], path: str, than: str) -> None:
    """Raise unless two splits have the same classes in the same order; else labels would mean different things."""
    own, expected = list(own), list(expected)
    if own == expected:
        return
    missing, extra = [one for one in expected if one not in set(own)], [one for one in own if one not in set(expected)]
    differences = [f"{word}: {listed(names)}" for word, names in (("missing", missing), ("extra", extra)) if names]
    raise DataError(
        f"its classes are not those of {than} ({'; '.join(differences) or 'their order differs'}). "
        "Give every split the same classes, under the same names.",
        path=path,
    )


def json_in(file: Path, cure: str) -> Any:
    if not file.is_file():
        raise DataError(f"there is no such file. {cure}.", path=str(file))
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"not JSON ({error}). {cure}.", path=str(file)) from error


def listed(names: Sequence[object]) -> str:
    """The first few names, and how many more there are."""
    more = f" (+{len(names) - LISTED} more)" if len(names) > LISTED else ""
    return ", ".join(map(str, names[:LISTED])) + more


def unique_names(names: Sequence[str], ids: Sequence[str]) -> list[str]:
    """Names as they are, followed by the id where two are equal."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return [name if counts[name] == 1 else f"{name} ({own})" for name, own in zip(names, ids, strict=True)]
