"""Dropout (Srivastava et al. 2014) whose mask is a function of one draw a sample, so that modules hold no randomness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugalvit.nn.residual import refuse_rate
from frugalvit.nn.shape import Shape


def dropped(x_BND: Tensor, draw_B: Tensor | None, rate: float) -> Tensor:
    """x · m / (1 − rate), m_bi = [hash(draw_b, i) ≥ rate] for the i-th number of sample b; all of x without a draw."""
    if draw_B is None:
        return x_BND
    return torch.where(kept(draw_B, x_BND.shape[1:], rate), x_BND * (1.0 / (1.0 - rate)), 0.0)


def kept(draw_B: Tensor, size: Sequence[int], rate: float) -> Tensor:
    """m as booleans. The hash is 32 bits of integer arithmetic, the same on every device: rates count in steps of 2⁻³²."""
    bits_B = draw_B.to(torch.float32).view(torch.int32)
    place_I = torch.arange(math.prod(size), dtype=torch.int32, device=draw_B.device)
    hash_BI = mixed(folded(mixed(bits_B))[:, None] ^ folded(mixed(place_I)))
    least = min(round(rate * 2**32), 2**32 - 1) - 2**31  # int32 counts from −2³¹
    return (hash_BI >= least).unflatten(1, tuple(size))


def mixed(bits: Tensor) -> Tensor:
    """A bijection of int32, which wraps, whose high bits depend on all bits (odd factors of C. Wellons, hash-prospector)."""
    return folded(bits * 0x21F0AAAD) * (0xD35A2D97 - 2**32)


def folded(bits: Tensor) -> Tensor:
    """The high half into the low one. `>>` copies the sign, `&` takes the copies off."""
    return bits ^ (bits >> 16 & 0xFFFF)


@dataclass(frozen=True)
class Drop:
    """Dropout of all tokens at this place: the original ViT has it behind the positions."""

    rate: float

    def __post_init__(self) -> None:
        refuse_rate(self.rate, "rate")

    def build(self, shape: Shape) -> tuple[Dropout, Shape]:
        return Dropout(self.rate), shape


class Dropout(nn.Module):
    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate
        self.draws = 1 if rate > 0 else 0

    def forward(self, x_BND: Tensor, draws_RB: Tensor | None = None) -> Tensor:
        return dropped(x_BND, None if draws_RB is None else draws_RB[0], self.rate)
