"""What happens to attention scores: their scale, and terms before and after the softmax."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.nn.init import Init, Normal, Zeros
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
            raise SpecError(
                "HideSelf needs queries that are the keys. Leave it out here, or use the scope Everywhere or Windows."
            )
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


@dataclass(frozen=True)
class MixHeads:
    """Talking heads (Shazeer et al. 2020; Touvron et al. 2021b, §4): each head a learned mixture of all of them."""

    weight: Init = Normal(0.02)
    bias: Init | None = Zeros()

    def build(self, heads: int, queries: Shape, keys: Shape) -> HeadMixture:
        return HeadMixture(heads, self.weight, self.bias)


class HeadMixture(nn.Module):
    def __init__(self, heads: int, weight: Init, bias: Init | None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, heads))  # to, from
        weight.fill(self.weight, heads, heads)
        self.bias = nn.Parameter(torch.empty(heads)) if bias is not None else None
        if bias is not None and self.bias is not None:
            bias.fill(self.bias, heads, heads)

    def forward(self, scores_GHMN: Tensor) -> Tensor:
        mixed_GHMN = torch.einsum("gh,bhmn->bgmn", self.weight.to(scores_GHMN.dtype), scores_GHMN)
        return mixed_GHMN if self.bias is None else mixed_GHMN + self.bias[:, None, None].to(scores_GHMN.dtype)


@dataclass(frozen=True)
class RelativeBias:
    """A learned bias for each offset of a key from its query, per head (Liu et al. 2021, eq. 4)."""

    init: Init = Normal(0.02)

    def build(self, heads: int, queries: Shape, keys: Shape) -> OffsetBias:
        refuse_unplaced("RelativeBias", queries, keys)
        return OffsetBias(heads, keys, self.init)


def refuse_unplaced(name: str, queries: Shape, keys: Shape) -> None:
    """Patches have a place on a grid; summary tokens have none, and a pooled key has another one than its query."""
    if queries.summary or keys.summary:
        tokens = " and ".join(queries.summary or keys.summary)
        raise SpecError(
            f"{name} needs patches alone, and {tokens} has no place on the grid. Join it behind these blocks, as ConViT and "
            "CaiT do, or read the mean of the patches (with_mean_readout)."
        )
    if queries != keys:
        raise SpecError(f"{name} needs queries that are the keys. Use the scope Everywhere or Windows.")


class OffsetBias(nn.Module):
    index_NN: Tensor

    def __init__(self, heads: int, keys: Shape, init: Init):
        super().__init__()
        height, width = keys.height, keys.width
        self.grid = (height, width)
        self.bias = nn.Parameter(torch.empty((2 * height - 1) * (2 * width - 1), heads))  # one row an offset
        init.fill(self.bias, heads, heads)
        dx_NN, dy_NN = offsets(keys)  # of the key from the query; the table counts from the key's side, as Swin's
        index_NN = (height - 1 - dy_NN) * (2 * width - 1) + (width - 1 - dx_NN)
        self.register_buffer("index_NN", index_NN, persistent=False)

    def table(self) -> Tensor:
        """The bias_HNN of every key for every query."""
        return self.bias[self.index_NN.flatten()].T.unflatten(1, self.index_NN.shape)

    def forward(self, scores_GHNN: Tensor) -> Tensor:
        return scores_GHNN + self.table().to(scores_GHNN.dtype)


def offsets(grid: Shape) -> tuple[Tensor, Tensor]:
    """(dx_NN, dy_NN), where key j lies from query i in patches: to the right, and below."""
    place_N = torch.arange(grid.patches)
    row_N, column_N = place_N // grid.width, place_N % grid.width
    return column_N[None, :] - column_N[:, None], row_N[None, :] - row_N[:, None]


@dataclass(frozen=True)
class GatePosition:
    """GPSA (d'Ascoli et al. 2021, eq. 7): A := (1 − g) A + g softmax(w · r), g = σ(λ) and w learned per head.

    r = (dx, dy, dx² + dy²) from a query to a key. At first head h looks at one place of a square of sqrt(H) x sqrt(H)
    patches around its query, as a convolution does: w · r = −strength · |δ − Δ_h|² + constant (§3, code: local_init).
    """

    strength: float = 1.0
    gate: float = 1.0  # λ at first

    def build(self, heads: int, queries: Shape, keys: Shape) -> PositionGate:
        refuse_unplaced("GatePosition", queries, keys)
        return PositionGate(heads, keys, self.strength, self.gate)


class PositionGate(nn.Module):
    offset_3NN: Tensor

    def __init__(self, heads: int, keys: Shape, strength: float, gate: float):
        super().__init__()
        self.weight = nn.Parameter(centers(heads) * strength)  # H 3
        self.bias = nn.Parameter(torch.zeros(heads))  # cancels in the softmax; ConViT's weights have it
        self.gate_H = nn.Parameter(torch.full((heads,), float(gate)))
        dx_NN, dy_NN = offsets(keys)
        offset_3NN = torch.stack([dx_NN, dy_NN, dx_NN**2 + dy_NN**2]).float()
        self.register_buffer("offset_3NN", offset_3NN, persistent=False)

    def positional(self) -> Tensor:
        """The positional attention_HNN. It depends on no picture, so it is computed once a batch."""
        # pointwise, not a matrix product: autocast would round distances of up to hundreds to bf16
        scores_HNN = (self.weight[:, :, None, None] * self.offset_3NN).sum(1) + self.bias[:, None, None]
        return torch.softmax(scores_HNN, dim=-1)

    def share(self) -> Tensor:
        """g, the share of the positional attention, as [H, 1, 1]."""
        return torch.sigmoid(self.gate_H)[:, None, None]

    def rest(self) -> Tensor:
        """1 − g, without the cancellation: σ(−λ). Beyond λ = 30 it is 0 to any precision, and held there."""
        return torch.sigmoid(-self.gate_H.clamp(max=30.0))[:, None, None]

    def odds(self) -> Tensor:
        """g / (1 − g) = exp(λ), so that rest · odds is g."""
        return torch.exp(self.gate_H.clamp(max=30.0))[:, None, None]

    def forward(self, attention_GHNN: Tensor) -> Tensor:
        share_H11 = self.share()
        return (1 - share_H11) * attention_GHNN + share_H11 * self.positional()


def centers(heads: int) -> Tensor:
    """ConViT's first w_H3: centers on a square around the query; heads beyond a square number see no direction yet."""
    side = math.isqrt(heads)
    weight_H3 = torch.empty(heads, 3).normal_(0.0, 0.02)
    for down in range(side):
        for right in range(side):
            dx, dy = right - (side - 1) / 2, down - (side - 1) / 2
            weight_H3[down + side * right] = torch.tensor([2 * dx, 2 * dy, -1.0])
    return weight_H3


ScoreTerm = (
    HideSelf | MixHeads | RelativeBias | GatePosition | ScoreTermPart
)  # what may stand in `Attention.before` and `Attention.after`
