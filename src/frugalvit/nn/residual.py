"""How a branch joins the stream of tokens, with stochastic depth (Huang et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.shape import Shape


class ResidualPart(Protocol):
    """What may stand in a `residual` slot."""

    def build(self, shape: Shape) -> nn.Module:
        """A module (x_BND, branch_BND, draw_B | None) -> x_BND; its `draws` says whether it reads a row (1) or none (0)."""
        ...


@dataclass(frozen=True)
class Plain:
    """x + branch · m / (1 − drop), m = 1 with probability 1 − drop, one m a sample: stochastic depth as in DeiT."""

    drop: float = 0.0

    def __post_init__(self) -> None:
        refuse_rate(self.drop)

    def build(self, shape: Shape) -> StochasticSum:
        return StochasticSum(self.drop)


def refuse_rate(drop: float, name: str = "drop") -> None:
    if isinstance(drop, (int, float)) and not 0.0 <= drop < 1.0:
        with at(name):
            raise SpecError(f"a drop rate of {drop} is not a probability below 1. Use 0 to 0.99.")


class StochasticSum(nn.Module):
    def __init__(self, drop: float):
        super().__init__()
        self.drop = drop
        self.draws = 1 if drop > 0 else 0

    def forward(self, x_BND: Tensor, branch_BND: Tensor, draw_B: Tensor | None = None) -> Tensor:
        if draw_B is None or not self.draws:
            return x_BND + branch_BND
        keep = 1.0 - self.drop
        factor_B = ((draw_B < keep) * (1.0 / keep)).to(x_BND.dtype)
        return x_BND + branch_BND * factor_B[:, None, None]


@dataclass(frozen=True)
class LayerScale:
    """x + (γ ⊙ branch) · m / (1 − drop), γ learned per channel and tiny at first (Touvron et al. 2021b, eq. 4)."""

    init: float
    drop: float = 0.0

    def __post_init__(self) -> None:
        refuse_rate(self.drop)

    def build(self, shape: Shape) -> ScaledSum:
        return ScaledSum(shape.dim, self.init, self.drop)


class ScaledSum(nn.Module):
    def __init__(self, dim: int, init: float, drop: float):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))
        self.sum = StochasticSum(drop)
        self.draws = self.sum.draws

    def forward(self, x_BND: Tensor, branch_BND: Tensor, draw_B: Tensor | None = None) -> Tensor:
        return self.sum(x_BND, self.gamma * branch_BND, draw_B)


Residual = Plain | LayerScale | ResidualPart
