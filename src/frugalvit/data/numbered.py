"""Batches as numbers, for pictures that lie on the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from frugalvit.data.batch import Batch
from frugalvit.data.order import LastEpoch, Order, epoch_batches, steps_per_epoch

NOTHING = torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, eq=False)
class NumberedBatches(Dataset[Batch]):
    """Batch `step` of a training as numbers alone; the pictures are on the device.

    `readable_N` names for each picture the one that stands for it: itself, or the next one that can be read.
    """

    labels: np.ndarray
    order: Order
    seed: int
    batch: int
    readable_N: np.ndarray
    names: dict[int, str] = field(default_factory=dict)  # of those that cannot be read
    last: LastEpoch[tuple[np.ndarray, Tensor, Tensor]] = field(default_factory=LastEpoch, init=False, repr=False)

    def __getitem__(self, step: int) -> Batch:
        number, row = divmod(step, self.per_epoch)
        wanted_SB, index_SB, label_SB = self.last.rows(number, self.epoch)
        bad = tuple(self.names[int(index)] for index in wanted_SB[row] if int(index) in self.names) if self.names else ()
        return Batch(NOTHING, label_SB[row], index_SB[row], bad=bad)

    @cached_property
    def per_epoch(self) -> int:
        return steps_per_epoch(self.order, self.labels, self.batch)

    def epoch(self, number: int) -> tuple[np.ndarray, Tensor, Tensor]:
        """Wanted pictures, those that stand for them, and their labels, a row a batch."""
        wanted_SB = epoch_batches(self.order, self.labels, self.seed, number, self.batch)
        index_SB = self.readable_N[wanted_SB]
        return wanted_SB, torch.from_numpy(index_SB), torch.from_numpy(self.labels[index_SB])


def stand_ins(readable_N: np.ndarray) -> np.ndarray:
    """For each picture itself, or the next readable one, from the end on to the beginning."""
    place_N = np.where(readable_N, np.arange(len(readable_N)), len(readable_N))
    next_N = np.minimum.accumulate(place_N[::-1])[::-1]
    return np.where(next_N == len(readable_N), place_N.min(), next_N)
