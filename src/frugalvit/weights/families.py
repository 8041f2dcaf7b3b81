"""Which family a transformer belongs to, by its parts, and what timm and the released files call that family's tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.pooling import MergePatches, PoolTokens
from frugalvit.nn.scope import Windows
from frugalvit.nn.score import GatePosition
from frugalvit.nn.tokenizer import OverlappingPatches
from frugalvit.weights import cait, convit, pit, swin
from frugalvit.weights.parts import Pair
from frugalvit.weights.translate import State


def as_it_is(state: Mapping[str, Tensor], model: Model) -> State:
    return dict(state)


def nothing(model: Model) -> set[str]:
    return set()


@dataclass(frozen=True)
class Family:
    """The names of one family, and what is not renaming, with its inverse."""

    marks: frozenset[type]  # any of these parts makes a model one of the family
    names: Callable[[Model], Iterator[Pair]]
    official_names: Callable[[Model], Iterator[Pair]]
    tidy: Callable[[Mapping[str, Tensor], Model], State] = as_it_is
    untidy: Callable[[Mapping[str, Tensor], Model], State] = as_it_is
    eps: float = LayerNorm().eps  # of timm's norms
    unlike: Callable[[Model], set[str]] = nothing  # what names cannot say


FAMILIES = (
    Family(frozenset({PoolTokens, OverlappingPatches}), pit.names, pit.official_names, pit.tidy, pit.untidy),
    Family(frozenset({MergePatches, Windows}), swin.names, swin.official_names, swin.tidy, eps=1e-5, unlike=swin.unlike),
    Family(frozenset({GatePosition}), convit.names, convit.names, convit.tidy, convit.untidy),
    Family(frozenset({SummaryBlock}), cait.names, cait.names),
)


def family(model: Model) -> Family | None:
    """The family of a model, or None for one that is named as a ViT."""
    found = parts(model)
    return next((one for one in FAMILIES if one.marks & found), None)


def parts(model: Model) -> set[type]:
    """The kinds of tokenizer, layers, scopes and score terms in a model."""
    found: set[type] = {type(model.tokenizer)}
    for layer in model.layers:
        found.add(type(layer))
        if isinstance(layer, (Block, SummaryBlock)) and isinstance(layer.attention, Attention):
            found.add(type(layer.attention.scope))
            found |= {type(term) for term in (*layer.attention.before, *layer.attention.after)}
    return found
