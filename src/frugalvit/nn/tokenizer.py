"""From a picture to tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.conv_stem import ConvStem
from frugalvit.nn.init import FanInUniform, Init
from frugalvit.nn.linear import Dense, Linear
from frugalvit.nn.norm import LayerNorm, Norm
from frugalvit.nn.pooling import shifted, squares
from frugalvit.nn.shape import Image, Shape, Size, pair
from frugalvit.nn.t2t import TokensToTokens


class TokenizerPart(Protocol):
    """What may stand in `Model.tokenizer`."""

    def build(self, image: Image) -> tuple[nn.Module, Shape]:
        """A module image_BCHW -> x_BND and the shape of its tokens."""
        ...


@dataclass(frozen=True)
class Patches:
    """Each patch x patch square, flattened and projected to `dim` (Dosovitskiy et al. 2021, eq. 1)."""

    patch: Size
    dim: int
    weight: Init = FanInUniform()
    bias: Init = FanInUniform()

    def build(self, image: Image) -> tuple[PatchProjection, Shape]:
        high, wide = pair(self.patch)
        if min(high, wide, self.dim) < 1:
            raise SpecError(f"patches of {high} x {wide} pixels to a width of {self.dim}. Use sizes of 1 and more.")
        if image.height % high or image.width % wide:
            fits = [f"{nearest(image.height + a * high, high)} x {nearest(image.width + a * wide, wide)}" for a in (0, 1)]
            fits = [size for size in fits if not size.startswith("0") and not size.endswith(" 0")]
            raise SpecError(
                f"patches of {high} x {wide} do not tile an image of {image}. "
                f"Use images of {' or '.join(fits)}, or a patch that divides both sides."
            )
        shape = Shape(self.dim, image.height // high, image.width // wide)
        return PatchProjection(image.channels, (high, wide), shape, self.weight, self.bias), shape


def nearest(side: int, patch: int) -> int:
    """The largest multiple of `patch` up to `side`."""
    return side // patch * patch


class PatchProjection(nn.Module):
    """The convolution with kernel = stride = patch, as one matrix product."""

    def __init__(self, channels: int, patch: tuple[int, int], shape: Shape, weight: Init, bias: Init):
        super().__init__()
        self.patch = patch
        self.shape = shape
        self.weight = nn.Parameter(torch.empty(shape.dim, channels, *patch))
        self.bias = nn.Parameter(torch.empty(shape.dim))
        fan_in = channels * patch[0] * patch[1]
        weight.fill(self.weight, fan_in, shape.dim)
        bias.fill(self.bias, fan_in, shape.dim)

    def forward(self, image_BCHW: Tensor) -> Tensor:
        high, wide = self.patch
        x = image_BCHW.unflatten(3, (self.shape.width, wide)).unflatten(2, (self.shape.height, high))
        x_BNI = x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # rows of a convolution kernel: (c p1 p2)
        return nn.functional.linear(x_BNI, self.weight.flatten(1), self.bias)


@dataclass(frozen=True)
class OverlappingPatches:
    """Patches that begin every `stride` pixels and are larger than that: PiT's stem (Heo et al. 2021, §3.3)."""

    patch: Size
    stride: Size
    dim: int
    weight: Init = FanInUniform()
    bias: Init = FanInUniform()

    def build(self, image: Image) -> tuple[OverlappingProjection, Shape]:
        (high, wide), (down, right) = pair(self.patch), pair(self.stride)
        if min(high, wide, down, right, self.dim) < 1:
            raise SpecError(f"patches of {high} x {wide} every {down} x {right} pixels to {self.dim} channels. Use 1 and more.")
        if image.height < high or image.width < wide:
            raise SpecError(f"patches of {high} x {wide} do not fit into an image of {image}. Use a larger image.")
        shape = Shape(self.dim, (image.height - high) // down + 1, (image.width - wide) // right + 1)
        return OverlappingProjection(image.channels, (high, wide), (down, right), self.dim, self.weight, self.bias), shape


class OverlappingProjection(nn.Module):
    """The convolution with that kernel and stride, as one matrix product: three times its speed in training on an H200."""

    def __init__(self, channels: int, patch: tuple[int, int], stride: tuple[int, int], dim: int, weight: Init, bias: Init):
        super().__init__()
        self.patch = patch
        self.stride = stride
        self.weight = nn.Parameter(torch.empty(dim, channels, *patch))
        self.bias = nn.Parameter(torch.empty(dim))
        fan_in = channels * patch[0] * patch[1]
        weight.fill(self.weight, fan_in, dim)
        bias.fill(self.bias, fan_in, dim)

    def forward(self, image_BCHW: Tensor) -> Tensor:
        (high, wide), (down, right) = self.patch, self.stride
        x = image_BCHW.unfold(2, high, down).unfold(3, wide, right)  # B C, grid, patch
        x_BNI = x.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)  # rows of a convolution kernel: (c p1 p2)
        return nn.functional.linear(x_BNI, self.weight.flatten(1), self.bias)


@dataclass(frozen=True)
class ShiftedPatches:
    """SPT (Lee et al. 2021, eq. 7-9): the image and four copies shifted by half a patch, in patches, norm, linear."""

    patch: int
    dim: int
    norm: Norm = LayerNorm(1e-5)
    linear: Linear = Dense()

    def build(self, image: Image) -> tuple[ShiftedProjection, Shape]:
        if self.patch < 2:
            raise SpecError(
                f"half of a patch of {self.patch} is no pixel to shift by. Use patches of 2 and more.", path="patch"
            )
        _, shape = Patches(self.patch, self.dim).build(image)
        fan_in = 5 * image.channels * self.patch**2
        with at("norm"):
            norm = self.norm.build(replace(shape, dim=fan_in))
        with at("linear"):
            return ShiftedProjection(self.patch, norm, self.linear.build(fan_in, self.dim)), shape


class ShiftedProjection(nn.Module):
    def __init__(self, patch: int, norm: nn.Module, linear: nn.Module):
        super().__init__()
        self.patch = patch
        self.norm = norm
        self.linear = linear

    def forward(self, image_BCHW: Tensor) -> Tensor:
        return self.linear(self.norm(squares(shifted(image_BCHW, self.patch // 2), (self.patch, self.patch))))


# what may stand in `Model.tokenizer`
Tokenizer = Patches | OverlappingPatches | ShiftedPatches | TokensToTokens | ConvStem | TokenizerPart
