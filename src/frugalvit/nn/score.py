"""What happens to attention scores: their scale, and terms before and after the softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.nn.shape import Shape


class ScalePart(Protocol):
    """What may stand in a `scale` slot."""

    def build(self, heads: int, head_dim: int) -> nn.Module:
        """A module q_GHMK -> q_GHMK, so that scores are scale(q) kᵀ."""
        ...


@dataclass(frozen=True)
class FixedScale:
    """softmax(q kᵀ / sqrt(K)) (Vaswani et al. 2017, eq. 1)."""

    def build(self, heads: int, head_dim: int) -> FixedTemperature:
        return FixedTemperature(head_dim)


class FixedTemperature(nn.Module):
    def __init__(self, head_dim: int):
        super().__init__()
        self.factor = head_dim**-0.5

    def forward(self, q_GHMK: Tensor) -> Tensor:
        return q_GHMK * self.factor


@dataclass(frozen=True)
class LearnedScale:
    """LSA's temperature (Lee et al. 2021): softmax(q kᵀ / τ), one τ per head, learned."""

    def build(self, heads: int, head_dim: int) -> LearnedTemperature:
        return LearnedTemperature(heads, head_dim)


class LearnedTemperature(nn.Module):
    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.scale_H = nn.Parameter(torch.full((heads,), head_dim**-0.5))  # starts as plain attention

    def forward(self, q_GHMK: Tensor) -> Tensor:
        return q_GHMK * self.scale_H[:, None, None]


Scale = FixedScale | LearnedScale | ScalePart  # what may stand in `Attention.scale`


class ScoreTermPart(Protocol):
    """What may stand before and after the softmax."""

    def build(self, heads: int, queries: Shape, keys: Shape) -> nn.Module:
        """A module scores_GHMN -> scores_GHMN."""
        ...


@dataclass(frozen=True)
class HideSelf:
    """LSA's diagonal mask (Lee et al. 2021): a token's score for itself is −inf. Stands last before the softmax."""

    def build(self, heads: int, queries: Shape, keys: Shape) -> HiddenDiagonal:
        if queries != keys:
            raise SpecError("HideSelf needs queries that are the keys. Leave it out here, or use the scope Everywhere.")
        if keys.length < 2:
            raise SpecError("HideSelf on a single token leaves it nothing to see. Use smaller patches or a larger image.")
        return HiddenDiagonal(keys.length)


class HiddenDiagonal(nn.Module):
    seen_NN: Tensor

    def __init__(self, length: int):
        super().__init__()
        self.register_buffer("seen_NN", ~torch.eye(length, dtype=torch.bool), persistent=False)

    def forward(self, scores_GHNN: Tensor) -> Tensor:
        return scores_GHNN.masked_fill(~self.seen_NN, float("-inf"))


ScoreTerm = HideSelf | ScoreTermPart  # what may stand in `Attention.before` and `Attention.after`
