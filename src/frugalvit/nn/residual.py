"""How a branch joins the stream of tokens, with stochastic depth (Huang et al. 2016)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.fixed_depth import Kept, kept_of
from frugalvit.nn.shape import Shape
from frugalvit.spec import swap


class ResidualPart(Protocol):
    """What may stand in a `residual` slot."""

    def build(self, shape: Shape) -> nn.Module:
        """A module (x_BND, branch_BND, draw_B | None) -> x_BND; its `draws` says whether it reads a row (1) or none (0).

        Give it `kept(batch) -> Kept | None` if it adds the branch of some samples alone: a block computes no others, and
        multiplies the branch by their factor itself.
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

    def kept(self, batch: int) -> None:
        """All samples: which are kept is known on the device alone."""


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

    def kept(self, batch: int) -> Kept | None:
        return self.sum.kept(batch)


@dataclass(frozen=True)
class FixedCountDepth:
    """x + branch · m · B / K, m = 1 for K = round(B · (1 − drop)) of B samples and both branches (after DINOv2's code).

    The K samples follow each other, from the share `first` of the batch on and around its end: pictures come in random order,
    so they are random ones, and different shares in different blocks make it different ones. At least one sample is kept. A
    block computes these K alone. `inner` says how branches join otherwise, and at which rate they drop; its weights keep
    their names.

    Deviation: in Huang et al. and DeiT every sample drops each branch by itself, with probability `drop`. Here a sample drops
    both branches of a block or none, with probability 1 − K / B, which the factor fits, and with its neighbors: copies of one
    picture that repeated augmentation puts side by side drop together. A rate below half a sample drops none.
    """

    inner: Plain | LayerScale = Plain()
    first: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.first, (int, float)) and not 0.0 <= self.first < 1.0:
            raise SpecError(f"{self.first} is no share of a batch. Use 0 to 0.99.", path="first")

    @property
    def drop(self) -> float:
        return self.inner.drop

    def build(self, shape: Shape) -> FixedCountSum | ScaledSum:
        total = FixedCountSum(self.drop, self.first)
        return ScaledSum(shape.dim, self.inner.init, total) if isinstance(self.inner, LayerScale) else total


class FixedCountSum(nn.Module):
    def __init__(self, drop: float, first: float):
        super().__init__()
        self.drop = drop
        self.first = first
        self.draws = 1 if drop > 0 else 0  # whose presence alone counts: a batch with draws is one to train on

    def forward(self, x_BND: Tensor, branch_BND: Tensor, draw_B: Tensor | None = None) -> Tensor:
        """The definition, for a whole batch."""
        kept = None if draw_B is None else self.kept(len(draw_B))
        if kept is None:
            return x_BND + branch_BND
        return x_BND + branch_BND * (kept.mask_B(x_BND) * kept.factor)[:, None, None]

    def kept(self, batch: int) -> Kept | None:
        """The samples whose branch is read, or None for all."""
        return kept_of(batch, self.drop, self.first)


def innermost(residual: Residual) -> Residual:
    """How branches join, whichever way samples drop theirs."""
    return residual.inner if isinstance(residual, FixedCountDepth) else residual


def at_rate(residual: Residual, drop: float) -> Residual:
    """Branches that join in the same way and drop at another rate. A part of the user's has no rate of ours to set."""
    return swap(residual, (Plain, LayerScale), lambda one: replace(one, drop=drop))


Residual = Plain | LayerScale | FixedCountDepth | ResidualPart
