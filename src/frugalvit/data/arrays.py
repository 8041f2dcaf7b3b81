"""Pictures that lie in arrays: in memory, or mapped from .npy files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from frugalvit.data.files import json_in, spread
from frugalvit.data.preprocess import MODES, from_array
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.data.split import NoSplit, held_out, refuse_impossible_share
from frugalvit.errors import DataError
from frugalvit.spec import shown

LAYOUT = "a folder with train_images.npy (uint8), train_labels.npy, test_images.npy and test_labels.npy"
WHOLE = 4_000_000_000  # bytes of a mapped file that are all read for a fingerprint, some seconds
SAMPLED = 256  # pictures of a larger file that are
PIECE = 64 << 20  # bytes hashed at a time


class Arrays:
    """uint8 pictures of one size, N x H x W or N x H x W x 3. A mapped file is pickled as its path."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, classes: Sequence[str], place: str):
        if not isinstance(images, np.ndarray):
            raise DataError(f"{type(images).__name__} in place of pictures. Give a numpy array of uint8 values.", path=place)
        given = np.asarray(labels)
        whole = np.issubdtype(given.dtype, np.number) and np.array_equal(given, given.astype(np.int64))
        if given.ndim != 1 or not whole:
            said = f"labels of shape {given.shape} and type {given.dtype}"
            raise DataError(f"{said}. Give one whole number a picture, the place of its class.", path=place)
        self.images = images
        self.labels = given.astype(np.int64)
        self.classes = tuple(classes)
        self.place = place  # for messages: a file or the data set's name
        if len(self.labels) != len(images):
            raise DataError(f"{len(self.labels)} labels for {len(images)} pictures. Give one a picture.", path=place)
        if images.dtype != np.uint8:
            raise DataError(f"pictures of type {images.dtype}. Give uint8 values, 0 to 255.", path=place)
        if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in MODES):
            first = images.ndim == 4 and images.shape[1] in MODES
            cure = "Channels come last: images.transpose(0, 2, 3, 1)." if first else "Give N x H x W, or N x H x W x channels."
            raise DataError(f"pictures of shape {images.shape}. {cure}", path=place)
        if not all(isinstance(name, str) for name in self.classes) or len(set(self.classes)) < len(self.classes):
            raise DataError(f"classes {shown(classes)}. Give a different name to each, as text.", path=place)

    def __len__(self) -> int:
        return len(self.images)

    def picture(self, index: int) -> Pillow.Image:
        return from_array(np.array(self.images[index]))

    def name(self, index: int) -> str:
        """Padded with zeros, so that names sort as the pictures lie."""
        return f"{self.place}[{index:0{len(str(len(self) - 1))}d}]"

    def fingerprint(self) -> str:
        """Of shape, class names, labels and every pixel, as they are when it is first asked for; it is computed once.

        Of a mapped file larger than `WHOLE` only `SAMPLED` pictures are read, evenly spread; a change between them is missed.
        """
        return self.digest

    @cached_property
    def digest(self) -> str:
        digest = hashlib.blake2b(repr((self.images.shape, self.classes)).encode(), digest_size=8)
        digest.update(self.labels.tobytes())
        if self.file is not None and self.images.nbytes > WHOLE:
            for index in spread(len(self), SAMPLED):
                digest.update(np.ascontiguousarray(self.images[index]).data)
            return digest.hexdigest()
        step = max(1, PIECE * len(self) // max(1, self.images.nbytes))
        for start in range(0, len(self), step):
            digest.update(np.ascontiguousarray(self.images[start : start + step]).data)
        return digest.hexdigest()

    @property
    def file(self) -> Path | None:
        """Where the pictures are mapped from; None for those in memory."""
        name = self.images.filename if isinstance(self.images, np.memmap) else None
        return None if name is None else Path(name)

    def __getstate__(self) -> dict[str, Any]:
        state = {key: value for key, value in self.__dict__.items() if key != "digest"}  # the file may be another by then
        if self.file is not None:
            state["images"] = self.file
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(self.images, Path):
            self.images = np.load(self.images, mmap_mode="r", allow_pickle=False)


@dataclass(frozen=True)
class ArrayFolder:
    """Arrays in a folder: {train,val,test}_{images,labels}.npy and, optionally, classes.json with the names.

    Without val files, `holdout` of the training pictures, stratified by class, are kept for validation.
    """

    holdout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_share(self.holdout, "holdout")

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        root = needs(root, LAYOUT)
        there = [name for name in SPLITS if (root / f"{name}_images.npy").exists()]
        if split == "test" and "test" not in there:
            raise NoSplit("there is no split 'test'. Add test_images.npy and test_labels.npy.", path=str(root))
        own_val = "val" in there
        source = read(root, "train" if split == "val" and not own_val else split)
        if split == "test" or own_val:
            return source
        return held_out(source, split, self.holdout, self.seed, "add val_images.npy and val_labels.npy")


def read(root: Path, split: str) -> Arrays:
    images_path, labels_path = root / f"{split}_images.npy", root / f"{split}_labels.npy"
    images, labels = mapped(images_path), mapped(labels_path)
    colors = images.ndim == 4 and images.shape[3] == 3
    if images.dtype != np.uint8 or not (images.ndim == 3 or colors):
        raise DataError(
            f"shape {images.shape} and type {images.dtype}. Store uint8, pictures x height x width, or x 3 with colors.",
            path=str(images_path),
        )
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise DataError(
            f"shape {labels.shape} and type {labels.dtype}. Store one whole number a picture.", path=str(labels_path)
        )
    if not len(images) or len(images) != len(labels):
        raise DataError(f"{len(labels)} labels for {len(images)} pictures. Store one a picture.", path=str(labels_path))
    classes = class_names(root)
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise DataError(
            f"label {labels[wrong[0]]} at [{wrong[0]}] is out of range. There are {len(classes)} classes, counted from 0.",
            path=str(labels_path),
        )
    return Arrays(images, labels, classes, str(images_path))


def mapped(path: Path) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"there is no such file. Expected {LAYOUT}.", path=str(path))
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"not an array that can be read ({error}). Write it with numpy.save.", path=str(path)) from error


def class_names(root: Path) -> list[str]:
    """Those of classes.json, else as many numbers as the largest training label asks for."""
    path = root / "classes.json"
    if not path.exists():
        labels = mapped(root / "train_labels.npy")
        return [str(label) for label in range(int(labels.max()) + 1 if len(labels) else 0)]
    names = json_in(path, "Store a list of class names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        raise DataError("not a list of different names. Store one string a class, in the order of the labels.", path=str(path))
    return names
