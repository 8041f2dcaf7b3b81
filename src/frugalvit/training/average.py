"""The moving average of the weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError


@dataclass(frozen=True)
class Ema:
    """w̄ ← d w̄ + (1 − d) w after every step; early on, d is at most (1 + t) / (10 + t), so that w̄ forgets its start."""

    decay: float = 0.99996

    def __post_init__(self) -> None:
        if isinstance(self.decay, float) and not 0 <= self.decay < 1:
            raise SpecError(f"a decay of {self.decay}. Use 0 up to below 1.", path="decay")

    def rate(self, step: int) -> float:
        return min(self.decay, (1 + step) / (10 + step))

    def within(self, total: int) -> Ema:
        return self


@dataclass(frozen=True)
class EmaOver:
    """`Ema` over a share of the training, whatever its length: of T steps, d = 1 − 1 / (share × T)."""

    share: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.share, float) and not 0 < self.share <= 1:
            raise SpecError(f"a share of {self.share}. Use a number above 0, up to 1.", path="share")

    def within(self, total: int) -> Ema:
        return Ema(max(0.0, 1 - 1 / (self.share * total)))


class Average:
    """The averaged tensors of a module, under its own names."""

    def __init__(self, spec: Ema, module: nn.Module):
        self.spec = spec
        self.tensors = {name: value.detach().clone() for name, value in module.state_dict().items()}

    @torch.no_grad()
    def update(self, module: nn.Module, step: int, finite: Tensor) -> None:
        """Move towards the module's weights; a step that was skipped (`finite` false) moves nothing."""
        share = finite * (1 - self.spec.rate(step))
        for name, value in module.state_dict().items():
            if value.is_floating_point():
                self.tensors[name].lerp_(value, share.to(value.dtype))
            else:
                self.tensors[name].copy_(value)

    @torch.no_grad()
    def move(self, module: nn.Module, share: Tensor, moved: set[str]) -> None:
        """By that share of the way, in few kernels; all but what has `moved` already."""
        own = {name: value for name, value in module.state_dict().items() if name not in moved}
        floats = [name for name, value in own.items() if value.is_floating_point()]
        if floats:
            ways = torch._foreach_sub([own[name] for name in floats], [self.tensors[name] for name in floats])
            torch._foreach_mul_(ways, share)
            torch._foreach_add_([self.tensors[name] for name in floats], ways)
        for name in own.keys() - set(floats):
            self.tensors[name].copy_(own[name])

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, value in tensors.items():
            self.tensors[name].copy_(value)
