"""From a model in full precision to one of one bit, used through change.py; and what a binary model's weights may be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from frugalvit.errors import SpecError, at
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.attention import Attention
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_block import BinaryBlock
from frugalvit.nn.binary_channels import TokenBatchNorm
from frugalvit.nn.binary_linear import Binary, BinaryMlp, CenteredSigns, FullPrecision, RealWeights, Signs, Weights
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.layers import Layer, Normalize
from frugalvit.nn.linear import Dense, Fp8
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.residual import LayerScale, Plain
from frugalvit.nn.scope import Everywhere
from frugalvit.nn.score import FixedScale
from frugalvit.spec import swap
from frugalvit.zoo.grids import transformer

A = TypeVar("A", bound=Architecture)


def with_binary_linears(model: Model) -> Model:
    """Linear maps of all blocks in one bit, each with BinaryViT's norm, shortcut and activation behind it (`Binary`).

    Nothing else changes: products inside attention, norms, GELU, tokenizer, pooling and heads stay in full precision.
    """
    layers = transformer(model, "with_binary_linears").layers
    if not any(isinstance(layer, (Block, SummaryBlock, BinaryBlock)) for layer in layers):
        raise SpecError("the model has no block whose maps could be binary.", path="model.layers")

    def changed(block: Block | SummaryBlock) -> Block | SummaryBlock:
        return swap(block, (Dense, Fp8), lambda _: Binary())

    return tried(replace(model, layers=swap(layers, (Block, SummaryBlock), changed)))


def binarized(model: Model) -> Model:
    """Every block in one bit, as BinaryViT has it (`BinaryBlock`): linear maps, and the products inside attention.

    Layer norms of blocks, between them and of heads become batch norms over tokens, and there is no GELU. Sums stay as they
    are, and tokenizer, positions, pooling and heads in full precision. Of DeiT-S it makes the first step of BinaryViT's ladder.
    """
    layers: list[Layer] = []
    for index, layer in enumerate(transformer(model, "binarized").layers):
        with at("model"), at(f"layers[{index}]"):
            layers.append(binary(layer))
    if not any(isinstance(layer, BinaryBlock) for layer in layers):
        raise SpecError("the model has no block that could be binary.", path="model.layers")
    readout = swap(model.readout, LayerNorm, lambda _: TokenBatchNorm())
    return tried(replace(model, layers=tuple(layers), readout=readout))


def binary(layer: Layer) -> Layer:
    """The layer in one bit, if it is a block; a norm between blocks as a batch norm; all else as it is."""
    if isinstance(layer, SummaryBlock):
        raise SpecError("class attention has no one-bit form here: BinaryViT has none. Join the class token before the blocks.")
    if isinstance(layer, Normalize):
        return swap(layer, LayerNorm, lambda _: TokenBatchNorm())
    if not isinstance(layer, Block):
        return layer
    if layer.dropout > 0:
        raise SpecError("dropout has no place between one-bit products. Use 0.", path="dropout")
    if not isinstance(layer.residual, (Plain, LayerScale)):
        raise SpecError(f"{type(layer.residual).__name__} cannot join binary branches. Use Plain.", path="residual")
    with at("attention"):
        attention = binary_attention(layer.attention)
    with at("mlp"):
        mlp = binary_mlp(layer.mlp)
    return BinaryBlock(attention, mlp, residual=layer.residual)


def binary_attention(attention: object) -> BinaryAttention:
    if not isinstance(attention, Attention):
        raise SpecError(f"{type(attention).__name__} has no one-bit form. Use Attention.")
    if attention.before or attention.after:
        term = type((*attention.before, *attention.after)[0]).__name__
        raise SpecError(f"BinaryAttention has no place for {term}. with_binary_linears keeps it.")
    if not isinstance(attention.scale, FixedScale):
        scale = type(attention.scale).__name__
        raise SpecError(f"BinaryAttention has no place for {scale}. with_binary_linears keeps it.", path="scale")
    if not isinstance(attention.scope, Everywhere):
        scope = type(attention.scope).__name__
        raise SpecError(f"BinaryAttention has no place for {scope}. with_binary_linears keeps it.", path="scope")
    if attention.head_dim is not None:
        raise SpecError("heads of a width of their own leave no room for shortcuts. Use none.", path="head_dim")
    return BinaryAttention(attention.heads)


def binary_mlp(mlp: object) -> BinaryMlp:
    if not isinstance(mlp, Mlp):
        raise SpecError(f"{type(mlp).__name__} has no one-bit form. Use Mlp.")
    if mlp.ratio != int(mlp.ratio):
        raise SpecError(f"{mlp.ratio} times the width: shortcuts repeat channels. Use a whole number.", path="ratio")
    return BinaryMlp(int(mlp.ratio))


def tried(model: Model) -> Model:
    """The model, if it can be built: sizes that do not fit are refused here rather than later."""
    with torch.device("meta"):
        replace(model, classes=model.classes or 1).build(seed=0)
    return model


# ------------------------------------------------------------------------------------------------ the weights of binary models


def with_real_weights(model: A) -> A:
    """Real weights on activations of one bit, under the same names: what ReActNet trains first (Liu et al. 2020, §5.1)."""
    return with_weights(model, lambda _: RealWeights())


def with_full_precision(model: Model) -> Model:
    """The real twin of a binary transformer: every sign and threshold gone, all else and all names as they are.

    The release has one too, as its model of 32 bits; the biases that its maps have there are idle before a batch norm.
    """
    if not isinstance(model, Model):
        raise SpecError(f"it is for transformers (Model), and this is {type(model).__name__}.", path="model")
    return with_weights(model, lambda _: FullPrecision())


def with_damping(model: A, damping: float) -> A:
    """Each latent weight pulled towards ± its row's scale, so that fewer change their sign to and fro (`CenteredSigns`)."""
    return with_weights(model, lambda one: one if isinstance(one, RealWeights) else replace(one, damping=damping))


def with_weights(model: A, change: Callable[[Any], Weights]) -> A:
    """The model with other weights wherever activations have one bit."""
    found: list[Weights] = []

    def changed(one: Any) -> Weights:
        found.append(one)
        return change(one)

    model = swap(model, (CenteredSigns, Signs, RealWeights), changed)
    if not found:
        raise SpecError("nothing in it has one bit. Use a binary model, or binarized(...) first.", path="model")
    return model
