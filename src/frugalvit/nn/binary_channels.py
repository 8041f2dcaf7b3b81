"""What stands between products of one bit: a norm, an activation and an affine map, each a few numbers a channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugalvit.nn.init import Ones
from frugalvit.nn.map_norm import BatchNorm, BatchNormalized
from frugalvit.nn.residual import Plain, StochasticSum
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class TokenBatchNorm:
    """Each channel over batch and tokens (Ioffe & Szegedy 2015), its statistics remembered for evaluation: BinaryViT's norm.

    In evaluation it is one multiply-add a channel, which a threshold takes in.
    """

    eps: float = 1e-5
    momentum: float = 0.1

    def __post_init__(self) -> None:
        BatchNorm(self.eps, self.momentum)

    def build(self, shape: Shape) -> TokenBatchNormalized:
        return self.over(shape.dim)

    def over(self, dim: int) -> TokenBatchNormalized:
        """The module for `dim` channels."""
        return TokenBatchNormalized(dim, self.eps, self.momentum, Ones())


class TokenBatchNormalized(BatchNormalized):
    """`BatchNormalized` whose channels are the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1, x.shape[-1])).view_as(x)


class RPReLU(nn.Module):
    """PReLU(x − before) + after, all three learned a channel (Liu et al. 2020, eq. 4)."""

    def __init__(self, dim: int):
        super().__init__()
        self.before = nn.Parameter(torch.zeros(dim))
        self.slope = nn.Parameter(torch.full((dim,), 0.25))
        self.after = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        # the kernel of torch's prelu: that itself would round the shortcuts to bf16 under autocast
        return torch._prelu_kernel(x - self.before, self.slope) + self.after


class ChannelAffine(nn.Module):
    """factor ⊙ x + offset, a number of each a channel."""

    def __init__(self, dim: int, init: float):
        super().__init__()
        self.factor = nn.Parameter(torch.full((dim,), float(init)))
        self.offset = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor + self.offset


@dataclass(frozen=True)
class Affine:
    """x + (α ⊙ branch + β), α and β learned per channel: the "LayerScale" of BinaryViT, which has an offset.

    `inner` adds the branch and says at which rate samples drop it, with its offset.
    """

    init: float = 0.1
    inner: Plain = Plain()

    def build(self, shape: Shape) -> AffineSum:
        return AffineSum(shape.dim, self.init, self.inner.build(shape))


class AffineSum(nn.Module):
    def __init__(self, dim: int, init: float, total: StochasticSum):
        super().__init__()
        self.affine = ChannelAffine(dim, init)
        self.sum = total
        self.draws = total.draws

    def forward(self, x_BND: Tensor, branch_BND: Tensor, draw_B: Tensor | None = None) -> Tensor:
        return self.sum(x_BND, self.affine(branch_BND), draw_B)

    def kept(self, batch: int) -> None:
        """All samples, as in `StochasticSum`."""
