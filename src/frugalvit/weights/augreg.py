"""AugReg's `.npz` files (Flax): the old layout of the released ViTs, and big_vision's newer one.

Flax keeps kernels as (in, out), splits attention kernels by head, and puts channels last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from frugalvit.errors import WeightsError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block
from frugalvit.nn.conv_stem import ConvStem
from frugalvit.nn.model import Model
from frugalvit.nn.tokenizer import Patches
from frugalvit.weights.convnets import augreg_stem
from frugalvit.weights.translate import Names, State, pairs, without

AUGREG = Names(
    origin="augreg",
    patches="embedding/",
    tokens={"class": "cls"},
    positions="Transformer/posembed_input/pos_embedding",
    block="Transformer/encoderblock_{}/",
    norm1="LayerNorm_0/",
    qkv="MultiHeadDotProductAttention_1/qkv/",
    out="MultiHeadDotProductAttention_1/out/",
    norm2="LayerNorm_2/",
    up="MlpBlock_3/Dense_0/",
    down="MlpBlock_3/Dense_1/",
    norm="Transformer/encoder_norm/",
    heads={"class": "head/"},
    weight="kernel",
)
QKV = ("query", "key", "value")


def names(model: Model) -> Iterator[tuple[str, str]]:
    """Norms have a `scale` where linear maps have a `kernel`; a hybrid's convolutions are named beside."""
    if isinstance(model.tokenizer, ConvStem):
        yield from augreg_stem(model.tokenizer)
        plain = names(replace(model, tokenizer=Patches(1, model.tokenizer.dim)))
        yield from ((theirs, ours) for theirs, ours in plain if not ours.startswith("tokenizer."))
        return
    for theirs, ours in pairs(model, AUGREG):
        yield theirs.replace("kernel", "scale") if "norm" in ours else theirs, ours


def tidy(state: Mapping[str, object], model: Model) -> State:
    """Flax arrays as PyTorch has them, q, k and v stacked, without the hidden layer that only pre-training used."""
    found: State = {}
    flax = without(old_layout(state), "pre_logits/")
    for name, value in flax.items():
        place, _, leaf = name.rpartition("/")
        if place.endswith(QKV):
            if place.endswith("query"):
                three = [f"{place.removesuffix('query')}{one}/{leaf}" for one in QKV]
                if missing := [one for one in three if one not in flax]:
                    raise WeightsError(f"the file has '{name}' but not '{missing[0]}'.")
                found[f"{place.removesuffix('query')}qkv/{leaf}"] = torch.cat([rows(flax[one]) for one in three])
        elif place.endswith("MultiHeadDotProductAttention_1/out") and leaf == "kernel":
            found[name] = value.flatten(0, 1).T  # H K D
        elif leaf == "kernel" and value.ndim == 4:
            found[name] = value.permute(3, 2, 0, 1)  # height, width, in, out
        elif is_group_norm(name):
            found[name] = value.flatten()  # 1 1 1 C
        elif leaf == "kernel":
            found[name] = value.T
        else:
            found[name] = value
    return found


def is_group_norm(name: str) -> bool:
    """`gn_root/scale`, `block1/unit2/gn3/bias`: the norms of a hybrid's convolutions."""
    *_, place, _ = ("", *name.split("/"))
    return place.startswith("gn")


def rows(value: Tensor) -> Tensor:
    """A query, key or value kernel (D, H, K) or bias (H, K) as rows of our matrix."""
    return value.flatten(1).T if value.ndim == 3 else value.flatten()


def untidy(state: Mapping[str, Tensor], model: Model) -> State:
    """The inverse of `tidy`, in the old layout."""
    heads = [
        layer.attention.heads for layer in model.layers if isinstance(layer, Block) and isinstance(layer.attention, Attention)
    ]
    found: State = {}
    for name, value in state.items():
        place, _, leaf = name.rpartition("/")
        if place.endswith("/qkv"):
            number = heads[int(name.split("encoderblock_")[1].split("/")[0])]
            for one, part in zip(QKV, value.chunk(3), strict=True):
                target = f"{place.removesuffix('qkv')}{one}/{leaf}"
                found[target] = part.T.unflatten(1, (number, -1)) if leaf == "kernel" else part.unflatten(0, (number, -1))
        elif place.endswith("MultiHeadDotProductAttention_1/out") and leaf == "kernel":
            number = heads[int(name.split("encoderblock_")[1].split("/")[0])]
            found[name] = value.T.unflatten(0, (number, -1))
        elif leaf == "kernel" and value.ndim == 4:
            found[name] = value.permute(2, 3, 1, 0)
        elif is_group_norm(name):
            found[name] = value[None, None, None]
        elif leaf == "kernel":
            found[name] = value.T
        else:
            found[name] = value
    return found


def old_layout(state: Mapping[str, object]) -> State:
    """big_vision's newer names as the released files have them; its prefixes `params/` and `opt/target/` are dropped."""
    found: State = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise WeightsError(f"'{name}' is {type(value).__name__}, not an array.")
        name = name.removeprefix("opt/target/").removeprefix("params/")
        if name == "pos_embedding":
            name = AUGREG.positions
        if "/MultiHeadDotProductAttention_0/" in name or "/MlpBlock_0/" in name or "/LayerNorm_1/" in name:
            name = name.replace("/MultiHeadDotProductAttention_0/", "/MultiHeadDotProductAttention_1/")
            name = name.replace("/MlpBlock_0/", "/MlpBlock_3/").replace("/LayerNorm_1/", "/LayerNorm_2/")
        found[name] = value
    return found
