"""Position embeddings for another grid, and relative biases for other windows.

Summary tokens have no place on the grid, so theirs are never resampled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import interpolate

from frugalvit.errors import WeightsError
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class Bicubic:
    """As the DeiT paper and its code: bilinear would shrink the vectors' norms (Touvron et al. 2021, §3)."""

    def resample(self, grid_1DHW: Tensor, size: tuple[int, int]) -> Tensor:
        return interpolate(grid_1DHW, size=size, mode="bicubic", align_corners=False)


@dataclass(frozen=True)
class BicubicAntialias:
    """As timm; it differs from `Bicubic` where the grid shrinks."""

    def resample(self, grid_1DHW: Tensor, size: tuple[int, int]) -> Tensor:
        return interpolate(grid_1DHW, size=size, mode="bicubic", align_corners=False, antialias=True)


@dataclass(frozen=True)
class Bilinear:
    """As timm does with AugReg's files."""

    def resample(self, grid_1DHW: Tensor, size: tuple[int, int]) -> Tensor:
        return interpolate(grid_1DHW, size=size, mode="bilinear", align_corners=False)


Resample = Bicubic | BicubicAntialias | Bilinear


def resampled(positions_1ND: Tensor, shape: Shape, grid: tuple[int, int], rule: Resample) -> Tensor:
    """Positions of `grid`, behind the summary tokens of `shape`, for the grid of `shape`. Equal grids are left alone."""
    if grid == (shape.height, shape.width):
        return positions_1ND
    summary = len(shape.summary)
    grid_1DHW = positions_1ND[:, summary:].float().unflatten(1, grid).permute(0, 3, 1, 2)
    patches_1ND = rule.resample(grid_1DHW, (shape.height, shape.width)).flatten(2).transpose(1, 2)
    return concatenated(positions_1ND[:, :summary], patches_1ND)


def concatenated(summary_1SD: Tensor, patches_1ND: Tensor) -> Tensor:
    whole = patches_1ND.new_empty(1, summary_1SD.shape[1] + patches_1ND.shape[1], patches_1ND.shape[2])
    whole[:, : summary_1SD.shape[1]] = summary_1SD
    whole[:, summary_1SD.shape[1] :] = patches_1ND
    return whole


def grid_of(length: int, shape: Shape, grid: tuple[int, int] | None) -> tuple[int, int]:
    """The grid of a file's positions: as given; else the square that fits, since published models are square."""
    patches = length - len(shape.summary)
    if grid is not None:
        if min(grid) < 1 or grid[0] * grid[1] != patches:
            raise WeightsError(f"a grid of {grid[0]} x {grid[1]} for {patches} patch positions. Give the file's grid.")
        return grid
    side = math.isqrt(max(patches, 0))
    own = (shape.height, shape.width)
    if patches == shape.patches and patches > 0 and (side * side != patches or own == (side, side)):
        return own
    if patches == shape.patches and patches > 0:
        raise WeightsError(
            f"{patches} patch positions may be {side} x {side}, as published models, or {own[0]} x {own[1]}, as this one. "
            f"Say which: grid=({side}, {side}) or grid={own}."
        )
    if side * side == patches and patches > 0:
        return side, side
    raise WeightsError(
        f"{length} positions are {len(shape.summary)} summary tokens and {patches} patches, which are no square. "
        "Give their grid: grid=(height, width) in patches."
    )


def window_of(length: int) -> int:
    """The side of the square windows that have so many offsets: (2 side − 1)²."""
    side = math.isqrt(length)
    if side * side != length or not side % 2:
        raise WeightsError(f"{length} offsets are those of no square window, and only square ones can be resampled.")
    return (side + 1) // 2


def rebiased(bias_NH: Tensor, side: int, window: tuple[int, int], rule: Resample) -> Tensor:
    """Biases by offset, of square windows, for windows of another size: offsets lie on a grid as patches do."""
    shape = Shape(bias_NH.shape[1], 2 * window[0] - 1, 2 * window[1] - 1)
    return resampled(bias_NH[None], shape, (2 * side - 1, 2 * side - 1), rule)[0]
