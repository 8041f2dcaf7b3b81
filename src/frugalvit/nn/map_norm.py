"""Norms over feature maps, between convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, group_norm
from torch.nn.modules.batchnorm import _BatchNorm

from frugalvit.errors import SpecError
from frugalvit.nn.init import Init


class MapNormPart(Protocol):
    """What may stand in a `norm` slot between convolutions."""

    def build(self, channels: int, scale: Init) -> nn.Module:
        """A module x_BCHW -> x_BCHW; `scale` fills its factor a channel."""
        ...


@dataclass(frozen=True)
class BatchNorm:
    """Each channel over batch and places (Ioffe & Szegedy 2015), its statistics remembered for evaluation.

    They move by `momentum` of the way to each batch's. Where the scale does not learn, they stay as they are.
    """

    eps: float = 1e-5
    momentum: float = 0.1

    def __post_init__(self) -> None:
        refuse_eps(self.eps)
        if isinstance(self.momentum, float) and not 0.0 < self.momentum <= 1.0:
            raise SpecError(f"{self.momentum} of the way to each batch. Use a number above 0, up to 1.", path="momentum")

    def build(self, channels: int, scale: Init) -> BatchNormalized:
        return BatchNormalized(channels, self.eps, self.momentum, scale)


@dataclass(frozen=True)
class GroupNorm:
    """Each picture's channels in `groups`, over their places (Wu & He 2018): nothing to remember."""

    groups: int = 32
    eps: float = 1e-5

    def __post_init__(self) -> None:
        refuse_eps(self.eps)

    def build(self, channels: int, scale: Init) -> GroupNormalized:
        if self.groups < 1 or channels % self.groups:
            raise SpecError(f"{self.groups} groups do not divide {channels} channels. Use another number.", path="groups")
        return GroupNormalized(channels, self.groups, self.eps, scale)


MapNorm = BatchNorm | GroupNorm | MapNormPart


def refuse_eps(eps: float) -> None:
    if isinstance(eps, float) and eps <= 0:
        raise SpecError(f"{eps} under a root. Use a number above 0.", path="eps")


def keep_frozen_statistics(module: nn.Module) -> None:
    """Let torch's batch norms of which nothing learns go by the statistics that they have, as `BatchNorm` does."""
    for part in module.modules():
        own = [*part.parameters(recurse=False)]
        if isinstance(part, _BatchNorm) and own and not any(one.requires_grad for one in own):
            part.eval()


class GroupNormalized(nn.Module):
    def __init__(self, channels: int, groups: int, eps: float, scale: Init):
        super().__init__()
        self.groups = groups
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        scale.fill(self.weight, channels, channels)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return group_norm(x_BCHW, self.groups, self.weight, self.bias, self.eps)


class BatchNormalized(nn.Module):
    def __init__(self, channels: int, eps: float, momentum: float, scale: Init):
        super().__init__()
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        scale.fill(self.weight, channels, channels)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        learning = self.training and self.weight.requires_grad
        if learning and x_BCHW.numel() == x_BCHW.shape[1]:
            raise SpecError(
                "one picture on maps of 1 x 1 has no variance to divide by. Use batches of 2 and more, or larger images.",
                path="batch",
            )
        mean_C, var_C = self.running_mean, self.running_var
        return batch_norm(x_BCHW, mean_C, var_C, self.weight, self.bias, learning, self.momentum, self.eps)
