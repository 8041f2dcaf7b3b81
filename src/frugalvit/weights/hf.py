"""HF transformers' ViT and DeiT: q, k and v apart.

`files` are the names in `model.safetensors` and `pytorch_model.bin`, in every version of the library. A module in
memory has other names since version 5; `modules` are those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from frugalvit.nn.layers import Join
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.weights.translate import Names, State, pairs, unwrapped, without

FILES = Names(
    origin="hf",
    patches="embeddings.patch_embeddings.projection.",
    tokens={"class": "embeddings.cls_token", "distill": "embeddings.distillation_token"},
    positions="embeddings.position_embeddings",
    block="encoder.layer.{}.",
    norm1="layernorm_before.",
    qkv="attention.attention.qkv.",
    out="attention.output.dense.",
    norm2="layernorm_after.",
    up="intermediate.dense.",
    down="output.dense.",
    norm="layernorm.",
    heads={},
)
MODULES = replace(
    FILES,
    origin="hf-module",
    block="layers.{}.",
    qkv="attention.qkv_proj.",
    out="attention.o_proj.",
    up="mlp.fc1.",
    down="mlp.fc2.",
)


def file_names(model: Model) -> Iterator[tuple[str, str]]:
    return prefixed(model, FILES)


def module_names(model: Model) -> Iterator[tuple[str, str]]:
    return prefixed(model, MODULES)


def prefixed(model: Model, names: Names) -> Iterator[tuple[str, str]]:
    """Models with a distillation token are `deit.` there, all others, plain DeiT included, `vit.`."""
    joined = [name for layer in model.layers if isinstance(layer, Join) for name in layer.names]
    prefix = "deit." if "distill" in joined else "vit."
    two = isinstance(model.readout, Tokens) and len(model.readout.names) > 1
    heads = {"class": "cls_classifier." if two else "classifier.", "distill": "distillation_classifier."}
    for theirs, ours in pairs(model, replace(names, heads=heads)):
        yield theirs if ours.startswith("readout.heads.") else prefix + theirs, ours


def tidy_file(state: Mapping[str, object], model: Model) -> State:
    return stacked(without(unwrapped(state), "vit.pooler.", "deit.pooler."), "attention.attention.", FILES_PARTS)


def untidy_file(state: Mapping[str, Tensor], model: Model) -> State:
    return split(state, "attention.attention.", FILES_PARTS)


def tidy_module(state: Mapping[str, object], model: Model) -> State:
    return stacked(without(unwrapped(state), "vit.pooler.", "deit.pooler."), "attention.", MODULES_PARTS)


def untidy_module(state: Mapping[str, Tensor], model: Model) -> State:
    return split(state, "attention.", MODULES_PARTS)


FILES_PARTS = ("query.", "key.", "value.", "qkv.")
MODULES_PARTS = ("q_proj.", "k_proj.", "v_proj.", "qkv_proj.")


def stacked(state: Mapping[str, Tensor], before: str, parts: tuple[str, str, str, str]) -> State:
    """q, k and v below each other, under the last of the `parts`, wherever all three are there."""
    q, k, v, joined = (before + part for part in parts)
    found: State = {}
    for name, value in state.items():
        three = [name.replace(q, other) for other in (q, k, v)]
        if q in name and all(one in state for one in three):
            found[name.replace(q, joined)] = torch.cat([state[one] for one in three])
        elif not ((k in name or v in name) and name.replace(k, q).replace(v, q) in state):
            found[name] = value
    return found


def split(state: Mapping[str, Tensor], before: str, parts: tuple[str, str, str, str]) -> State:
    """The inverse of `stacked`."""
    joined = before + parts[3]
    found: State = {}
    for name, value in state.items():
        if joined in name:
            for part, rows in zip(parts[:3], value.chunk(3), strict=True):
                found[name.replace(joined, before + part)] = rows
        else:
            found[name] = value
    return found
