"""Changes of a model's grid: shifted patches, pooling, and the shapes that its layers meet. Used through change.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.binary_block import BinaryBlock
from frugalvit.nn.block import Block
from frugalvit.nn.init import Init, XavierNormal
from frugalvit.nn.layers import Layer, Normalize
from frugalvit.nn.linear import Dense
from frugalvit.nn.model import Model
from frugalvit.nn.pooling import MergePatches, PoolTokens, SeparablePool, ShiftedMerge
from frugalvit.nn.shape import Shape, pair
from frugalvit.nn.t2t import Shifts, TokensToTokens
from frugalvit.nn.tokenizer import OverlappingPatches, Patches, ShiftedPatches, Tokenizer
from frugalvit.spec import swap

AROUND_BLOCKS = ("with_spt", "with_distillation", "with_mean_readout", "with_binary_linears", "binarized")
POOLING = (MergePatches, PoolTokens, SeparablePool, ShiftedMerge)


def with_spt(model: Model) -> Model:
    """Shifted patch tokenization (Lee et al. 2021, §3.1) in the tokenizer, and in pooling and merging layers, if any.

    Overlapping patches give way to shifted ones of their stride. Swin's norm behind the patches goes, since SPT has its own;
    T2T's soft splits get the shifted copies of the image as further channels, as published.
    """
    model = transformer(model, "with_spt")
    layers = swap(model.layers, (MergePatches, PoolTokens, SeparablePool), shifted_merge)
    if isinstance(layers[0], Normalize) and isinstance(model.tokenizer, Patches):
        layers = layers[1:]
    return replace(model, tokenizer=shifted_tokenizer(model.tokenizer), layers=layers)


def shifted_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    match tokenizer:
        case ShiftedPatches():
            return tokenizer
        case TokensToTokens():
            return replace(tokenizer, shifts=tokenizer.shifts or Shifts(1))
        case Patches(patch=patch) | OverlappingPatches(stride=patch):
            high, wide = pair(patch)
            if high != wide or high < 2:
                raise SpecError(
                    f"patches of {high} x {wide} have no half to shift by. Use squares of 2 and more.", path="patch"
                )
            return ShiftedPatches(high, tokenizer.dim, linear=Dense(once(tokenizer.weight), tokenizer.bias))
    raise SpecError(
        f"{type(tokenizer).__name__} makes no patches of pixels that could be shifted. SPT is for patch tokenizers.",
        path="model.tokenizer",
    )


def once(init: Init) -> Init:
    """An init for one plain matrix."""
    return XavierNormal() if isinstance(init, XavierNormal) else init


def shifted_merge(pool: MergePatches | PoolTokens | SeparablePool) -> ShiftedMerge:
    linear = pool.linear
    if isinstance(linear, Dense) and linear.bias is None:
        linear = replace(linear, bias=Dense().bias if linear == Dense(bias=None) else linear.weight)
    return ShiftedMerge(linear=linear, summary=linear)


def with_pooling(model: Model) -> Model:
    """PiT's stages (Heo et al. 2021): half the grid and twice the width after a sixth and after two thirds of the blocks.

    Heads double with the width. Where a model merges patches already, its merging gives way to PiT's pooling.
    """
    model = transformer(model, "with_pooling")
    if any(isinstance(layer, POOLING) for layer in model.layers):
        return replace(model, layers=swap(model.layers, MergePatches, lambda _: PoolTokens()))
    depth = len([layer for layer in model.layers if isinstance(layer, Block)])
    ends = {max(depth // 6, 1), max(depth * 2 // 3, 2)} - {depth}
    if not ends:
        raise SpecError(f"{depth} blocks make no stages. Use 2 and more.", path="model.layers")
    layers: list[Layer] = []
    seen, factor = 0, 1
    for layer in model.layers:
        layers.append(swap(layer, Attention, widened(factor)))
        seen += isinstance(layer, Block)
        if isinstance(layer, Block) and seen in ends:
            layers.append(PoolTokens())
            factor *= 2
    return replace(model, layers=tuple(layers))


def widened(factor: int) -> Callable[[Attention], Attention]:
    return lambda attention: replace(attention, heads=factor * attention.heads)


def transformer(model: Model, change: str) -> Model:
    """The model, if it is the description of a transformer, and one whose blocks the change can see into."""
    if not isinstance(model, Model):
        raise SpecError(f"{change} changes the description of a transformer (Model), and this is {type(model).__name__}.")
    if change not in AROUND_BLOCKS and any(isinstance(layer, BinaryBlock) for layer in model.layers):
        raise SpecError(
            "the blocks of this model are binary, and this changes parts of blocks in full precision. Make such changes first, "
            "then with_binary_linears(...).",
            path="model.layers",
        )
    return model


def shapes_of(model: Model) -> list[Shape]:
    """The shape that each layer meets, found by building without memory."""
    with torch.device("meta"):
        return replace(model, classes=model.classes or 1).build(seed=0).shapes
