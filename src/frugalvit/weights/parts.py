"""The name pairs that families of transformers share: patches, summary tokens, blocks, heads; and what none has a name for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frugalvit.errors import WeightsError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.layers import Join
from frugalvit.nn.linear import Dense, Fp8
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.readout import Tokens
from frugalvit.nn.residual import LayerScale, Plain, innermost
from frugalvit.nn.scope import Everywhere
from frugalvit.nn.score import FixedScale

Pair = tuple[str, str]  # theirs, ours
CLASS = {"class": "cls_token"}
HEAD = {"class": "head"}


@dataclass(frozen=True)
class Usual:
    """The kinds of parts that a family's block is made of. Others have no name, or compute something else under the same."""

    scope: type = Everywhere
    before: tuple[type, ...] = ()
    after: tuple[type, ...] = ()
    residual: type = Plain


def both(theirs: str, ours: str) -> Iterator[Pair]:
    yield f"{theirs}.weight", f"{ours}.weight"
    yield f"{theirs}.bias", f"{ours}.bias"


def patches(model: Model, kind: type, theirs: str) -> Iterator[Pair]:
    if not isinstance(model.tokenizer, kind):
        raise unnamed(model.tokenizer, "tokenizer")
    yield from both(theirs, "tokenizer")


def joined(layer: Join, index: int, names: Mapping[str, str]) -> Iterator[Pair]:
    """The summary tokens of `layers[index]`."""
    for token in layer.names:
        if token not in names:
            raise unnamed(token, f"layers[{index}]")
        yield names[token], f"layers.{index}.tokens.{token}"


def block(layer: Block | SummaryBlock, index: int, usual: Usual, theirs: str) -> Iterator[Pair]:
    """All of a block but what its attention reads and how it changes scores."""
    if (odd := odd_part(layer, usual)) is not None:
        raise unnamed(odd, f"layers[{index}]")
    ours = f"layers.{index}"
    yield from both(f"{theirs}.norm1", f"{ours}.norm1")
    yield from both(f"{theirs}.attn.proj", f"{ours}.attention.out")
    yield from both(f"{theirs}.norm2", f"{ours}.norm2")
    yield from both(f"{theirs}.mlp.fc1", f"{ours}.mlp.up")
    yield from both(f"{theirs}.mlp.fc2", f"{ours}.mlp.down")
    if usual.residual is LayerScale:
        yield f"{theirs}.gamma_1", f"{ours}.sum1.gamma"
        yield f"{theirs}.gamma_2", f"{ours}.sum2.gamma"


def odd_part(layer: Block | SummaryBlock, usual: Usual) -> object | None:
    """The first part of a block that is of another kind than usual; the attention itself where it lacks one."""
    attention = layer.attention
    if not isinstance(attention, Attention):
        return attention
    for terms, kinds in ((attention.before, usual.before), (attention.after, usual.after)):
        for place, term in enumerate(terms):
            if kinds[place : place + 1] != (type(term),):
                return term
        if len(terms) < len(kinds):
            return attention
    linear = (attention.linear, attention.query, attention.key, attention.value, getattr(layer.mlp, "linear", None))
    wanted: tuple[tuple[object, type | tuple[type, ...]], ...] = (
        (attention.scope, usual.scope),
        (attention.scale, FixedScale),
        (layer.mlp, Mlp),
        (layer.norm, LayerNorm),
        (innermost(layer.residual), usual.residual),
        *((one, (Dense, Fp8)) for one in linear if one is not None),
    )
    return next((part for part, kind in wanted if not isinstance(part, kind)), None)


def heads(model: Model, names: Mapping[str, str]) -> Iterator[Pair]:
    """The last norm, and a head for each summary token."""
    if not isinstance(model.readout, Tokens):
        raise unnamed(model.readout, "readout")
    yield from both("norm", "readout.norm")
    for head in model.readout.names:
        if head not in names:
            raise unnamed(head, "readout")
        yield from both(names[head], f"readout.heads.{head}")


def unnamed(part: object, path: str) -> WeightsError:
    what = f"'{part}'" if isinstance(part, str) else type(part).__name__
    return WeightsError(f"timm has no name for {what}, so such weights can be neither read nor written.", path=path)
