"""Between the stages of BinaryViT: squares of 2 x 2 tokens become one of twice the width, in one bit or in full precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from frugalvit.errors import SpecError
from frugalvit.nn.binary_channels import RPReLU, TokenBatchNorm
from frugalvit.nn.binary_linear import Signs, Weights, activations_for, beside, filled
from frugalvit.nn.init import FanInUniform, Init
from frugalvit.nn.pooling import halved
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class BinaryMerge:
    """n = norm(x); RPReLU(norm(conv(sign(n + shift))) + means of n over squares, twice) (Le & Li 2023, §3).

    The convolution is 2 x 2 with stride 2 and of one bit; its weights are not centered.
    """

    weights: Weights = Signs()
    weight: Init = FanInUniform()
    norm: TokenBatchNorm = TokenBatchNorm()

    def build(self, shape: Shape) -> tuple[BinarySquares, Shape]:
        new = merged(shape)
        product = self.weights.build((new.dim, shape.dim, 2, 2), self.weight)
        return BinarySquares(shape, self.norm, product, activations_for(self.weights)), new


@dataclass(frozen=True)
class RealMerge:
    """norm(conv(norm(x))), the convolution 2 x 2 with stride 2 in full precision, without bias: BinaryViT*."""

    weight: Init = FanInUniform()
    norm: TokenBatchNorm = TokenBatchNorm()

    def build(self, shape: Shape) -> tuple[RealSquares, Shape]:
        return RealSquares(shape, self.norm, self.weight), merged(shape)


def merged(shape: Shape) -> Shape:
    if shape.summary:
        raise SpecError(
            f"squares tile patches, and {' and '.join(shape.summary)} belong to none. Join them behind the last merge."
        )
    return halved(shape)


class Squares(nn.Module):
    def __init__(self, shape: Shape, norm: TokenBatchNorm):
        super().__init__()
        self.grid = (shape.height // 2, 2, shape.width // 2, 2)
        self.norm1 = norm.over(shape.dim)
        self.norm2 = norm.over(2 * shape.dim)

    def rows(self, x_BND: Tensor) -> Tensor:
        """Each square as one token_BNI; inside, channels, rows, columns: as in a convolution's kernel."""
        return x_BND.unflatten(1, self.grid).permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(1, 2)


class BinarySquares(Squares):
    def __init__(self, shape: Shape, norm: TokenBatchNorm, product: nn.Module, bits: Callable[[Tensor], Tensor]):
        super().__init__(shape, norm)
        self.bits = bits
        self.shift = nn.Parameter(torch.zeros(shape.dim))
        self.product = product
        self.act = RPReLU(2 * shape.dim)

    def forward(self, x_BND: Tensor) -> Tensor:
        n_BND = self.norm1(x_BND)
        y_BND = self.norm2(self.product(self.rows(self.bits(n_BND + self.shift))))
        means_BND = n_BND.unflatten(1, self.grid).mean((2, 4)).flatten(1, 2)
        return self.act(beside(y_BND, means_BND))


class RealSquares(Squares):
    def __init__(self, shape: Shape, norm: TokenBatchNorm, weight: Init):
        super().__init__(shape, norm)
        self.weight = filled((2 * shape.dim, shape.dim, 2, 2), weight)

    def forward(self, x_BND: Tensor) -> Tensor:
        return self.norm2(linear(self.rows(self.norm1(x_BND)), self.weight.flatten(1)))
