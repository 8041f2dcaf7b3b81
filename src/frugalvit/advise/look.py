"""A quick look at a data set: names and labels of all its pictures, the pixels of a few."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
from PIL import Image as Pillow

from frugalvit.advise.facts import Facts
from frugalvit.assign import parse
from frugalvit.data.dataset import Dataset
from frugalvit.data.digits import Digits
from frugalvit.data.recognize import is_wordnet_id, recognized
from frugalvit.data.source import DatasetPart, Source
from frugalvit.data.split import NoSplit, Picked
from frugalvit.errors import DataError, at
from frugalvit.outline import short

LOOKED = 200  # pictures that are decoded, of however many
KNOWN = {
    "Digits": "digits",
    "Cifar10": "cifar10",
    "Cifar100": "cifar100",
    "Svhn": "svhn",
    "TinyImageNet": "tiny_imagenet",
    "Flowers102": "flowers",
    "StanfordCars": "cars",
    "INaturalist(year=2018)": "inat18",
    "INaturalist(year=2019)": "inat19",
    "ImageNet": "imagenet",
}
CIFAR = {10: "cifar10", 100: "cifar100"}


def dataset_at(data: Path | None, name: str) -> DatasetPart:
    """The data set of that name, or the one that lies at `data`."""
    if name:
        with at("--dataset"):
            found: DatasetPart = parse(name, Dataset)
            if isinstance(found, Digits) and data is not None:
                raise DataError("the digits come with the package. Leave --data out.", path="Digits")
            return found
    if data is None:
        raise DataError("which pictures? Say --data PATH, or --dataset Digits for those that come along.", path="--data")
    if data.name.lower() == "digits" and not data.exists():
        raise DataError("there is no such file or folder. The digits that come along: --dataset Digits.", path=str(data))
    return recognized(data)


def look(dataset: DatasetPart, data: Path | None, train: Source) -> Facts:
    """Facts about a data set whose train split is open. However many pictures it holds, at most LOOKED are decoded."""
    where = str(data or type(dataset).__name__)
    if not len(train):
        raise DataError("there are no pictures to train on.", path=where)
    counts = np.bincount(train.labels, minlength=len(train.classes))
    if np.count_nonzero(counts) < 2:
        raise DataError("all pictures are of one class, and there must be two to tell apart. Add another.", path=where)
    spec = short(dataset).removesuffix("()")
    pictures, unreadable = sampled(train)
    if not pictures:
        raise DataError(f"none of {len(unreadable)} pictures can be read, the first being {unreadable[0]}.", path=where)
    shorter = [min(size) for size, _ in pictures]
    sizes = {size for size, _ in pictures}
    gray = sum(one for _, one in pictures)
    return Facts(
        place="" if data is None else str(data),
        dataset=spec,
        known=KNOWN.get(spec, "") or unnamed(spec, data, train, sizes),
        pictures=len(train),
        whole=whole(train),
        held=whole(train) - len(train) or validation(dataset, data),
        classes=len(train.classes),
        least=int(counts[counts > 0].min()),
        most=int(counts.max()),
        side=round(statistics.median(shorter)),
        shortest=min(shorter),
        longest=max(max(size) for size, _ in pictures),
        sizes=len(sizes),
        gray=gray,
        looked=len(pictures) + len(unreadable),
        unreadable=tuple(unreadable),
    )


def spread(source: Source) -> np.ndarray:
    """LOOKED indices, or all, evenly over the source, so that every large class is among them."""
    return np.unique(np.linspace(0, len(source) - 1, min(LOOKED, len(source))).astype(np.int64))


def sampled(source: Source) -> tuple[list[tuple[tuple[int, int], bool]], list[str]]:
    """((width, height), gray) of those that can be read, and the names of the others."""
    found, bad = [], []
    for index in spread(source):
        try:
            picture = source.picture(int(index))
        except DataError:
            bad.append(source.name(int(index)))
        else:
            found.append((picture.size, is_gray(picture)))
    return found, bad


def is_gray(picture: Pillow.Image) -> bool:
    """Whether it has no color: by its mode, or because red, green and blue are alike all over (JPEG rounds by a little)."""
    if picture.mode in ("1", "L", "LA", "La"):
        return True
    small = picture.convert("RGB")
    small.thumbnail((64, 64))
    image_HWC = np.asarray(small, dtype=np.int16)
    return bool(np.ptp(image_HWC, axis=2).max() <= 4)


def validation(dataset: DatasetPart, data: Path | None) -> int:
    try:
        return len(dataset.open("val", data))
    except NoSplit:
        return 0


def unnamed(spec: str, data: Path | None, train: Source, sizes: set[tuple[int, int]]) -> str:
    """CIFAR in arrays and ImageNet in folders, which their files do not name."""
    classes = train.classes
    if spec == "ArrayFolder" and sizes == {(32, 32)} and whole(train) == 50_000:
        return CIFAR.get(len(classes), "")
    if spec == "ImageFolder" and len(classes) == 1000 and all(map(is_wordnet_id, classes)):
        return "imagenet" if data is not None and (data / "train").is_dir() and (data / "val").is_dir() else ""
    return ""


def whole(train: Source) -> int:
    """Its pictures with those that were held out."""
    return len(train.source) if isinstance(train, Picked) else len(train)
