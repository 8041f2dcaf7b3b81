"""Who sees whom in attention, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from frugalvit.nn.shape import Shape


class ScopePart(Protocol):
    """What may stand in a `scope` slot."""

    def build(self, shape: Shape) -> tuple[nn.Module, Shape, Shape]:
        """A module with `sees(x_BND) -> (from_GMD, to_GND)` and `back(y_GMD) -> y_BMD`; the queries' and keys' shapes."""
        ...


@dataclass(frozen=True)
class Everywhere:
    """Every token sees every token: the batch's samples are the groups."""

    def build(self, shape: Shape) -> tuple[WholeSample, Shape, Shape]:
        return WholeSample(), shape, shape


class WholeSample(nn.Module):
    def sees(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        return x_BND, x_BND

    def back(self, y_BND: Tensor) -> Tensor:
        return y_BND


Scope = Everywhere | ScopePart
