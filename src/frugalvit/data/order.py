"""Which pictures a batch holds: a function of (seed, step), so that resuming needs no state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from frugalvit.data.bounds import require_at_least
from frugalvit.data.randomness import Stream, numpy_generator
from frugalvit.errors import DataError

Rows = TypeVar("Rows")

ROUND = 256  # DeiT rounds an epoch down to a multiple of it


@dataclass(frozen=True)
class Shuffled:
    """Every picture once an epoch, in an order of its own."""

    def length(self, pictures: int) -> int:
        return pictures

    def epoch_indices(self, labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        return numpy_generator(seed, epoch, Stream.ORDER).permutation(len(labels))


@dataclass(frozen=True)
class Repeated:
    """Repeated augmentation (Hoffer et al. 2020) as in DeiT's code: a permutation, each picture `times` in a row.

    An epoch keeps the first n // 256 * 256 places, so it sees about n / times different pictures. In one process the copies
    stand in one batch; DeiT's several processes deal them out.
    Deviation: DeiT's code leaves nothing of fewer than 256 pictures; here such an epoch has n places.
    """

    times: int = 3

    def __post_init__(self) -> None:
        require_at_least(self.times, 1, "times")

    def length(self, pictures: int) -> int:
        return pictures // ROUND * ROUND or pictures

    def epoch_indices(self, labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        order = numpy_generator(seed, epoch, Stream.ORDER).permutation(len(labels))
        return order.repeat(self.times)[: self.length(len(labels))]


@dataclass(frozen=True)
class Balanced:
    """Every class equally likely, and every picture within it, with replacement (Kang et al. 2020)."""

    def length(self, pictures: int) -> int:
        return pictures

    def epoch_indices(self, labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        draw = numpy_generator(seed, epoch, Stream.ORDER)
        by_class = labels.argsort(kind="stable")
        _, starts, sizes = np.unique(labels[by_class], return_index=True, return_counts=True)
        chosen = draw.integers(len(sizes), size=len(labels))
        return by_class[starts[chosen] + draw.integers(sizes[chosen])]


def steps_per_epoch(order: Order, labels: np.ndarray, batch: int) -> int:
    """Full batches in an epoch; one where there are fewer pictures than a batch holds."""
    if not len(labels):
        raise DataError("there are no pictures, so there is no order to put them in.")
    return max(1, order.length(len(labels)) // batch)


def epoch_batches(order: Order, labels: np.ndarray, seed: int, epoch: int, batch: int) -> np.ndarray:
    """indices_SB of an epoch, one row a step.

    The last, incomplete batch is dropped. Fewer pictures than a batch holds are taken again from the first one on, so that
    a batch is always full.
    """
    steps = steps_per_epoch(order, labels, batch)
    return np.resize(order.epoch_indices(labels, seed, epoch), (steps, batch))


class LastEpoch(Generic[Rows]):
    """What was made of the epoch that was asked for last, since to order one takes long. Threads may share it."""

    def __init__(self) -> None:
        self.kept: tuple[int, Rows] | None = None

    def rows(self, epoch: int, made: Callable[[int], Rows]) -> Rows:
        """The rows that `made` gives for an epoch, or gave already."""
        kept = self.kept  # once: another thread may put another epoch there
        if kept is None or kept[0] != epoch:
            kept = self.kept = epoch, made(epoch)
        return kept[1]


Order = Shuffled | Repeated | Balanced
