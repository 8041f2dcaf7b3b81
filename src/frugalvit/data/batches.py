"""Batch i is a function of (seed, i), whatever the number of worker processes that read ahead."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from PIL import Image as Pillow
from torch.utils.data import DataLoader, Dataset

from frugalvit.data.augment import Augment
from frugalvit.data.batch import Batch
from frugalvit.data.order import LastEpoch, Order, epoch_batches, steps_per_epoch
from frugalvit.data.preprocess import Preprocess, in_mode
from frugalvit.data.randomness import Stream, numpy_generator
from frugalvit.data.source import Source
from frugalvit.data.split import Picked
from frugalvit.errors import DataError, FrugalError
from frugalvit.stopping import HANGUP

Read = TypeVar("Read")


@dataclass(frozen=True)
class TrainingBatches(Dataset[Batch]):
    """Batch `step` of a training: which pictures, and each one augmented by draws of its own."""

    source: Source
    augment: Augment
    order: Order
    seed: int
    batch: int
    preprocess: Preprocess
    unreadable: Literal["replaced", "refused"] = "replaced"
    last: LastEpoch[np.ndarray] = field(default_factory=LastEpoch, init=False, repr=False, compare=False)

    def __getitem__(self, step: int) -> Batch:
        pictures, bad, used = [], [], []
        for position, index in enumerate(self.wanted(step)):
            picture, place, missed = self.augmented(int(index), step, position)
            bad += missed
            used.append(place)
            pictures.append(picture)
        indices = np.array(used)
        return stacked(pictures, self.source.labels[indices], indices, tuple(bad))

    def augmented(self, index: int, step: int, position: int) -> tuple[Pillow.Image, int, list[str]]:
        """The picture, or the next one that can be read and is not too thin to be resized; as `read` has it."""
        size, bad = (self.preprocess.height, self.preprocess.width), []
        for _ in range(len(self.source)):
            picture, place, missed = self.read(index)
            bad += missed
            draw = numpy_generator(self.seed, step, Stream.AUGMENT, position)
            try:
                return self.augment.apply(picture, *size, draw), place, bad
            except DataError as error:
                if self.unreadable == "refused":
                    error.path = self.source.name(place)
                    raise
                bad.append(self.source.name(place))
                index = (place + 1) % len(self.source)
        raise DataError(f"not one of the {len(self.source)} pictures can be augmented, the first being {bad[0]}.")

    def wanted(self, step: int) -> np.ndarray:
        """The places of the batch's pictures in the source."""
        number, row = divmod(step, steps_per_epoch(self.order, self.source.labels, self.batch))
        return self.last.rows(number, self.epoch)[row]

    def read(self, index: int) -> tuple[Pillow.Image, int, list[str]]:
        """The picture, or the next one that can be read, unless the recipe refuses that; as `readable` has it."""
        tries = 1 if self.unreadable == "refused" else len(self.source)
        return readable(self.source, index, tries, self.preprocess.mode)

    def epoch(self, number: int) -> np.ndarray:
        """indices_SB, a row a batch."""
        return epoch_batches(self.order, self.source.labels, self.seed, number, self.batch)


@dataclass(frozen=True)
class EvaluationBatches(Dataset[Batch]):
    """The pictures of a split in order, framed as at prediction; an unreadable one has the label −1."""

    source: Source
    batch: int
    preprocess: Preprocess

    def __len__(self) -> int:
        return math.ceil(len(self.source) / self.batch)

    def __getitem__(self, number: int) -> Batch:
        indices = np.arange(number * self.batch, min((number + 1) * self.batch, len(self.source)))
        pictures, labels, bad = [], [], []
        for index in indices:
            label = int(self.source.labels[index])
            try:
                picture = self.preprocess.framed(self.source.picture(int(index)))
            except DataError:
                picture, label = Pillow.new(self.preprocess.mode, (self.preprocess.width, self.preprocess.height)), -1
                bad.append(self.source.name(int(index)))
            pictures.append(picture)
            labels.append(label)
        return stacked(pictures, np.array(labels), indices, tuple(bad))


