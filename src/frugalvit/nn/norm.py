"""Normalization of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import nn

from frugalvit.nn.shape import Shape


class NormPart(Protocol):
    """What may stand in a `norm` slot."""

    def build(self, shape: Shape) -> nn.Module:
        """A module x_BND -> x_BND."""
        ...


@dataclass(frozen=True)
class LayerNorm:
    """(x − mean) / sqrt(var + eps) · w + b over each token; ViT and DeiT use eps 1e-6."""

    eps: float = 1e-6

    def build(self, shape: Shape) -> nn.Module:
        return nn.LayerNorm(shape.dim, eps=self.eps)


Norm = LayerNorm | NormPart
