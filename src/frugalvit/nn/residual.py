"""How a branch joins the stream of tokens, with stochastic depth (Huang et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.fixed_depth import Chosen, count_of, in_a_row
from frugalvit.nn.shape import Shape
from frugalvit.spec import swap


class ResidualPart(Protocol):
    """What may stand in a `residual` slot."""

    def build(self, shape: Shape) -> nn.Module:
        """A module (x_BND, branch_BND, draw_B | None) -> x_BND; its `draws` says whether it reads a row (1) or none (0).

        Give it `chosen(draw_B) -> Chosen | None` if it reads the branch of some samples alone: a block computes no others.
        """
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

    def chosen(self, draw_B: Tensor) -> None:
        """All samples: how many are kept is known on the device alone."""


@dataclass(frozen=True)
class LayerScale:
    """x + (γ ⊙ branch) · m / (1 − drop), γ learned per channel and tiny at first (Touvron et al. 2021b, eq. 4)."""

    init: float
    drop: float = 0.0

    def __post_init__(self) -> None:
        refuse_rate(self.drop)

    def build(self, shape: Shape) -> ScaledSum:
        return ScaledSum(shape.dim, self.init, StochasticSum(self.drop))


class ScaledSum(nn.Module):
    def __init__(self, dim: int, init: float, total: StochasticSum | FixedCountSum):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(init)))
        self.sum = total
        self.draws = total.draws

    def forward(self, x_BND: Tensor, branch_BND: Tensor, draw_B: Tensor | None = None) -> Tensor:
        return self.sum(x_BND, self.gamma * branch_BND, draw_B)

    def chosen(self, draw_B: Tensor) -> Chosen | None:
        return self.sum.chosen(draw_B)


@dataclass(frozen=True)
class FixedCountDepth:
    """x + branch · m · B / K, m = 1 for K = round(B · (1 − drop)) of B samples (after DINOv2's code).

    The K samples follow each other in the batch, from a random one on and around its end: pictures come in random order, and
    sorting draws would cost more than is saved. At least one sample is kept. A block computes the branch for these K alone.
    `inner` says how branches join otherwise, and at which rate they drop; its weights keep their names.

    Deviation: in Huang et al. and DeiT every sample is dropped by itself, with probability `drop`. Here a sample is dropped
    with probability 1 − K / B, which the factor fits, and with its neighbors: copies of one picture that repeated augmentation
    puts side by side drop together. A rate below half a sample drops none.
    """

    inner: Plain | LayerScale = Plain()

    @property
    def drop(self) -> float:
        return self.inner.drop

    def build(self, shape: Shape) -> FixedCountSum | ScaledSum:
        total = FixedCountSum(self.drop)
        return ScaledSum(shape.dim, self.inner.init, total) if isinstance(self.inner, LayerScale) else total


class FixedCountSum(nn.Module):
    def __init__(self, drop: float):
        super().__init__()
        self.drop = drop
        self.draws = 1 if drop > 0 else 0

    def forward(self, x_BND: Tensor, branch_BND: Tensor, draw_B: Tensor | None = None) -> Tensor:
        """The definition. It reads the branch of the chosen samples, and zero times that of the others."""
        chosen = None if draw_B is None else self.chosen(draw_B)
        if chosen is None:
            return x_BND + branch_BND
        batch, count = len(chosen.rank_B), len(chosen.samples)
        factor_B = (chosen.rank_B < count).to(x_BND.dtype) * (batch / count)
        return x_BND + branch_BND * factor_B[:, None, None]

    def chosen(self, draw_B: Tensor) -> Chosen | None:
        """The samples whose branch is read, or None for all."""
        count = count_of(len(draw_B), self.drop)
        return in_a_row(draw_B, count) if count < len(draw_B) else None


def innermost(residual: Residual) -> Residual:
    """How branches join, whichever way samples drop theirs."""
    return residual.inner if isinstance(residual, FixedCountDepth) else residual


def at_rate(residual: Residual, drop: float) -> Residual:
    """Branches that join in the same way and drop at another rate. A part of the user's has no rate of ours to set."""
    return swap(residual, (Plain, LayerScale), lambda one: replace(one, drop=drop))


Residual = Plain | LayerScale | FixedCountDepth | ResidualPart
