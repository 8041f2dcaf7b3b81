"""The feed-forward half of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.linear import Dense, Linear
from frugalvit.nn.shape import Shape


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

    def build(self, shape: Shape) -> TwoLayers:
        hidden = int(shape.dim * self.ratio)
        if hidden < 1:
            with at("ratio"):
                raise SpecError(f"{self.ratio} times a width of {shape.dim} leaves no hidden unit. Use a larger ratio.")
        return TwoLayers(self.linear.build(shape.dim, hidden), self.activation.build(), self.linear.build(hidden, shape.dim))


class TwoLayers(nn.Module):
    def __init__(self, up: nn.Module, activation: nn.Module, down: nn.Module):
        super().__init__()
        self.up = up
        self.activation = activation
        self.down = down

    def forward(self, x_BND: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x_BND)))


FeedForward = Mlp | MlpPart
