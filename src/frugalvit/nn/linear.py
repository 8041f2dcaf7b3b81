"""Linear maps over the last axis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.nn.binary_linear import Binary
from frugalvit.nn.fp8 import Product, product_here
from frugalvit.nn.init import Init, Normal, Zeros


class LinearPart(Protocol):
    """What may stand in a `linear` slot."""

    def build(self, fan_in: int, fan_out: int) -> nn.Module:
        """A module x_..I -> x_..O."""
        ...


@dataclass(frozen=True)
class Dense:
    """y = x Wᵀ + b in full precision; `bias=None` leaves b out."""

    weight: Init = Normal(0.02)
    bias: Init | None = Zeros()

    def build(self, fan_in: int, fan_out: int) -> DenseLinear:
        return DenseLinear(fan_in, fan_out, self.weight, self.bias)


class DenseLinear(nn.Linear):
    def __init__(self, fan_in: int, fan_out: int, weight: Init, bias: Init | None):
        self.inits = (weight, bias)
        super().__init__(fan_in, fan_out, bias=bias is not None)

    def reset_parameters(self) -> None:
        weight, bias = self.inits
        weight.fill(self.weight, self.in_features, self.out_features)
        if bias is not None:
            bias.fill(self.bias, self.in_features, self.out_features)


@dataclass(frozen=True)
class Fp8:
    """y = x Wᵀ + b and its gradients as products of 8-bit floats, see `nn/fp8.py`: for wide layers on Hopper GPUs and later.

    The parameters are those of `Dense`, in full precision: weights of one are weights of the other.
    """

    weight: Init = Normal(0.02)
    bias: Init | None = Zeros()

    def build(self, fan_in: int, fan_out: int) -> Fp8Linear:
        return Fp8Linear(fan_in, fan_out, self.weight, self.bias)


class Fp8Linear(DenseLinear):
    def __init__(self, fan_in: int, fan_out: int, weight: Init, bias: Init | None):
        super().__init__(fan_in, fan_out, weight, bias)
        self.product = product_here()

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input, self.weight, self.bias)


def product_of(linear: nn.Module) -> Product | None:
    """What makes y of (x, weight, bias), if a map does nothing else. A subclass may compute something else: None."""
    if type(linear) is Fp8Linear:
        return linear.product
    return nn.functional.linear if type(linear) in (nn.Linear, DenseLinear) else None


def stacked(maps: tuple[nn.Linear, ...]) -> nn.Linear:
    """One product in place of several of the same input: the rows of `maps`, one below the other."""
    first = maps[0]
    biased = first.bias is not None
    both = nn.Linear(first.in_features, sum(one.out_features for one in maps), bias=biased, device="meta")
    both.weight = nn.Parameter(torch.cat([one.weight.detach() for one in maps]))
    if biased:
        both.bias = nn.Parameter(torch.cat([one.bias.detach() for one in maps]))
    return both


def stackable(maps: tuple[nn.Module, ...]) -> bool:
    """Whether `maps` are nothing but linear maps, of one kind of product, all with a bias or all without."""
    products = {product_of(one) for one in maps}
    return len(products) == 1 and None not in products and len({getattr(one, "bias", None) is None for one in maps}) == 1


Linear = Dense | Fp8 | Binary | LinearPart  # what may stand in a `linear` slot; adding here is the whole registration
