"""The layers of a model that are not blocks, and the list of all that may stand in `Model.layers`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.binary_block import BinaryBlock
from frugalvit.nn.binary_merge import BinaryMerge, RealMerge
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.dropout import Drop
from frugalvit.nn.init import Init, Normal
from frugalvit.nn.norm import LayerNorm, Norm
from frugalvit.nn.pooling import MergePatches, PoolTokens, SeparablePool, ShiftedMerge
from frugalvit.nn.shape import Shape


class LayerPart(Protocol):
    """What may stand in `Model.layers`."""

    def build(self, shape: Shape) -> tuple[nn.Module, Shape]:
        """A module x_BND -> x_BND and the shape it leaves behind.

        A module that decides at random has an integer `draws` and takes that many rows: (x_BND, draws_RB | None).
        """
        ...


@dataclass(frozen=True)
class Join:
    """Learned summary tokens in front of the patches, in this order: class, then distill (Touvron et al. 2021, §4)."""

    names: tuple[str, ...]
    init: Init = Normal(0.02)

    def build(self, shape: Shape) -> tuple[SummaryTokens, Shape]:
        twice = sorted({name for name in self.names if (self.names + shape.summary).count(name) > 1})
        if twice or not self.names:
            raise SpecError(f"summary tokens {self.names} join {shape.summary}. Give each its own name, and at least one.")
        for name in self.names:
            if not name.isidentifier() or hasattr(nn.ParameterDict, name) or hasattr(nn.ModuleDict, name):
                raise SpecError(f"'{name}' cannot name a token. Use a word such as class or distill.", path="names")
        return SummaryTokens(self.names, shape.dim, self.init), replace(shape, summary=self.names + shape.summary)


class SummaryTokens(nn.Module):
    def __init__(self, names: tuple[str, ...], dim: int, init: Init):
        super().__init__()
        self.tokens = nn.ParameterDict({name: torch.empty(1, 1, dim) for name in names})
        for token in self.tokens.values():
            init.fill(token, dim, dim)

    def forward(self, x_BND: Tensor) -> Tensor:
        tokens = [token.expand(x_BND.shape[0], -1, -1) for token in self.tokens.values()]
        return torch.cat([*tokens, x_BND], dim=1)


@dataclass(frozen=True)
class AddPositions:
    """A learned vector added to each token at this place, summary tokens included (Dosovitskiy et al. 2021, eq. 1)."""

    init: Init = Normal(0.02)

    def build(self, shape: Shape) -> tuple[LearnedPositions, Shape]:
        return LearnedPositions(shape, self.init), shape


class LearnedPositions(nn.Module):
    def __init__(self, shape: Shape, init: Init):
        super().__init__()
        self.shape = shape  # the summary rows come first, then the grid row by row
        self.positions = nn.Parameter(torch.empty(1, shape.length, shape.dim))
        init.fill(self.positions, shape.dim, shape.dim)

    def forward(self, x_BND: Tensor) -> Tensor:
        return x_BND + self.positions


@dataclass(frozen=True)
class AddSinusoid:
    """Fixed sines and cosines added to each token by its number (Vaswani et al. 2017, §3.5; T2T)."""

    def build(self, shape: Shape) -> tuple[FixedPositions, Shape]:
        return FixedPositions(shape), shape


class FixedPositions(nn.Module):
    positions_1ND: Tensor

    def __init__(self, shape: Shape):
        super().__init__()
        channel_D = torch.arange(shape.dim)
        wave_D = 10000.0 ** (-2.0 * (channel_D // 2).double() / shape.dim)
        angle_ND = torch.arange(shape.length)[:, None] * wave_D
        positions_ND = torch.where(channel_D % 2 == 0, angle_ND.sin(), angle_ND.cos()).to(torch.get_default_dtype())
        self.register_buffer("positions_1ND", positions_ND[None], persistent=False)

    def forward(self, x_BND: Tensor) -> Tensor:
        return x_BND + self.positions_1ND.to(x_BND.dtype)


@dataclass(frozen=True)
class Normalize:
    """A norm between other layers: behind Swin's patches."""

    norm: Norm = LayerNorm()

    def build(self, shape: Shape) -> tuple[nn.Module, Shape]:
        with at("norm"):
            return self.norm.build(shape), shape


# what may stand in `Model.layers`; adding here is the whole registration
Layer = (
    Join
    | AddPositions
    | AddSinusoid
    | Normalize
    | Drop
    | Block
    | SummaryBlock
    | MergePatches
    | PoolTokens
    | SeparablePool
    | ShiftedMerge
    | BinaryBlock
    | BinaryMerge
    | RealMerge
    | LayerPart
)