def evenly(source: Source, preprocess: Preprocess, most: int) -> tuple[np.ndarray, np.ndarray]:
    """image_BHWC and label_B of so many pictures at most, spread evenly over the source, without those that cannot be read."""
    places = np.unique(np.linspace(0, len(source) - 1, min(most, len(source))).round().astype(int))
    batch = EvaluationBatches(Picked(source, places), len(places), preprocess)[0]
    readable_B = batch.label_B >= 0
    return batch.image_BCHW[readable_B].permute(0, 2, 3, 1).contiguous().numpy(), batch.label_B[readable_B].numpy()


def readable(source: Source, index: int, tries: int, mode: str | None = None) -> tuple[Pillow.Image, int, list[str]]:
    """The picture, or the next one of the source that can be read; its place; and the names of those that cannot.

    It is converted to `mode`, and what cannot be converted cannot be read. None leaves it in its own.
    """
    bad: list[str] = []
    for offset in range(tries):
        place = (index + offset) % len(source)
        try:
            picture = source.picture(place)
            return picture if mode is None else in_mode(picture, mode), place, bad
        except DataError:
            bad.append(source.name(place))
    if tries == 1:
        raise DataError("cannot be read, and the recipe refuses such pictures (data.unreadable).", path=source.name(index))
    raise DataError(f"not one of the {len(source)} pictures can be read, the first being {source.name(index)}.")


def stacked(pictures: list[Pillow.Image], labels: np.ndarray, indices: np.ndarray, bad: tuple[str, ...]) -> Batch:
    image_BHWC = np.stack([np.atleast_3d(np.asarray(picture)) for picture in pictures])
    return Batch(
        torch.from_numpy(np.ascontiguousarray(image_BHWC.transpose(0, 3, 1, 2))),
        torch.from_numpy(labels.astype(np.int64)),
        torch.from_numpy(indices.astype(np.int64)),
        bad=bad,
    )


def read(batches: Dataset[Read], numbers: range, workers: int) -> Iterator[Read]:
    """Those batches in order, read ahead by `workers` processes; 0 reads in this one."""
    loader = DataLoader(
        Telling(batches) if workers else batches,
        batch_size=None,
        sampler=numbers,
        num_workers=workers,
        generator=torch.Generator(),  # a loader draws a seed for its workers, which use none: not from the global one
        worker_init_fn=as_worker if workers else None,
        prefetch_factor=4 if workers else None,
    )
    return raising(iter(loader))


@dataclass(frozen=True)
class Told:
    """An error of ours on its way out of a process, where torch would wrap it into a traceback."""

    kind: type[FrugalError]
    problem: str
    path: str


@dataclass(frozen=True)
class Telling(Dataset[Any]):
    """Batches that are read in a process of its own."""

    batches: Dataset[Any]

    def __getitem__(self, number: int) -> Any:
        try:
            return self.batches[number]
        except FrugalError as error:
            return Told(type(error), error.problem, error.path)


def raising(batches: Iterator[Any]) -> Iterator[Any]:
    for one in batches:
        if isinstance(one, Told):
            raise one.kind(one.problem, path=one.path)
        yield one


@contextmanager
def telling_lost_workers() -> Iterator[None]:
    """Inside, the end of a process that reads pictures, which torch may notice at any place, is an error with a cure."""
    try:
        yield
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        reason = str(error).splitlines()[0].rstrip(".")
        cure = "Where memory ran out, use fewer --workers or a smaller batch; the same command with --resume goes on."
        raise DataError(f"a process that reads pictures has ended ({reason}). {cure}", path="--workers") from error


def as_worker(worker: int) -> None:
    """Workers share the cores, so that none may take all of them. Ctrl-C and a closed terminal are for whom they work for.

    One whose parent was killed while it started ends here: torch would take whoever adopted it for its parent, and wait.
    """
    torch.set_num_threads(1)
    for number in (signal.SIGINT, *([] if HANGUP is None else [HANGUP])):
        signal.signal(number, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None and not (parent.is_alive() and started_by(parent.pid)):
        os._exit(1)


def started_by(pid: int | None) -> bool:
    """Whether that process is the parent still. `is_alive` looks at a pipe that workers started later hold open as well."""
    return os.getppid() == pid or multiprocessing.get_start_method() == "forkserver"  # whose workers are the server's children
