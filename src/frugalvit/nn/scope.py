"""Who sees whom in attention, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.nn.shape import Shape, Size, pair


class ScopePart(Protocol):
    """What may stand in a `scope` slot."""

    def build(self, shape: Shape) -> tuple[nn.Module, Shape, Shape]:
        """A module with `sees(x_BND) -> (from_GMD, to_GND)` and `back(y_GMD) -> y_BMD`; the queries' and keys' shapes.

        Where not every query sees every key, the module's `seen_WMN` says which do, for each of the W groups of a sample.
        """
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


@dataclass(frozen=True)
class SummaryOnly:
    """Summary tokens look at all tokens, themselves included: class attention (Touvron et al. 2021b, §3)."""

    def build(self, shape: Shape) -> tuple[SummaryLooks, Shape, Shape]:
        return SummaryLooks(len(shape.summary), 0), summary_of(shape), shape


@dataclass(frozen=True)
class PatchesOnly:
    """Summary tokens look at the patches and not at themselves: class attention in Lee et al.'s CaiT."""

    def build(self, shape: Shape) -> tuple[SummaryLooks, Shape, Shape]:
        summary = len(shape.summary)
        return SummaryLooks(summary, summary), summary_of(shape), replace(shape, summary=())


def summary_of(shape: Shape) -> Shape:
    """The summary tokens of a shape alone."""
    if not shape.summary:
        raise SpecError("there is no summary token to look. Put Join in front of this layer.")
    return replace(shape, height=0, width=0)


class SummaryLooks(nn.Module):
    def __init__(self, summary: int, first: int):
        super().__init__()
        self.summary = summary
        self.first = first  # of the tokens that are seen

    def sees(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        return x_BND[:, : self.summary], x_BND[:, self.first :]

    def back(self, y_BSD: Tensor) -> Tensor:
        return y_BSD


@dataclass(frozen=True)
class Windows:
    """Tokens see those of their own window of the grid; `shift` moves all windows up and left by so many patches.

    Shifted windows wrap around the edges, and tokens from opposite edges do not see each other (Liu et al. 2021, §3.2).
    """

    side: Size
    shift: int = 0

    def build(self, shape: Shape) -> tuple[WindowGroups, Shape, Shape]:
        high, wide = pair(self.side)
        grid = f"a grid of {shape.height} x {shape.width}"
        if shape.summary:
            raise SpecError(
                f"windows tile patches, and {' and '.join(shape.summary)} belong to no window. Join them behind the "
                "windowed blocks (with_class_attention), or read the mean of the patches (with_mean_readout)."
            )
        if min(high, wide) < 1 or shape.height % high or shape.width % wide:
            both = sorted(n for n in range(1, min(shape.height, shape.width) + 1) if not (shape.height % n or shape.width % n))
            raise SpecError(f"windows of {high} x {wide} do not tile {grid}. Use a side of {both}, or another image size.")
        if not 0 <= self.shift < min(high, wide):
            raise SpecError(f"a shift of {self.shift} in windows of {high} x {wide}. Use 0 to {min(high, wide) - 1}.")
        if self.shift and (shape.height == high or shape.width == wide):
            raise SpecError(f"a shift in {grid}, which one window of {high} x {wide} covers. Use shift=0 or smaller windows.")
        window = Shape(shape.dim, high, wide)
        return WindowGroups(shape, (high, wide), self.shift), window, window


class WindowGroups(nn.Module):
    seen_WMN: Tensor | None

    def __init__(self, shape: Shape, side: tuple[int, int], shift: int):
        super().__init__()
        self.grid = (shape.height, shape.width)
        self.side = side
        self.shift = shift
        # how many tokens the loneliest token sees, itself included
        self.fewest = min(shift, side[0] - shift) * min(shift, side[1] - shift) if shift else side[0] * side[1]
        self.register_buffer("seen_WMN", self.regions() if shift else None, persistent=False)

    def regions(self) -> Tensor:
        """Whether two tokens of a window come from the same region of the grid: a shift cuts each axis in two."""
        rows, columns = (torch.arange(length) >= length - self.shift for length in self.grid)
        region_1N1 = (2 * rows[:, None] + columns[None, :]).flatten()[None, :, None]
        region_WN = self.windows(region_1N1).flatten(1)
        return region_WN[:, :, None] == region_WN[:, None, :]

    def windows(self, x_BND: Tensor) -> Tensor:
        (height, width), (high, wide) = self.grid, self.side
        x = x_BND.unflatten(1, (height // high, high, width // wide, wide))
        return x.transpose(2, 3).flatten(3, 4).flatten(0, 2)  # G N D

    def sees(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        if self.shift:
            x_BHWD = x_BND.unflatten(1, self.grid).roll((-self.shift, -self.shift), (1, 2))
            x_BND = x_BHWD.flatten(1, 2)
        x_GND = self.windows(x_BND)
        return x_GND, x_GND

    def back(self, y_GND: Tensor) -> Tensor:
        (height, width), (high, wide) = self.grid, self.side
        y = y_GND.unflatten(0, (-1, height // high, width // wide)).unflatten(3, (high, wide))
        y_BHWD = y.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        if self.shift:
            y_BHWD = y_BHWD.roll((self.shift, self.shift), (1, 2))
        return y_BHWD.flatten(1, 2)


Scope = Everywhere | Windows | SummaryOnly | PatchesOnly | ScopePart
