"""timm's models, torchvision's where timm kept their names, and the released DeiT files, whose names timm kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from frugalvit.errors import WeightsError
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.conv_stem import ConvStem
from frugalvit.nn.convnet import ConvNet
from frugalvit.nn.foreign import ForeignModel
from frugalvit.nn.model import Model
from frugalvit.nn.tokenizer import Patches
from frugalvit.weights import convnets
from frugalvit.weights.families import family
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


def names(model: Architecture) -> Iterator[tuple[str, str]]:
    """(theirs, ours), by the kind of the model; a family with names of its own has a case of its own."""
    match model:
        case ConvNet():
            return convnets.names(model)
        case ForeignModel():
            return own_names(model, "timm")
        case Model(tokenizer=ConvStem() as tokenizer):
            return hybrid_names(model, tokenizer)
        case Model() if (own := family(model)) is not None:
            return own.names(model)
        case _:
            return pairs(model, TIMM)


def official_names(model: Architecture) -> Iterator[tuple[str, str]]:
    """As timm's, but for families whose own repositories have others."""
    if isinstance(model, Model) and (own := family(model)) is not None:
        return own.official_names(model)
    return names(model)


def hybrid_names(model: Model, tokenizer: ConvStem) -> Iterator[tuple[str, str]]:
    """A ViT's, and those of the convolutions in front of it."""
    yield from convnets.timm_stem(tokenizer)
    for theirs, ours in pairs(replace(model, tokenizer=Patches(1, tokenizer.dim)), TIMM):
        if not ours.startswith("tokenizer."):
            yield theirs, ours


def torchvision_names(model: Architecture) -> Iterator[tuple[str, str]]:
    """torchvision's ResNets have timm's names; its other families have not."""
    if isinstance(model, ForeignModel):
        return own_names(model, "torchvision")
    assert isinstance(model, ConvNet)
    return convnets.torchvision_names(model)


def own_names(model: ForeignModel, library: str) -> Iterator[tuple[str, str]]:
    """A foreign model's own names; ours have `network.` in front."""
    if model.library != library:
        raise WeightsError(f"the model is of {model.library}. Use origin={model.library!r}.", path="origin")
    with torch.device("meta"):
        module = model.build()
    for name in module.state_dict():
        yield name.removeprefix("network."), name


def tidy(state: Mapping[str, object], model: Architecture) -> State:
    """Out of a training checkpoint, without the hidden layer that only pre-training used, and without counters."""
    found = unwrapped(state)
    match model:
        case ForeignModel():
            return found
        case ConvNet():
            return convnets.without_counters(found)
        case Model() if (own := family(model)) is not None:
            return own.tidy(found, model)
        case _:
            return without(found, "pre_logits.")


def untidy(state: Mapping[str, Tensor], model: Architecture) -> State:
    if isinstance(model, Model) and (own := family(model)) is not None:
        return own.untidy(state, model)
    return convnets.with_counters(state) if isinstance(model, ConvNet) else dict(state)
