"""Functions from model to model: what every architecture can be given. They compose; what a model has already is left alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.fp8 import PRODUCTS, TILE
from frugalvit.nn.init import Identity
from frugalvit.nn.layers import Join, Layer
from frugalvit.nn.linear import Dense, Fp8
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Mean, Tokens
from frugalvit.nn.residual import FixedCountDepth, LayerScale, Plain, at_rate, innermost
from frugalvit.nn.scope import Everywhere, PatchesOnly, SummaryOnly, Windows
from frugalvit.nn.score import GatePosition, HideSelf, LearnedScale, MixHeads, ScoreTerm
from frugalvit.nn.shape import Size, pair
from frugalvit.nn.t2t import TokensToTokens
from frugalvit.spec import check, swap
from frugalvit.zoo.binarize import binarized, with_binary_linears
from frugalvit.zoo.grids import POOLING, shapes_of, transformer, with_pooling, with_spt

__all__ = [
    "binarized",
    "resized",
    "with_binary_linears",
    "with_class_attention",
    "with_classes",
    "with_distillation",
    "with_fixed_count_depth",
    "with_fp8_linears",
    "with_gpsa",
    "with_layer_scale",
    "with_lsa",
    "with_mean_readout",
    "with_pooling",
    "with_spt",
    "with_talking_heads",
    "with_windows",
]

# ------------------------------------------------------------------------------------------------ tokens and heads


def with_distillation(model: Model) -> Model:
    """A token that learns from a teacher: it joins behind the class token and has a head of its own (DeiT, §4)."""
    places = [
        join for join in transformer(model, "with_distillation").layers if isinstance(join, Join) and "class" in join.names
    ]
    if not places or not isinstance(model.readout, Tokens):
        raise SpecError(
            "a distillation token joins where the class token does, and this model has none. with_class_attention(...) gives "
            "it one.",
            path="model.layers",
        )
    if "distill" in places[0].names:
        raise SpecError("the model has a distillation token already.", path="model.layers")
    layers = swap(model.layers, Join, lambda join: replace(join, names=behind_class(join.names)))
    return replace(model, layers=layers, readout=replace(model.readout, names=behind_class(model.readout.names)))


def behind_class(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for name in names for one in ((name, "distill") if name == "class" else (name,)))


def with_class_attention(model: Model, depth: int | None = None) -> Model:
    """The summary tokens join behind the last block, and `depth` blocks, two by default, of class attention (CaiT, §3).

    A model that reads the mean of its patches gets a class token to read instead. Heads, norms and linear maps are those of
    the last block; nothing is dropped there, as in CaiT.
    """
    model = transformer(model, "with_class_attention")
    if depth is not None and depth < 1:
        raise SpecError(f"{depth} blocks of class attention leave the class token as it joined. Use 1 and more.", path="depth")
    if any(isinstance(layer, SummaryBlock) for layer in model.layers):
        refuse_again(depth, "class attention", "depth")
        return model
    last = blocks_of(model)[-1]
    attention = swap(last.attention, Attention, lambda one: replace(one, scope=SummaryOnly(), before=(), after=(), value=None))
    joins = [layer for layer in model.layers if isinstance(layer, Join)]
    join = replace(joins[0], names=tuple(name for one in joins for name in one.names)) if joins else Join(("class",))
    if not isinstance(attention, Attention):  # a skip around attention adds patches to summary tokens
        attention = attention.inner
    residual = at_rate(last.residual, 0.0)
    if isinstance(residual, FixedCountDepth):
        residual = replace(residual, first=0.0)
    looks = SummaryBlock(attention, last.mlp, last.norm, residual)
    layers = (*(layer for layer in model.layers if not isinstance(layer, Join)), join, *(looks,) * (depth or 2))
    readout = model.readout
    if isinstance(readout, Mean):
        readout = Tokens(readout.names, readout.norm, readout.linear)
    return replace(model, layers=layers, readout=readout)


def refuse_again(value: object, what: str, path: str) -> None:
    if value is not None:
        raise SpecError(f"the model has {what} already, so {value} would change nothing. Leave it out.", path=path)


def with_mean_readout(model: Model) -> Model:
    """The mean of the patches instead of a class token, which leaves the model."""
    model = transformer(model, "with_mean_readout")
    readout = model.readout
    if isinstance(readout, Mean):
        return model
    if any(isinstance(layer, SummaryBlock) for layer in model.layers):
        raise SpecError(
            "class attention makes the class token, which a mean of the patches would not read.", path="model.readout"
        )
    if not isinstance(readout, Tokens) or readout.names != ("class",):
        raise SpecError(
            f"heads {model.heads}: a mean feeds the class head, and a token of its own feeds each other one. Take the "
            "distillation token away.",
            path="model.readout",
        )
    layers = tuple(layer for layer in model.layers if not isinstance(layer, Join))
    return replace(model, layers=layers, readout=Mean(("class",), readout.norm, readout.linear))


# ------------------------------------------------------------------------------------------------ attention and blocks


def with_lsa(model: Model) -> Model:
    """Locality self-attention (Lee et al. 2021, §3.2): a learned temperature per head, and no token sees itself.

    Class attention has queries that are not its keys: it learns the temperature and hides nothing, as published. The mask is
    before the softmax: what stands after it, a mixture's bias or a position gate, may show a token to itself again.
    """
    return swap(transformer(model, "with_lsa"), (Attention, TokensToTokens), localized)


def localized(part: Attention | TokensToTokens) -> Attention | TokensToTokens:
    before = (*(term for term in part.before if term != HideSelf()), HideSelf())
    if isinstance(part, Attention) and isinstance(part.scope, (SummaryOnly, PatchesOnly)):
        before = part.before
    return replace(part, scale=LearnedScale(), before=before)


def with_talking_heads(model: Model) -> Model:
    """Heads mixed before and after the softmax (CaiT, §4). Class attention keeps its heads apart, as published."""

    def talking(attention: Attention) -> Attention:
        if isinstance(attention.scope, (SummaryOnly, PatchesOnly)):
            return attention
        before = attention.before if mixes(attention.before) else (MixHeads(), *attention.before)
        after = attention.after if mixes(attention.after) else (MixHeads(), *attention.after)
        return replace(attention, before=before, after=after)

    return replace(model, layers=swap(transformer(model, "with_talking_heads").layers, Attention, talking))


def mixes(terms: tuple[ScoreTerm, ...]) -> bool:
    return any(isinstance(term, MixHeads) for term in terms)


def with_layer_scale(model: Model, init: float | None = None) -> Model:
    """A learned factor per channel on every branch (CaiT, §2), at first 0.1 up to 18 blocks, 1e-5 up to 24, 1e-6 beyond."""
    depth = len(blocks_of(transformer(model, "with_layer_scale")))
    if init is not None and any(isinstance(innermost(block.residual), LayerScale) for block in blocks_of(model)):
        refuse_again(init, "LayerScale", "init")
    first = init if init is not None else 0.1 if depth <= 18 else 1e-5 if depth <= 24 else 1e-6
    return replace(model, layers=swap(model.layers, Plain, lambda plain: LayerScale(first, plain.drop)))


def with_fixed_count_depth(model: Model) -> Model:
    """Stochastic depth that keeps a fixed count of a batch's samples and computes no others, as in DINOv2's code.

    Nothing else changes: rates, draws, weights and evaluation are those of the model. It trains a little differently, see
    `FixedCountDepth`.
    """
    if not any(getattr(block.residual, "drop", 0.0) for block in blocks_of(transformer(model, "with_fixed_count_depth"))):
        raise SpecError(
            "no block drops a branch, so there is nothing to skip. Set drop_path=0.1, or another rate.", path="model.layers"
        )
    numbers = itertools.count()
    return replace(model, layers=swap(model.layers, (Block, SummaryBlock), lambda block: counted(block, next(numbers))))


def counted(block: Block | SummaryBlock, number: int) -> Block | SummaryBlock:
    """Steps of the golden ratio spread the places where samples begin, however many blocks there are."""
    residual = block.residual
    if not isinstance(residual, (Plain, LayerScale)):
        return block
    first = round(number * (math.sqrt(5) - 1) / 2 % 1, 4) if residual.drop else 0.0
    return replace(block, residual=FixedCountDepth(residual, first))


def with_fp8_linears(model: Model) -> Model:
    """Linear maps of all blocks as products of 8-bit floats, forward and backward: for wide models on Hopper GPUs and later.

    Weights keep their names, shapes and precision. Tokenizer, pooling and heads stay as they are, and so do the products
    inside attention. It trains a little differently, see `nn/fp8.py`.
    """
    layers = transformer(model, "with_fp8_linears").layers
    changed = replace(model, layers=swap(layers, (Block, SummaryBlock), lambda block: swap(block, Dense, eight_bit)))
    with torch.device("meta"):
        module = replace(changed, classes=model.classes or 1).build(seed=0)
    for index, layer in enumerate(module.layers):
        for name, part in layer.named_modules():
            if getattr(part, "product", None) in PRODUCTS:
                refuse_untiled(name, part.weight, f"model.layers[{index}]")
    return changed


def eight_bit(dense: Dense) -> Fp8:
    return Fp8(dense.weight, dense.bias)


def refuse_untiled(name: str, weight_OI: Any, path: str) -> None:
    fan_out, fan_in = weight_OI.shape
    if fan_in % TILE or fan_out % TILE:
        raise SpecError(
            f"{name} maps {fan_in} features to {fan_out}, and GPUs multiply 8-bit floats in multiples of {TILE}. Use a model "
            "whose width, heads times their width, and MLP's width are such.",
            path=path,
        )


def with_gpsa(model: Model, local: int | None = None, strength: float | None = None) -> Model:
    """Gated positional attention (ConViT) in the first `local` blocks, and summary tokens that join behind them.

    By default these are the blocks on patches alone, see `patches_first`. Blocks with shifted windows stay as they are,
    because a gate would show what the shift hides. Values start as the tokens themselves where widths allow.
    """
    if any(GatePosition in map(type, one.after) for one in attentions_of(transformer(model, "with_gpsa").layers)):
        refuse_again(local, "GPSA", "local")
        refuse_again(strength, "GPSA", "strength")
    strength = 1.0 if strength is None else strength
    model, count = patches_first(model, local)
    layers = list(model.layers)
    places = [place for place, layer in enumerate(layers) if isinstance(layer, Block)]
    for place in places[:count]:
        layer = layers[place]
        layers[place] = replace(layer, attention=swap(layer.attention, Attention, lambda one: gated(one, strength)))  # type: ignore
    return replace(model, layers=tuple(layers))


def patches_first(model: Model, count: int | None = None) -> tuple[Model, int]:
    """The model with its first `count` blocks on patches alone: summary tokens join behind them. Also that count.

    By default the tokens stay where they are if they join behind a block; else they join before the last two, as in ConViT.
    """
    layers = model.layers
    joins = [layer for layer in layers if isinstance(layer, Join)]
    blocks = len([layer for layer in layers if isinstance(layer, Block)])
    free = not joins or any(isinstance(layer, SummaryBlock) for layer in layers)  # no token joins among the blocks
    before = blocks if free else len([layer for layer in layers[: layers.index(joins[0])] if isinstance(layer, Block)])
    count = count if count is not None else before or blocks - 2
    if not 0 < count <= (blocks if free else blocks - 1):
        most, why = (blocks, "") if free else (blocks - 1, ": one at least comes behind them, for the summary tokens")
        raise SpecError(f"{count} of {blocks} blocks on patches alone. Use 1 to {most}{why}.", path="local")
    if count <= before:
        return model, count
    rest = [layer for layer in layers if not isinstance(layer, Join)]
    place = [index for index, layer in enumerate(rest) if isinstance(layer, Block)][count - 1] + 1
    return replace(model, layers=(*rest[:place], *joins, *rest[place:])), count


def gated(attention: Attention, strength: float) -> Attention:
    shifted_window = isinstance(attention.scope, Windows) and attention.scope.shift
    if shifted_window or any(isinstance(term, GatePosition) for term in attention.after):
        return attention
    values = attention.value or attention.linear
    if isinstance(values, (Dense, Fp8)) and attention.head_dim is None:
        values = replace(values, weight=Identity())
    return replace(attention, after=(*attention.after, GatePosition(strength)), value=values)


def with_windows(model: Model, side: int) -> Model:
    """Attention inside windows of side x side patches, shifted by half a window in every second block (Swin, §3.2).

    Windows are for blocks on patches alone: summary tokens join behind them, see `patches_first`. Grids no larger than a window
    see everything as before; blocks with GatePosition get windows that do not shift.
    """
    model, count = patches_first(transformer(model, "with_windows"))
    shapes = shapes_of(model)
    layers = list(model.layers)
    index = 0  # of a block in its stage
    for place, layer in enumerate(model.layers):
        if isinstance(layer, POOLING):
            index = 0
        elif isinstance(layer, Block) and count > 0:
            shape = shapes[place]
            if min(shape.height, shape.width) > side:
                change = windowed(side, side // 2 * (index % 2))
                layers[place] = replace(layer, attention=swap(layer.attention, Attention, change))
            index += 1
            count -= 1
    there = [one.scope.side for one in attentions_of(layers) if isinstance(one.scope, Windows)]
    if tuple(layers) == model.layers and side not in there:
        raise SpecError(f"no grid without windows is larger than {side} x {side}. Use smaller windows.", path="side")
    return replace(model, layers=tuple(layers))


def windowed(side: int, shift: int) -> Callable[[Attention], Attention]:
    def change(attention: Attention) -> Attention:
        if not isinstance(attention.scope, Everywhere):
            return attention
        still = any(isinstance(term, GatePosition) for term in attention.after)
        return replace(attention, scope=Windows(side, 0 if still else shift))

    return change


def resized(model: Any, image: Size) -> Any:
    """The same model for images of another size. Weights follow when they are loaded: their positions are resampled."""
    check(image, Size)
    height, width = pair(image)
    return replace(model, image=replace(model.image, height=height, width=width))


def with_classes(model: Any, classes: int) -> Any:
    """The same model for another number of classes."""
    return replace(model, classes=classes)


# ------------------------------------------------------------------------------------------------ looking


def blocks_of(model: Model) -> list[Block | SummaryBlock]:
    found = [layer for layer in model.layers if isinstance(layer, (Block, SummaryBlock))]
    if not found:
        raise SpecError("the model has no block.", path="model.layers")
    return found


def attentions_of(layers: Iterable[Layer]) -> list[Attention]:
    """Every attention in the layers."""
    found: list[Attention] = []
    swap(tuple(layers), Attention, lambda attention: found.append(attention) or attention)  # type: ignore[func-returns-value]
    return found
