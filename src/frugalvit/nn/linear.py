"""Linear maps over the last axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from frugalvit.nn.init import Init, Normal, Zeros


class LinearPart(Protocol):
    """What may stand in a `linear` slot."""

    def build(self, fan_in: int, fan_out: int) -> nn.Module:
        """A module x_..I -> x_..O."""
        ...


@dataclass(frozen=True)
class Dense:
    """y = x Wᵀ + b in full precision."""

    weight: Init = Normal(0.02)
    bias: Init = Zeros()

    def build(self, fan_in: int, fan_out: int) -> DenseLinear:
        return DenseLinear(fan_in, fan_out, self.weight, self.bias)


class DenseLinear(nn.Linear):
    def __init__(self, fan_in: int, fan_out: int, weight: Init, bias: Init):
        self.inits = (weight, bias)
        super().__init__(fan_in, fan_out)

    def reset_parameters(self) -> None:
        weight, bias = self.inits
        weight.fill(self.weight, self.in_features, self.out_features)
        bias.fill(self.bias, self.in_features, self.out_features)


def stacked(maps: tuple[nn.Linear, ...]) -> nn.Linear:
    """One product in place of several of the same input: the rows of `maps`, one below the other."""
    first = maps[0]
    both = nn.Linear(first.in_features, sum(one.out_features for one in maps), device="meta")
    both.weight = nn.Parameter(torch.cat([one.weight.detach() for one in maps]))
    both.bias = nn.Parameter(torch.cat([one.bias.detach() for one in maps]))
    return both


Linear = Dense | LinearPart  # what may stand in a `linear` slot; adding here is the whole registration
