"""What timm, and PiT's own repository, call the tensors of PiT (Heo et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from frugalvit.errors import WeightsError
from frugalvit.nn.block import Block
from frugalvit.nn.dropout import Drop
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.model import Model
from frugalvit.nn.pooling import PoolTokens
from frugalvit.nn.shape import pair
from frugalvit.nn.tokenizer import OverlappingPatches
from frugalvit.weights.parts import CLASS, HEAD, Pair, Usual, block, both, heads, joined, patches, unnamed
from frugalvit.weights.translate import State

TOKENS = CLASS | {"distill": "dist_token"}
HEADS = HEAD | {"distill": "head_dist"}


def names(model: Model) -> Iterator[Pair]:
    """(timm's, ours), timm's as `tidy` leaves them: a pool belongs to the stage behind it."""
    return named(model, "transformers.{after}.pool")


def official_names(model: Model) -> Iterator[Pair]:
    """(the released files', ours): pools have a list of their own."""
    return named(model, "pools.{before}")


def named(model: Model, pool: str) -> Iterator[Pair]:
    yield from patches(model, OverlappingPatches, "patch_embed.conv")
    stage, number, summary = 0, 0, False
    for index, layer in enumerate(model.layers):
        ours = f"layers.{index}"
        match layer:
            case AddPositions() if not summary:
                yield "pos_embed", f"{ours}.positions"
            case Join() if not stage and not number:
                yield from joined(layer, index, TOKENS)
                summary = True
            case PoolTokens():
                theirs = pool.format(before=stage, after=stage + 1)
                yield from both(f"{theirs}.conv", f"{ours}.convolution")
                yield from both(f"{theirs}.fc", f"{ours}.summary")
                stage, number = stage + 1, 0
            case Block():
                theirs = f"transformers.{stage}.blocks.{number}"
                yield from block(layer, index, Usual(), theirs)
                yield from both(f"{theirs}.attn.qkv", f"{ours}.attention.qkv")
                number += 1
            case Drop():
                pass  # it has no weights
            case _:
                raise unnamed(layer, f"layers[{index}]")
    yield from heads(model, HEADS)


def grid(model: Model) -> tuple[int, int]:
    """(height, width) in patches."""
    assert isinstance(model.tokenizer, OverlappingPatches)
    (high, wide), (down, right) = pair(model.tokenizer.patch), pair(model.tokenizer.stride)
    return (model.image.height - high) // down + 1, (model.image.width - wide) // right + 1


def tidy(state: Mapping[str, Tensor], model: Model) -> State:
    """Positions_1ND out of a map_1DHW, and each summary token by itself."""
    found = dict(state)
    if "pos_embed" in found and found["pos_embed"].ndim == 4 and isinstance(model.tokenizer, OverlappingPatches):
        theirs, own = (found["pos_embed"].shape[2], found["pos_embed"].shape[3]), grid(model)
        if theirs != own and theirs[0] * theirs[1] == own[0] * own[1]:  # once flattened, they could not be told apart
            raise WeightsError(f"a grid of {theirs[0]} x {theirs[1]}, the model's is {own[0]} x {own[1]}.", path="pos_embed")
        found["pos_embed"] = found["pos_embed"].flatten(2).transpose(1, 2)
    if "cls_token" in found and found["cls_token"].shape[1] == len(TOKENS):
        found |= zip(TOKENS.values(), found["cls_token"].split(1, dim=1), strict=True)
    return found


def untidy(state: Mapping[str, Tensor], model: Model) -> State:
    """The inverse of `tidy`."""
    found = dict(state)
    if "pos_embed" in found:
        found["pos_embed"] = found["pos_embed"].transpose(1, 2).unflatten(2, grid(model)).contiguous()
    found["cls_token"] = torch.cat([found.pop(name) for name in TOKENS.values() if name in found], dim=1)
    return found
