"""From tokens to named heads of logits, and from several heads to one prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at, suggestion
from frugalvit.nn.binary_channels import TokenBatchNormalized
from frugalvit.nn.linear import Dense, Linear
from frugalvit.nn.norm import LayerNorm, Norm
from frugalvit.nn.shape import Shape


class ReadoutPart(Protocol):
    """What may stand in `Model.readout`."""

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """A module x_BND -> dict of logits_BC, with `features(x_BND)`, the dict of vectors_BD its heads read."""
        ...


@dataclass(frozen=True)
class Tokens:
    """Norm, then a linear head of its own on each named summary token (Touvron et al. 2021, §4)."""

    names: tuple[str, ...] = ("class",)
    norm: Norm = LayerNorm()
    linear: Linear = Dense()

    def build(self, shape: Shape, classes: int) -> TokenHeads:
        for name in self.names:
            if name not in shape.summary:
                raise SpecError(f"no summary token is called '{name}' here. {suggestion(name, shape.summary)}")
        if not self.names:
            raise SpecError("no head. Name at least one summary token.", path="names")
        norm = self.norm.build(shape)
        heads = nn.ModuleDict({name: self.linear.build(shape.dim, classes) for name in self.names})
        return TokenHeads(norm, heads, tuple(shape.summary.index(name) for name in self.names))


class TokenHeads(nn.Module):
    def __init__(self, norm: nn.Module, heads: nn.ModuleDict, places: tuple[int, ...]):
        super().__init__()
        self.norm = norm
        self.heads = heads
        self.places = places

    def features(self, x_BND: Tensor) -> dict[str, Tensor]:
        """The normalized token that each head reads. Where the norm is per token, the others need none."""
        among_all = isinstance(self.norm, TokenBatchNormalized)
        x_BSD = self.norm(x_BND if among_all else x_BND[:, : max(self.places) + 1])
        return {name: x_BSD[:, place] for name, place in zip(self.heads, self.places, strict=True)}

    def forward(self, x_BND: Tensor) -> dict[str, Tensor]:
        return {name: self.heads[name](x_BD) for name, x_BD in self.features(x_BND).items()}


@dataclass(frozen=True)
class Mean:
    """Norm, then a linear head on the mean of the patches: Swin; summary tokens, if any, are left aside."""

    names: tuple[str, ...] = ("class",)
    norm: Norm = LayerNorm()
    linear: Linear = Dense()

    def build(self, shape: Shape, classes: int) -> MeanHeads:
        if len(self.names) != 1 or not self.names[0].isidentifier():
            raise SpecError(f"{self.names}. One mean feeds one head: give it one name, such as class.", path="names")
        with at("norm"):
            norm = self.norm.build(shape)
        heads = nn.ModuleDict({name: self.linear.build(shape.dim, classes) for name in self.names})
        return MeanHeads(norm, heads, len(shape.summary))


class MeanHeads(nn.Module):
    def __init__(self, norm: nn.Module, heads: nn.ModuleDict, summary: int):
        super().__init__()
        self.norm = norm
        self.heads = heads
        self.summary = summary

    def features(self, x_BND: Tensor) -> dict[str, Tensor]:
        """The mean of the normalized patches."""
        mean_BD = self.norm(x_BND)[:, self.summary :].mean(1)
        return dict.fromkeys(self.heads, mean_BD)

    def forward(self, x_BND: Tensor) -> dict[str, Tensor]:
        return {name: self.heads[name](x_BD) for name, x_BD in self.features(x_BND).items()}


Readout = Tokens | Mean | ReadoutPart  # what may stand in `Model.readout`


@dataclass(frozen=True)
class MeanLogits:
    """The mean of the heads' logits: the released DeiT code, timm, HF; the published accuracies come from it."""

    def fuse(self, heads: Mapping[str, Tensor]) -> Tensor:
        return torch.stack(list(heads.values())).mean(0)


@dataclass(frozen=True)
class SumSoftmax:
    """The sum of the heads' softmax outputs, as the DeiT paper words it (§4), given as log-probabilities."""

    def fuse(self, heads: Mapping[str, Tensor]) -> Tensor:
        log_BC = torch.stack([one.log_softmax(-1) for one in heads.values()])
        return log_BC.logsumexp(0) - math.log(len(heads))


@dataclass(frozen=True)
class OneHead:
    """The logits of one head; the others are left aside. Its token still takes part in attention, and so do theirs."""

    name: str

    def fuse(self, heads: Mapping[str, Tensor]) -> Tensor:
        self.refuse_other(tuple(heads))
        return heads[self.name]

    def refuse_other(self, heads: tuple[str, ...]) -> None:
        """Raise unless one of the heads has its name."""
        if self.name not in heads:
            raise SpecError(f"the model has no head '{self.name}'. It has: {', '.join(heads)}.", path="name")


Fusion = MeanLogits | SumSoftmax | OneHead
RULES: dict[str, Fusion] = {"mean": MeanLogits(), "softmax": SumSoftmax()}  # what to call them in a command


def fusion_named(word: str, heads: tuple[str, ...]) -> Fusion:
    """How a model with those heads answers: by the head of that name, or by all, for `mean` and `softmax`."""
    if word not in heads and word not in RULES:
        known = f"{', '.join(heads)}; or all of them by {' or '.join(RULES)}"
        raise SpecError(f"the model has no head '{word}'. It has: {known}.")
    return OneHead(word) if word in heads else RULES[word]


def word_for(fusion: Fusion) -> str:
    """The inverse of `fusion_named`."""
    return fusion.name if isinstance(fusion, OneHead) else next(word for word, rule in RULES.items() if rule == fusion)


def is_tap(name: str) -> bool:
    """Outputs with an index, `tokens[11]`, are taps; plain words, `class`, are heads."""
    return name.endswith("]")


def fuse(outputs: Mapping[str, Tensor], rule: Fusion = MeanLogits()) -> Tensor:
    """One logits_BC from the outputs of all heads. Taps are left aside; the softmax of the result sums to one."""
    if not isinstance(outputs, Mapping) or not isinstance(rule, Fusion):
        raise SpecError("fuse takes a model's outputs, a dict of heads, and a rule such as MeanLogits() or OneHead('class').")
    heads = {name: one for name, one in outputs.items() if not is_tap(name)}
    if not heads:
        raise SpecError("there is no head among the outputs.")
    return rule.fuse(heads)
