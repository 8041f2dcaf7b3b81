"""From a picture to tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.nn.init import FanInUniform, Init
from frugalvit.nn.shape import Image, Shape, Size, pair


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


Tokenizer = Patches | TokenizerPart  # what may stand in `Model.tokenizer`
