"""A block for some samples of a batch alone: which they are, and the way there and back.

The samples follow each other, so that both ways are slices: a compiler makes them part of its other kernels. How many they are
and where they begin is known from the batch's size, so shapes are static and the host never waits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Kept:
    """`count` samples of a batch, from sample `first` on and around its end."""

    first: int
    count: int
    batch: int

    @property
    def factor(self) -> float:
        """What a branch is multiplied by, so that its mean over the batch stays."""
        return self.batch / self.count

    def mask_B(self, like: Tensor) -> Tensor:
        """1 for kept samples, 0 for others."""
        place_B = torch.arange(self.batch, device=like.device)
        return ((place_B - self.first) % self.batch < self.count).to(like.dtype)

    def some(self, x_B: Tensor) -> Tensor:
        """The kept samples, the first axis being the batch."""
        beyond = self.first + self.count - self.batch  # this many follow around the end
        if beyond <= 0:
            return x_B[self.first : self.first + self.count]
        return torch.cat([x_B[self.first :], x_B[:beyond]])

    def back(self, some_B: Tensor, x_B: Tensor) -> Tensor:
        """The batch x with its kept samples replaced."""
        beyond = self.first + self.count - self.batch
        if beyond <= 0:
            return torch.cat([x_B[: self.first], some_B, x_B[self.first + self.count :]])
        before = self.count - beyond
        return torch.cat([some_B[before:], x_B[beyond : self.first], some_B[:before]])


def kept_of(batch: int, drop: float, first: float) -> Kept | None:
    """round(B · (1 − drop)) samples, at least one, from the share `first` of the batch on; None where these are all."""
    batch = operator.index(batch)  # for a compiler a number, not a symbol
    count = max(1, round(batch * (1.0 - drop)))
    return Kept(int(first * batch), count, batch) if count < batch else None


def on_kept(block: Callable[[Tensor], Tensor], kept: Kept, x_BND: Tensor) -> Tensor:
    """The block's output for the kept samples; others pass as they are."""
    return kept.back(block(kept.some(x_BND)), x_BND)
