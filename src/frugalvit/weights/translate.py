"""Foreign names to ours and back. A foreign checkpoint is a generator of name pairs; read backwards it is an exporter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor

from frugalvit.errors import WeightsError, at
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block
from frugalvit.nn.dropout import Drop
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.nn.scope import Everywhere
from frugalvit.nn.tokenizer import Patches

State = dict[str, Tensor]


@dataclass(frozen=True)
class Names:
    """What an origin calls the places of a ViT. Each place is a module with a weight and a bias, tokens are bare."""

    origin: str
    patches: str
    tokens: Mapping[str, str]
    positions: str
    block: str  # with {} for the block's number
    norm1: str
    qkv: str
    out: str
    norm2: str
    up: str
    down: str
    norm: str
    heads: Mapping[str, str]
    weight: str = "weight"
    bias: str = "bias"


def pairs(model: Model, names: Names) -> Iterator[tuple[str, str]]:
    """(theirs, ours) for every tensor of a ViT or DeiT, in the order of the model."""
    if not isinstance(model.tokenizer, Patches):
        raise unnamed(names, model.tokenizer, "tokenizer")
    yield from both(names, names.patches, "tokenizer")
    number = 0
    for index, layer in enumerate(model.layers):
        ours = f"layers.{index}"
        match layer:
            case Join():
                for token in layer.names:
                    if token not in names.tokens:
                        raise unnamed(names, token, f"layers[{index}]")
                    yield names.tokens[token], f"{ours}.tokens.{token}"
            case AddPositions():
                yield names.positions, f"{ours}.positions"
            case Block(attention=Attention(before=(), after=(), scope=Everywhere()), mlp=Mlp()):
                theirs = names.block.format(number)
                yield from both(names, f"{theirs}{names.norm1}", f"{ours}.norm1")
                yield from both(names, f"{theirs}{names.qkv}", f"{ours}.attention.qkv")
                yield from both(names, f"{theirs}{names.out}", f"{ours}.attention.out")
                yield from both(names, f"{theirs}{names.norm2}", f"{ours}.norm2")
                yield from both(names, f"{theirs}{names.up}", f"{ours}.mlp.up")
                yield from both(names, f"{theirs}{names.down}", f"{ours}.mlp.down")
                number += 1
            case Block():
                raise unnamed(names, odd_part(layer), f"layers[{index}]")
            case Drop():
                pass  # it has no weights
            case _:
                raise unnamed(names, layer, f"layers[{index}]")
    if not isinstance(model.readout, Tokens):
        raise unnamed(names, model.readout, "readout")
    yield from both(names, names.norm, "readout.norm")
    for head in model.readout.names:
        if head not in names.heads:
            raise unnamed(names, head, "readout")
        yield from both(names, names.heads[head], f"readout.heads.{head}")


def odd_part(block: Block) -> object:
    """The part of a block that other libraries do not have."""
    attention = block.attention
    if not isinstance(attention, Attention):
        return attention
    return next(iter((*attention.before, *attention.after)), block.mlp if attention.scope == Everywhere() else attention.scope)


def both(names: Names, theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    yield theirs + names.weight, f"{ours}.weight"
    yield theirs + names.bias, f"{ours}.bias"


def unnamed(names: Names, part: object, path: str) -> WeightsError:
    what = f"'{part}'" if isinstance(part, str) else type(part).__name__
    return WeightsError(f"{names.origin} has no name for {what}, so such weights can be neither read nor written.", path=path)


def renamed(theirs: Mapping[str, Tensor], known: Iterable[tuple[str, str]], ours: Iterable[str]) -> State:
    """The foreign tensors under our names. Every foreign name must be used, and every one of ours filled."""
    state: State = {}
    unused, wanted = dict(theirs), dict.fromkeys(ours)
    for foreign, own in known:
        if foreign in unused and own in wanted:
            state[own] = unused.pop(foreign)
    empty = [name for name in wanted if name not in state]
    if unused or empty:
        raise WeightsError(misfit(list(unused), empty))
    return state


def misfit(unused: list[str], empty: list[str]) -> str:
    sentences = []
    if unused:
        sentences.append(f"nothing in the model maps to {some(unused)}.")
    if empty:
        sentences.append(f"nothing in the file fills {some(empty)}.")
    if any("dist" in name for name in unused) and not empty:
        sentences.append("The model has no 'distill' head; did you mean a *_distilled_* model, or with_distillation(...)?")
    elif any("distill" in name for name in empty) and not unused:
        sentences.append("The file is of a model without distillation token.")
    elif unused and empty:
        sentences.append("The file is of another architecture, or of another origin than the one named.")
    return " ".join(sentences)


def some(names: list[str]) -> str:
    """The first three, and how many more."""
    more = f" (+{len(names) - 3} more)" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


def exported(ours: Mapping[str, Tensor], known: Iterable[tuple[str, str]]) -> State:
    """Our tensors under the foreign names."""
    state, left = {}, dict(ours)
    for foreign, own in known:
        if own in left:
            state[foreign] = left.pop(own)
    if left:
        raise WeightsError(f"there is no foreign name for {some(list(left))}.")
    return state


WRAPPED = ("state_dict", "model", "model_state_dict")  # where trainers put a model's weights


def passed_over(state: Mapping[str, object]) -> tuple[str, list[str]]:
    """What `unwrapped` takes of a checkpoint, and what else there is with the same names, such as an average of the weights."""
    taken = next((key for key in WRAPPED if isinstance(state.get(key), Mapping)), "")
    names = bare_names(state.get(taken))
    return taken, [key for key, value in state.items() if key != taken and names and bare_names(value) == names]


def bare_names(state: object) -> set[str]:
    """The names of the tensors in a state dict, without those of wrappers."""
    if not isinstance(state, Mapping):
        return set()
    tensors = {name: one for name, one in state.items() if isinstance(name, str) and isinstance(one, Tensor)}
    return set(without_wrappers(tensors))


def unwrapped(state: Mapping[str, object]) -> State:
    """The tensors of a checkpoint: out of `state_dict` or `model`, without the prefixes of wrappers."""
    for key in WRAPPED:
        inner = state.get(key)
        if isinstance(inner, Mapping):
            state = inner
    found: State = {}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise WeightsError(f"'{name}' is {type(value).__name__}, not a tensor. Is this a checkpoint of a model?")
        found[name] = value
    return without_wrappers(found)


def without_wrappers(state: State) -> State:
    """Names without what DDP, torch.compile and Lightning put in front of all of them."""
    for prefix in ("module.", "_orig_mod.", "model."):
        if state and all(name.startswith(prefix) for name in state):
            return without_wrappers({name.removeprefix(prefix): value for name, value in state.items()})
    return state


def without(state: Mapping[str, Tensor], *prefixes: str) -> State:
    """The state without what a classifier never reads, such as a pooler."""
    return {name: value for name, value in state.items() if not name.startswith(prefixes)}


FITTING = "Only grid and classes may differ: build the model with the file's width, patch and channels."


def refuse_other_shapes(state: Mapping[str, Tensor], module_state: Mapping[str, Tensor], fitting: str = FITTING) -> None:
    """`fitting` is the sentence on what may differ, and what to do where more does."""
    for name, value in state.items():
        wanted = tuple(module_state[name].shape)
        if tuple(value.shape) != wanted:
            with at(name):
                raise WeightsError(f"the file has {tuple(value.shape)}, the model {wanted}. {fitting}")
        if not value.is_floating_point() and module_state[name].is_floating_point():
            raise WeightsError(f"holds {value.dtype}, not weights.", path=name)
