"""Normalization of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.nn.binary_channels import TokenBatchNorm
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

    def __post_init__(self) -> None:
        if isinstance(self.eps, float) and self.eps <= 0:
            raise SpecError(f"{self.eps} under a root. Use a number above 0.", path="eps")

    def build(self, shape: Shape) -> nn.Module:
        return nn.LayerNorm(shape.dim, eps=self.eps)


@dataclass(frozen=True)
class SummaryNorm:
    """The summary tokens normalized, the patches left as they are: class attention in Lee et al.'s CaiT."""

    norm: LayerNorm = LayerNorm()

    def build(self, shape: Shape) -> NormalizedSummary:
        return NormalizedSummary(self.norm.build(shape), len(shape.summary))


class NormalizedSummary(nn.Module):
    def __init__(self, norm: nn.Module, summary: int):
        super().__init__()
        self.norm = norm
        self.summary = summary

    def forward(self, x_BND: Tensor) -> Tensor:
        return torch.cat([self.norm(x_BND[:, : self.summary]), x_BND[:, self.summary :]], dim=1)


Norm = LayerNorm | SummaryNorm | TokenBatchNorm | NormPart
