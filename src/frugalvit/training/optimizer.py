"""Optimizers, and which parameters they decay, slow down or leave alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from frugalvit.errors import SpecError
from frugalvit.nn.network import Network


def refuse_rates(lr: float, weight_decay: float) -> None:
    if isinstance(lr, float) and lr <= 0:
        raise SpecError(f"a learning rate of {lr}. Use a number above 0.", path="lr")
    if isinstance(weight_decay, float) and weight_decay < 0:
        raise SpecError(f"a decay of {weight_decay}. Use 0 and more.", path="weight_decay")


@dataclass(frozen=True)
class Matrices:
    """Matrices decay; biases, norms, positions and summary tokens do not, as in DeiT, timm and big_vision.

    Deviation: the DeiT release decays its distillation token, by an oversight of the timm version it pins.
    """

    def covers(self, name: str, parameter: nn.Parameter) -> bool:
        return parameter.ndim > 1 and not name.endswith((".bias", ".positions")) and ".tokens." not in name


@dataclass(frozen=True)
class AllParameters:
    """Everything decays, biases, norms and temperatures too, as in the release of Lee et al. (2021)."""

    def covers(self, name: str, parameter: nn.Parameter) -> bool:
        return True


Decays = Matrices | AllParameters  # what may stand in `decays`


@dataclass(frozen=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    lr: float
    per: int = 0  # pictures a step that `lr` is meant for; it grows in proportion. 0: `lr` as it is
    weight_decay: float = 0.05
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    layer_decay: float = 1.0  # each block learns this much slower than the one above it
    decays: Decays = Matrices()

    def __post_init__(self) -> None:
        refuse_rates(self.lr, self.weight_decay)

    def build(self, groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=lr, betas=self.betas, eps=self.eps, weight_decay=self.weight_decay, fused=True)


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with momentum; weight decay is added to the gradient."""

    lr: float
    per: int = 0
    weight_decay: float = 0.0
    momentum: float = 0.9
    layer_decay: float = 1.0
    decays: Decays = Matrices()

    def __post_init__(self) -> None:
        refuse_rates(self.lr, self.weight_decay)

    def build(self, groups: list[dict[str, Any]], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, fused=True)


Optimizer = AdamW | Sgd


@dataclass(frozen=True)
class Everything:
    """All parameters learn."""

    def learns(self, name: str) -> bool:
        return True


@dataclass(frozen=True)
class HeadsOnly:
    """Only the heads learn, on frozen features: a linear probe."""

    def learns(self, name: str) -> bool:
        return name.startswith("readout.heads.")


Tune = Everything | HeadsOnly


def peak_lr(optimizer: Optimizer, pictures: int) -> float:
    """The highest learning rate with so many pictures a step."""
    return optimizer.lr * pictures / optimizer.per if optimizer.per else optimizer.lr


def lr_scale(name: str, depth: int, decay: float) -> float:
    """decay^(places below the heads): tokenizer and positions 0, block i at i + 1, the readout on top."""
    if name.startswith("readout."):
        return 1.0
    block = int(name.split(".")[1]) if name.startswith("layers.") else 0
    return decay ** (depth - block)


def parameter_groups(module: Network, optimizer: Optimizer, tune: Tune) -> list[dict[str, Any]]:
    """Parameters that learn, grouped by decay and by speed; each group knows its `scale` and its parameters' names."""
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(tune.learns(name))
        if not parameter.requires_grad:
            continue
        decayed = optimizer.decays.covers(name, parameter)
        scale = lr_scale(name, len(module.layers), optimizer.layer_decay)
        group = groups.setdefault((decayed, scale), {"params": [], "names": [], "scale": scale})
        group["params"].append(parameter)
        group["names"].append(name)
        if not decayed:
            group["weight_decay"] = 0.0
    if not groups:
        raise SpecError("nothing is left to learn.", path="recipe.tune")
    return list(groups.values())
