"""What an error says where another data set lies at a path than the one that is to be read."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from frugalvit.data.dataset import ArrayFolder, Cifar10, Cifar100, Dataset, Flowers102, ImageFolder, LabelTable, Svhn
from frugalvit.data.files import folders_in
from frugalvit.data.imagenet import ImageNet, ImageNetReal
from frugalvit.data.recognize import MARKS, is_wordnet_id, recognized
from frugalvit.data.source import DatasetPart
from frugalvit.errors import DataError
from frugalvit.outline import short

OWN = {ArrayFolder: "an ArrayFolder", ImageFolder: "an ImageFolder", LabelTable: "a LabelTable"}
DOWNLOADED = (Cifar10, Cifar100, Svhn, Flowers102)


@contextlib.contextmanager
def naming_what_is_there(dataset: DatasetPart, root: Path | None, flag: str, classes: int | None = None) -> Iterator[None]:
    """Add to a DataError what lies at `root`, and how to say so with a flag ("data.dataset="), to a model of `classes`."""
    try:
        yield
    except DataError as error:
        found = None if root is None else another(dataset, root)
        if root is not None and found is not None:
            name = short(found).removesuffix("()")
            words = shlex.quote(f"{flag}{name}") if flag.endswith("=") else f"{flag} {shlex.quote(name)}"
            others = "" if classes in (None, classes_of(found, root)) else " model.classes=none"
            error.problem += f" This is {OWN.get(type(found), name)}: say {words}{others}."
        raise


def another(dataset: DatasetPart, root: Path) -> DatasetPart | None:
    """The data set at `root`, if it is of another kind; None for parts of one's own, whose folders are not known here."""
    if type(dataset) not in get_args(Dataset) or root.name in MARKS:
        return None
    try:
        found = recognized(root)
    except DataError:
        return None
    if type(found) is type(dataset) or (isinstance(found, DOWNLOADED) and isinstance(dataset, DOWNLOADED)):
        return None  # several are downloaded to one folder
    return None if isinstance(dataset, (ImageNet, ImageNetReal)) and is_imagenet(root) else found


def is_imagenet(root: Path) -> bool:
    """Whether the folders are called like its classes, which makes it an ImageFolder too."""
    return any(is_wordnet_id(name) for split in ("train", "val") for name in folders_in(root / split))


def classes_of(found: DatasetPart, root: Path) -> int | None:
    """How many there are, as far as is known without a download or a second error."""
    if type(found) not in OWN:
        return None
    try:
        return len(found.open("train", root).classes)
    except DataError:
        return None
