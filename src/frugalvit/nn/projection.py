"""From tokens to queries, keys and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frugalvit.nn.kernels import ROUNDED, has_kernel, products_dtype
from frugalvit.nn.linear import product_of, stacked

LEAST = 1 << 24  # numbers in q, k and v of a batch from which `joined_thirds` pays


class Together(nn.Module):
    """q, k and v of the same tokens in one product; the rows are all of q, then k, then v, as in timm."""

    def __init__(self, maps: tuple[nn.Module, ...]):
        super().__init__()
        joined = stacked(maps)  # type: ignore[arg-type]
        self.weight, self.bias = joined.weight, joined.bias
        self.product = product_of(maps[0]) or nn.functional.linear
        plain = self.product is nn.functional.linear and self.bias is not None
        self.summed = plain and has_kernel("joined_thirds")  # by a kernel of ours: the gradient of the bias

    def forward(self, from_GND: Tensor, to_GND: Tensor, values_H11: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        many = self.summed and from_GND.is_cuda and values_H11 is None and 3 * from_GND.numel() >= LEAST
        if many and torch.is_grad_enabled() and products_dtype(from_GND) in ROUNDED:
            from frugalvit.nn.joined_thirds import Thirds

            return Thirds.apply(self.product(from_GND, self.weight, self.bias.detach()), self.bias)
        q_GND, k_GND, v_GND = self.joined(from_GND, values_H11).chunk(3, -1)
        return q_GND, k_GND, v_GND

    def joined(self, from_GND: Tensor, values_H11: Tensor | None = None) -> Tensor:
        """q, k and v of a token beside each other."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if values_H11 is None:
            return self.product(from_GND, weight, bias)
        values_D = values_H11.expand(-1, len(weight) // 3 // len(values_H11), -1).flatten()
        rows = torch.cat([values_D.new_ones(2 * len(values_D)), values_D])
        if self.product is not nn.functional.linear:  # it rounds: the weights, by definition, and not their products
            qkv_GNE = self.product(from_GND, weight, bias)
            return (qkv_GNE * rows).to(qkv_GNE.dtype)
        # a factor of the values is one of their rows, and a matrix is smaller than its product
        return self.product(from_GND, weight * rows[:, None], None if bias is None else bias * rows)


class Apart(nn.Module):
    """q of the tokens that look; k and v of the tokens that are seen."""

    def __init__(self, q: nn.Module, k: nn.Module, v: nn.Module):
        super().__init__()
        self.q = q
        self.k = k
        self.v = v

    def forward(self, from_GMD: Tensor, to_GND: Tensor, values_H11: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        v_GND = self.v(to_GND)
        if values_H11 is not None:
            v_GND = (v_GND.unflatten(-1, (len(values_H11), -1)) * values_H11[:, 0]).flatten(-2)
        return self.q(from_GMD), self.k(to_GND), v_GND
