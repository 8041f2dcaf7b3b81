"""Layers that halve the grid and double the width: between the stages of PiT and Swin."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from frugalvit.errors import SpecError, at
from frugalvit.nn.init import FanInUniform, Init
from frugalvit.nn.linear import Dense, Linear
from frugalvit.nn.norm import LayerNorm, Norm
from frugalvit.nn.shape import Shape


def shifted(map_BCHW: Tensor, shift: int) -> Tensor:
    """The map and four copies moved down-right, down-left, up-right and up-left, zeros coming in: SPT's S (eq. 7).

    A copy moved down and right shows each place what lies up and left of it.
    """
    height, width = map_BCHW.shape[-2:]
    padded = pad(map_BCHW, (shift, shift, shift, shift))
    ends = (0, 2 * shift)
    copies = [padded[..., top : top + height, left : left + width] for top in ends for left in ends]
    return torch.cat([map_BCHW, *copies], dim=1)


def halved(shape: Shape) -> Shape:
    """Half the grid, twice the width, for layers that join squares of 2 x 2."""
    if shape.height % 2 or shape.width % 2:
        raise SpecError(
            f"a grid of {shape.height} x {shape.width} cannot be halved in squares of 2 x 2. Use another image or patch size."
        )
    return Shape(2 * shape.dim, shape.height // 2, shape.width // 2, shape.summary)


@dataclass(frozen=True)
class MergePatches:
    """Squares of 2 x 2 tokens side by side in one, norm, then linear from 4 D to 2 D (Liu et al. 2021, §3.1)."""

    norm: Norm = LayerNorm(1e-5)
    linear: Linear = Dense(bias=None)

    def build(self, shape: Shape) -> tuple[MergedSquares, Shape]:
        if shape.summary:
            raise SpecError("MergePatches has no way to widen summary tokens. Use PoolTokens or ShiftedMerge.")
        new = halved(shape)
        with at("norm"):
            norm = self.norm.build(Shape(4 * shape.dim, new.height, new.width))
        with at("linear"):
            return MergedSquares(shape, norm, self.linear.build(4 * shape.dim, new.dim)), new


class MergedSquares(nn.Module):
    def __init__(self, shape: Shape, norm: nn.Module, linear: nn.Module):
        super().__init__()
        self.grid = (shape.height // 2, 2, shape.width // 2, 2)
        self.norm = norm
        self.linear = linear

    def forward(self, x_BND: Tensor) -> Tensor:
        x = x_BND.unflatten(1, self.grid).permute(0, 1, 3, 4, 2, 5)  # B H W, then column, row, channel, as Swin has it
        return self.linear(self.norm(x.flatten(3).flatten(1, 2)))


@dataclass(frozen=True)
class PoolTokens:
    """A depthwise 3 x 3 convolution with stride 2 on the patches, a linear map on summary tokens (Heo et al. 2021, §3.2)."""

    weight: Init = FanInUniform()
    bias: Init = FanInUniform()
    linear: Linear = Dense()

    def build(self, shape: Shape) -> tuple[PooledTokens, Shape]:
        convolution = depthwise(shape, self.weight, self.bias)
        with at("linear"):
            summary = self.linear.build(shape.dim, 2 * shape.dim) if shape.summary else None
        return PooledTokens(shape, convolution, summary), pooled(shape)


@dataclass(frozen=True)
class SeparablePool:
    """A depthwise 3 x 3 and then a full 1 x 1 convolution: the pooling of Lee et al.'s scaled-down PiT."""

    weight: Init = FanInUniform()
    bias: Init = FanInUniform()
    full: Linear = Dense()
    linear: Linear = Dense()

    def build(self, shape: Shape) -> tuple[PooledTokens, Shape]:
        convolution = depthwise(shape, self.weight, self.bias)
        with at("full"):
            full = self.full.build(2 * shape.dim, 2 * shape.dim)
        with at("linear"):
            summary = self.linear.build(shape.dim, 2 * shape.dim) if shape.summary else None
        return PooledTokens(shape, convolution, summary, full), pooled(shape)


def pooled(shape: Shape) -> Shape:
    """What a 3 x 3 convolution with stride 2 and one row of zeros around leaves."""
    if min(shape.height, shape.width) < 2:
        raise SpecError(f"a grid of {shape.height} x {shape.width} is too small to be pooled. Use a larger image.")
    return Shape(2 * shape.dim, (shape.height + 1) // 2, (shape.width + 1) // 2, shape.summary)


def depthwise(shape: Shape, weight: Init, bias: Init) -> nn.Conv2d:
    """Each channel to two, 3 x 3 with stride 2."""
    convolution = nn.Conv2d(shape.dim, 2 * shape.dim, 3, stride=2, padding=1, groups=shape.dim)
    weight.fill(convolution.weight, 9, 2 * shape.dim)
    assert convolution.bias is not None
    bias.fill(convolution.bias, 9, 2 * shape.dim)
    return convolution


class PooledTokens(nn.Module):
    def __init__(self, shape: Shape, convolution: nn.Conv2d, summary: nn.Module | None, full: nn.Module | None = None):
        super().__init__()
        self.shape = shape
        self.convolution = convolution
        self.full = full
        self.summary = summary

    def forward(self, x_BND: Tensor) -> Tensor:
        tokens = len(self.shape.summary)
        grid = (self.shape.height, self.shape.width)
        map_BDHW = x_BND[:, tokens:].transpose(1, 2).unflatten(2, grid)
        y_BND = self.convolution(map_BDHW).flatten(2).transpose(1, 2)
        y_BND = y_BND if self.full is None else self.full(y_BND)
        return y_BND if self.summary is None else torch.cat([self.summary(x_BND[:, :tokens]), y_BND], dim=1)


@dataclass(frozen=True)
class ShiftedMerge:
    """SPT as a pooling layer (Lee et al. 2021, §3.1): shifted copies by one patch, squares of 2 x 2, norm, linear to 2 D."""

    norm: Norm = LayerNorm(1e-5)
    linear: Linear = Dense()
    summary: Linear = Dense()  # of summary tokens, D to 2 D

    def build(self, shape: Shape) -> tuple[ShiftedSquares, Shape]:
        new = halved(shape)
        fan_in = 20 * shape.dim
        with at("norm"):
            norm = self.norm.build(Shape(fan_in, new.height, new.width))
        with at("linear"):
            linear = self.linear.build(fan_in, new.dim)
        with at("summary"):
            summary = self.summary.build(shape.dim, new.dim) if shape.summary else None
        return ShiftedSquares(shape, norm, linear, summary), new


class ShiftedSquares(nn.Module):
    def __init__(self, shape: Shape, norm: nn.Module, linear: nn.Module, summary: nn.Module | None):
        super().__init__()
        self.shape = shape
        self.norm = norm
        self.linear = linear
        self.summary = summary

    def forward(self, x_BND: Tensor) -> Tensor:
        tokens = len(self.shape.summary)
        map_BDHW = x_BND[:, tokens:].transpose(1, 2).unflatten(2, (self.shape.height, self.shape.width))
        y_BND = self.linear(self.norm(squares(shifted(map_BDHW, 1), (2, 2))))
        return y_BND if self.summary is None else torch.cat([self.summary(x_BND[:, :tokens]), y_BND], dim=1)


def squares(map_BCHW: Tensor, side: tuple[int, int]) -> Tensor:
    """Each square of a map as one token_BNI; inside, rows, then columns, then channels, as SPT has it."""
    high, wide = side
    x = map_BCHW.unflatten(3, (-1, wide)).unflatten(2, (-1, high))
    return x.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
