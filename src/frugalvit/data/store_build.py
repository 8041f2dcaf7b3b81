"""Building a store: every picture decoded once, by several processes, and written in order by this one.

A build that was killed starts anew: what it left is never taken for a store, and the next build removes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from frugalvit.data.arrays import Arrays
from frugalvit.data.backing import afresh, written
from frugalvit.data.batches import as_worker
from frugalvit.data.bounds import require_at_least
from frugalvit.data.files import spread
from frugalvit.data.preprocess import MODES
from frugalvit.data.source import Source
from frugalvit.data.split import Picked
from frugalvit.data.store import Store, as_stored, opened_for
from frugalvit.data.store_files import (
    Header,
    StaleStore,
    alone,
    new_pixels,
    refuse_small_disk,
    write_header,
    writing,
)
from frugalvit.errors import DataError, SpecError, suggestion

SAMPLED = 32  # pictures that tell how large a store will be
CHUNK = 4 << 20  # bytes, about, that a process decodes before it hands them over; two such wait in each
MOST = 1024  # pictures in a chunk
SPARE = 1.02  # an estimate from a sample, and the header

Progress = Callable[[int, int], None]


class Decoder(Protocol):
    """How the pictures of a source are decoded."""

    @property
    def name(self) -> str: ...

    def helpers(self, workers: int) -> int:
        """How many processes to use, where so many are asked for."""
        ...

    def decode(self, source: Source, indices: Sequence[int]) -> Iterator[Pillow.Image | str]:
        """The pictures in order, or what is wrong with them; few at a time, since they have all their pixels still."""
        ...


@dataclass(frozen=True)
class OneByOne:
    """As the source itself decodes, so that a store of unshrunk pictures gives the same batches, bit for bit."""

    name: str = "pillow"

    def helpers(self, workers: int) -> int:
        return workers

    def decode(self, source: Source, indices: Sequence[int]) -> Iterator[Pillow.Image | str]:
        return (one_of(source, index) for index in indices)


def one_of(source: Source, index: int) -> Pillow.Image | str:
    try:
        return source.picture(index)
    except MemoryError:
        raise
    except DataError as error:
        return error.problem
    except Exception as error:  # decoders fail in many ways, and one picture must not end the build
        return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Chunk:
    """Some pictures after one another, as they will lie in the file."""

    pixels: Tensor  # uint8, flat: it travels between processes in shared memory
    sizes: list[tuple[int, int]]  # height, width
    shrunk: int
    unreadable: list[tuple[int, str]]  # index and problem


@dataclass(frozen=True)
class Chunks(Dataset[Chunk]):
    """The pictures of a source as a store holds them, `step` at a time. `blank` is what stands for an unreadable one."""

    source: Source
    mode: str
    limit: int | None
    decoder: Decoder
    step: int = 1
    blank: tuple[int, int] = (0, 0)  # height, width

    def __len__(self) -> int:
        return math.ceil(len(self.source) / self.step)

    def __getitem__(self, number: int) -> Chunk:
        return self.at(range(number * self.step, min((number + 1) * self.step, len(self.source))))

    def at(self, indices: Sequence[int]) -> Chunk:
        ready = self.ready(np.asarray(indices, dtype=np.int64))
        if ready is not None:
            return Chunk(torch.from_numpy(ready.reshape(-1)), [(ready.shape[1], ready.shape[2])] * len(ready), 0, [])
        found: list[np.ndarray] = []
        sizes: list[tuple[int, int]] = []
        unreadable, shrunk = [], 0
        for index, picture in zip(indices, self.decoder.decode(self.source, indices), strict=True):
            small = picture if isinstance(picture, str) else self.as_stored(picture)
            if isinstance(small, str):
                unreadable.append((index, small))
                image = np.zeros((*self.blank, channels_of(self.mode)), dtype=np.uint8)
            else:
                shrunk += not isinstance(picture, str) and small.size != picture.size
                image = np.asarray(small)
            sizes.append((image.shape[0], image.shape[1]))
            found.append(image.reshape(-1))
        pixels = np.concatenate(found) if found else np.zeros(0, dtype=np.uint8)
        return Chunk(torch.from_numpy(pixels), sizes, shrunk, unreadable)

    def ready(self, index_N: np.ndarray) -> np.ndarray | None:
        """Pictures that lie in an array as the store will hold them: image_NHWC, or image_NHW where they are gray."""
        image = stacked(self.source, index_N) if isinstance(self.decoder, OneByOne) else None
        if image is None or image.dtype != np.uint8 or not image.size or image.ndim not in (3, 4):
            return None
        channels = image.shape[3] if image.ndim == 4 else 1
        fits = self.limit is None or min(image.shape[1:3]) <= self.limit
        return image if fits and channels == channels_of(self.mode) else None

    def as_stored(self, picture: Pillow.Image) -> Pillow.Image | str:
        try:
            return as_stored(picture, self.mode, self.limit)
        except DataError as error:
            return error.problem


def stacked(source: Source, index_N: np.ndarray) -> np.ndarray | None:
    """A copy of those pictures where the source is an array, or a part of one."""
    if isinstance(source, Picked):
        return stacked(source.source, source.indices[index_N])
    return np.array(source.images[index_N]) if type(source) is Arrays else None


def channels_of(mode: str) -> int:
    return next(channels for channels, name in MODES.items() if name == mode)


def open_or_build(
    source: Source,
    path: Path,
    *,
    mode: str,
    limit: int | None,
    workers: int,
    progress: Progress,
    decoder: Decoder = OneByOne(),
) -> Store:
    """The store at `path` if it is of this source, mode and limit; else it is built there. Another builder is waited for.

    Pictures whose shorter side exceeds `limit` are shrunk to it; None keeps all pixels. `progress` is told how many are done,
    of how many. Memory stays within a few chunks a process, whatever the size of the data set.
    """
    refuse_impossible(mode, limit, workers)
    fingerprint = source.fingerprint()

    def opened() -> Store:
        return opened_for(source, fingerprint, path, mode=mode, limit=limit, decoder=decoder.name)

    try:
        return opened()
    except StaleStore:
        with alone(path):
            try:
                return opened()
            except StaleStore:
                current = afresh(source)  # which may be what made the store stale
                return built(Chunks(current, mode, limit, decoder), current.fingerprint(), path, workers, progress)


def refuse_impossible(mode: str, limit: int | None, workers: int) -> None:
    if mode not in MODES.values():
        raise SpecError(f"there is no mode '{mode}'. {suggestion(mode, MODES.values())}", path="mode")
    require_at_least(limit, 1, "limit")
    require_at_least(workers, 0, "workers")


def built(chunks: Chunks, fingerprint: str, path: Path, workers: int, progress: Progress) -> Store:
    """The build itself: sizes from a sample, pixels, and last the header."""
    source, total = chunks.source, len(chunks.source)
    before = written(source)  # before the first picture is read, so that no later change can be missed
    progress(0, total)
    sampled = [chunks.at([index]).sizes[0] for index in spread(total, SAMPLED)]
    seen = [size for size in sampled if size != (0, 0)]
    mean = sum(height * width for height, width in seen) * channels_of(chunks.mode) / max(1, len(seen))
    refuse_small_disk(path, int(mean * total * SPARE))
    step = int(min(MOST, max(1, CHUNK // max(1, mean))))
    # One broken picture must not keep a data set of one size from being an array.
    chunks = replace(chunks, step=step, blank=seen[0] if len(set(seen)) == 1 else (0, 0))

    sizes: list[tuple[int, int]] = []
    unreadable: list[tuple[int, str, str]] = []
    shrunk = length = 0
    with writing(path):
        file = new_pixels(path)
    try:
        for chunk in decoded(chunks, workers):
            with writing(path):
                file.write(chunk.pixels.numpy().data)
            sizes += chunk.sizes
            unreadable += [(index, source.name(index), problem) for index, problem in chunk.unreadable]
            shrunk += chunk.shrunk
            length += len(chunk.pixels)
            progress(len(sizes), total)
        refuse_useless(unreadable, total)
        if written(source) != before or afresh(source).fingerprint() != fingerprint:
            raise DataError("the pictures changed while they were being stored. Start again.", path=str(path))
        with writing(path):
            file.keep()
    finally:
        file.drop()
    header = Header(
        pixels=file.path.name,
        bytes=length,
        fingerprint=fingerprint,
        written=before,
        mode=chunks.mode,
        limit=chunks.limit,
        decoder=chunks.decoder.name,
        shrunk=shrunk,
        classes=list(source.classes),
        names=[source.name(index) for index in range(total)],
        labels=np.asarray(source.labels, dtype=np.int64),
        heights=np.array([height for height, _ in sizes], dtype=np.int64),
        widths=np.array([width for _, width in sizes], dtype=np.int64),
        unreadable=unreadable,
    )
    with writing(path):
        write_header(path, header)
    return Store(path, header)


def decoded(chunks: Chunks, workers: int) -> Iterator[Chunk]:
    """The chunks in order, decoded by that many processes."""
    workers = min(chunks.decoder.helpers(workers), len(chunks))
    loader = DataLoader(
        chunks,
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        generator=torch.Generator(),  # else it draws a seed for its workers from the global one
        worker_init_fn=as_worker if workers else None,
        prefetch_factor=2 if workers else None,
    )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        problem = f"a process that decodes pictures was ended ({str(error).splitlines()[0]})"
        raise DataError(f"{problem}. If memory is short, use fewer --workers.") from error


def refuse_useless(unreadable: list[tuple[int, str, str]], total: int) -> None:
    if total and len(unreadable) == total:
        _, name, problem = unreadable[0]
        raise DataError(f"not one of the {total} pictures can be read, the first because: {problem}", path=name)
