"""A data set decoded once into one file of uint8 pixels, which is mapped into memory and read as a source."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image as Pillow

from frugalvit.data.backing import written
from frugalvit.data.files import spread
from frugalvit.data.preprocess import from_array, in_mode
from frugalvit.data.source import Source
from frugalvit.data.store_files import Header, StaleStore, map_pixels, read_header
from frugalvit.errors import DataError

SPOTS = 8  # pictures that are decoded again before a store is trusted


class Store:
    """A source whose pictures are decoded already. It is pickled without its pixels, which the other process maps."""

    def __init__(self, path: Path, header: Header):
        self.path = path  # of the header
        self.mode, self.limit, self.decoder = header.mode, header.limit, header.decoder
        self.shrunk = header.shrunk  # pictures that lost pixels to the limit
        self.origin, self.written = header.fingerprint, header.written  # of the source that was stored
        self.classes = tuple(header.classes)
        self.names = tuple(header.names)
        self.labels = header.labels
        self.heights, self.widths = header.heights, header.widths
        self.unreadable = {index: problem for index, _, problem in header.unreadable}
        self.channels = len(Pillow.new(header.mode, (1, 1)).getbands())
        self.offsets = np.concatenate([[0], np.cumsum(self.heights * self.widths * self.channels)])
        self.file = path.with_name(Path(header.pixels).name)
        if not len(self.names) == len(self.labels) == len(self.heights) == len(self.widths) or self.bytes != header.bytes:
            raise StaleStore("its tables do not fit each other. Build it again.", path=str(path))
        self.pixels = map_pixels(self.file, self.bytes)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def bytes(self) -> int:
        return int(self.offsets[-1])

    def picture(self, index: int) -> Pillow.Image:
        if index in self.unreadable:
            raise DataError(f"could not be read when it was stored ({self.unreadable[index]}).", path=self.name(index))
        return from_array(np.array(self.image_HWC(index)))

    def image_HWC(self, index: int) -> np.ndarray:
        """The mapped pixels of a picture, not copied."""
        shape = int(self.heights[index]), int(self.widths[index]), self.channels
        return self.pixels[self.offsets[index] : self.offsets[index + 1]].reshape(shape)

    def name(self, index: int) -> str:
        return self.names[index]

    def fingerprint(self) -> str:
        """That of the source, where the pixels are those of the source. With others, training on them is another training."""
        if not self.shrunk and self.decoder == "pillow":
            return self.origin
        text = f"{self.origin} {self.limit if self.shrunk else None} {self.decoder}"
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def same_size(self) -> tuple[int, int] | None:
        """Height and width, if all pictures have the same."""
        if not len(self) or (self.heights != self.heights[0]).any() or (self.widths != self.widths[0]).any():
            return None
        return int(self.heights[0]), int(self.widths[0])

    def array(self) -> np.ndarray:
        """All pictures as one mapped image_NHWC. Those that could not be read (`unreadable`) are black."""
        size = self.same_size()
        if size is None:
            raise DataError("its pictures have several sizes, so they are no array. Read them one by one.", path=str(self.path))
        return self.pixels.reshape(len(self), *size, self.channels)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "pixels"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.pixels = map_pixels(self.file, self.bytes)


def open_store(path: Path) -> Store:
    """The store at `path`, whatever it holds. A StaleStore where it is missing or damaged."""
    try:
        return Store(path, read_header(path))
    except StaleStore:
        return Store(path, read_header(path))  # it may have been replaced between its header and its pixels


def opened_for(source: Source, fingerprint: str, path: Path, *, mode: str, limit: int | None, decoder: str = "pillow") -> Store:
    """The store at `path` if it holds these pictures in this mode and size. Else a StaleStore with the reason.

    A store is a cache, so it is one of files that were not written since, by their lengths and times: a fingerprint can miss a
    change. For what these miss (another version of a decoder, a source that tells no files), some pictures are compared too,
    and unreadable ones are tried again.
    """
    store = open_store(path)
    wanted = {"mode": mode, "limit": limit, "decoder": decoder}
    if store.origin != fingerprint:
        problem = f"is of another data set, or of one that has changed since (fingerprint {store.origin}, now {fingerprint})"
        raise StaleStore(f"{problem}. Build it again.", path=str(path))
    for key, value in wanted.items():
        if getattr(store, key) != value:
            raise StaleStore(f"has {key} {getattr(store, key)}, not {value}. Build it again.", path=str(path))
    if store.written != written(source):
        raise StaleStore("is of files that have been written since. Build it again.", path=str(path))
    if len(store) and store.name(0) != source.name(0):  # the data set was moved
        store.names = tuple(source.name(index) for index in range(len(source)))
    if decoder == "pillow":
        for index in sorted({*spots(len(store)), *list(store.unreadable)[:SPOTS]}):
            refuse_other_pixels(store, source, index)
    return store


def spots(count: int) -> list[int]:
    """The pictures that are compared."""
    return spread(count, SPOTS)


def refuse_other_pixels(store: Store, source: Source, index: int) -> None:
    try:
        picture: Pillow.Image | None = as_stored(source.picture(index), store.mode, store.limit)
    except Exception:  # decoders fail in many ways, and all that matters is whether it is as when it was stored
        picture = None
    old = None if index in store.unreadable else store.image_HWC(index)
    new = None if picture is None else np.atleast_3d(np.asarray(picture))
    if (old is None) != (new is None) or (old is not None and new is not None and not np.array_equal(old, new)):
        problem = f"holds another picture than {source.name(index)} is now. Build it again."
        raise StaleStore(problem, path=str(store.path))


def as_stored(picture: Pillow.Image, mode: str, limit: int | None) -> Pillow.Image:
    """In the store's mode, and shrunk (bicubic, antialiased) so that the shorter side has at most `limit` pixels."""
    picture = in_mode(picture, mode)
    shorter = min(picture.size)
    if limit is None or shorter <= limit:
        return picture
    width, height = (max(limit, round(side * limit / shorter)) for side in picture.size)
    return picture.resize((width, height), Pillow.Resampling.BICUBIC)


def cache() -> Path:
    """Where stores live: FRUGALVIT_CACHE, else frugalvit in XDG_CACHE_HOME, else in ~/.cache."""
    own = os.environ.get("FRUGALVIT_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "frugalvit"  # XDG: relative paths count as unset


def default_place(fingerprint: str, mode: str, limit: int | None, decoder: str = "pillow") -> Path:
    """The header of the store of a source, in the cache and never beside the user's pictures."""
    ending = "" if decoder == "pillow" else f"-{decoder}"
    return cache() / "stores" / f"{fingerprint}-{mode}-{'full' if limit is None else limit}{ending}.json"
