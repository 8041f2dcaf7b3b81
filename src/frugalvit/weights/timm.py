"""timm's ViT and DeiT, and the released DeiT files, whose names timm kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from frugalvit.nn.model import Model
from frugalvit.weights.translate import Names, State, pairs, unwrapped, without

TIMM = Names(
    origin="timm",
    patches="patch_embed.proj.",
    tokens={"class": "cls_token", "distill": "dist_token"},
    positions="pos_embed",
    block="blocks.{}.",
    norm1="norm1.",
    qkv="attn.qkv.",
    out="attn.proj.",
    norm2="norm2.",
    up="mlp.fc1.",
    down="mlp.fc2.",
    norm="norm.",
    heads={"class": "head.", "distill": "head_dist."},
)


def names(model: Model) -> Iterator[tuple[str, str]]:
    return pairs(model, TIMM)


def tidy(state: Mapping[str, object], model: Model) -> State:
    """Out of a training checkpoint, without the hidden layer that only pre-training used."""
    return without(unwrapped(state), "pre_logits.")


def untidy(state: Mapping[str, Tensor], model: Model) -> State:
    return dict(state)
