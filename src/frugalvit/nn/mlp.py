"""The feed-forward half of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.dropout import dropped
from frugalvit.nn.kernels import ROUNDED, has_kernel, products_dtype
from frugalvit.nn.linear import Dense, Linear, product_of
from frugalvit.nn.shape import Shape

LEAST = (
    1 << 24
)  # hidden units of a batch from which `biased_gelu` pays; below, a compiler that merges small kernels does as well


@dataclass(frozen=True)
class Gelu:
    """x · Φ(x) with the exact normal distribution (erf): DeiT, timm."""

    def build(self) -> nn.Module:
        return nn.GELU()


@dataclass(frozen=True)
class TanhGelu:
    """The tanh approximation of GELU, Flax's default: what the AugReg checkpoints were trained with."""

    def build(self) -> nn.Module:
        return nn.GELU(approximate="tanh")


Activation = Gelu | TanhGelu


class MlpPart(Protocol):
    """What may stand in a block's `mlp` slot."""

    def build(self, shape: Shape) -> nn.Module:
        """A module x_BND -> x_BND."""
        ...


@dataclass(frozen=True)
class Mlp:
    """down(act(up(x))) on each token (Vaswani et al. 2017), the hidden width `ratio` times the token's."""

    ratio: float = 4.0
    activation: Activation = Gelu()
    linear: Linear = Dense()

    def build(self, shape: Shape, dropout: float = 0.0) -> TwoLayers:
        hidden = int(shape.dim * self.ratio)
        if hidden < 1:
            with at("ratio"):
                raise SpecError(f"{self.ratio} times a width of {shape.dim} leaves no hidden unit. Use a larger ratio.")
        up, down = self.linear.build(shape.dim, hidden), self.linear.build(hidden, shape.dim)
        return TwoLayers(up, self.activation.build(), down, dropout)


class TwoLayers(nn.Module):
    def __init__(self, up: nn.Module, activation: nn.Module, down: nn.Module, dropout: float = 0.0):
        super().__init__()
        self.up = up
        self.activation = activation
        self.down = down
        self.dropout = dropout  # of the hidden units, where a draw is given
        exact = isinstance(activation, nn.GELU) and activation.approximate == "none"
        plain = product_of(up) is nn.functional.linear  # fp8 rounds what comes next, which a compiler merges with GELU
        self.fused = exact and plain and getattr(up, "bias", None) is not None and has_kernel("biased_gelu")

    def forward(self, x_BND: Tensor, draw_B: Tensor | None = None) -> Tensor:
        return self.down(dropped(self.hidden(x_BND), draw_B, self.dropout))

    def hidden(self, x_BND: Tensor) -> Tensor:
        up: Any = self.up
        pays = self.fused and x_BND.is_cuda and x_BND.shape[:-1].numel() * up.out_features >= LEAST
        if pays and products_dtype(x_BND) in ROUNDED:
            return torch.ops.frugalvit.biased_gelu(nn.functional.linear(x_BND, up.weight), up.bias)
        return self.activation(up(x_BND))


FeedForward = Mlp | MlpPart
