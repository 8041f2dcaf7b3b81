"""Weights of any known origin into a module, and out of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from frugalvit.errors import WeightsError, WeightsNotice, at, suggestion
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.convnet import ConvNet
from frugalvit.nn.foreign import ForeignModel, ForeignNetwork
from frugalvit.nn.layers import LearnedPositions
from frugalvit.nn.model import Model
from frugalvit.nn.network import Network
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.score import OffsetBias
from frugalvit.outline import flatten
from frugalvit.spec import check
from frugalvit.weights import augreg, convnets, hf, own, timm
from frugalvit.weights.families import family
from frugalvit.weights.resample import Bicubic, Resample, grid_of, rebiased, resampled, window_of
from frugalvit.weights.translate import FITTING, State, exported, passed_over, refuse_other_shapes, renamed, some


@dataclass(frozen=True)
class Origin:
    """Where weights come from: a pure function that tidies its tensors, name pairs, and the function's inverse."""

    about: str
    tidy: Callable[[Mapping[str, object], Any], State]
    names: Callable[[Any], Iterator[tuple[str, str]]]
    untidy: Callable[[Mapping[str, Tensor], Any], State]
    ending: str = ".safetensors"  # of the files that `frugalvit export` writes
    kinds: tuple[type, ...] = (Model,)  # of architectures that have names there


FOREIGN_FITTING = "Models of timm and torchvision take weights of their own size alone; only classes may differ."
ORIGINS = {
    "timm": Origin(
        "timm's ViT, DeiT, CaiT, ConViT, PiT, Swin, hybrids, ResNet, RegNetY and EfficientNet, and models timm:...",
        timm.tidy,
        timm.names,
        timm.untidy,
        kinds=(Model, ConvNet, ForeignModel),
    ),
    "official": Origin(
        "the released .pth files of DeiT and its teacher, CaiT, ConViT, PiT and Swin (for the most part timm's names)",
        timm.tidy,
        timm.official_names,
        timm.untidy,
        kinds=(Model, ConvNet),
    ),
    "torchvision": Origin(
        "torchvision's ResNet, and models torchvision:...",
        timm.tidy,
        timm.torchvision_names,
        timm.untidy,
        kinds=(ConvNet, ForeignModel),
    ),
    "hf": Origin("HF transformers' ViT and DeiT, as in their files", hf.tidy_file, hf.file_names, hf.untidy_file),
    "hf-module": Origin(
        "HF transformers' ViT and DeiT, as a module has them in memory since version 5",
        hf.tidy_module,
        hf.module_names,
        hf.untidy_module,
    ),
    "frugalvit": Origin(
        "this package's own: what `train`, `import` and `Classifier.save` wrote",
        own.tidy,
        own.names,
        own.untidy,
        kinds=(Model, ConvNet, ForeignModel),
    ),
    "augreg": Origin("AugReg's and big_vision's .npz files (Flax)", augreg.tidy, augreg.names, augreg.untidy, ".npz"),
}


@dataclass(frozen=True)
class Loaded:
    """What `load_weights` did beyond copying. Its text is empty when the file fitted as it was."""

    resampled: str = ""
    fresh: tuple[str, ...] = ()
    taken: str = ""  # which weights, where the file has several

    def __str__(self) -> str:
        return " ".join(one for one in (self.taken, self.resampled, *self.fresh) if one)


def load_weights(
    module: Network,
    weights: str | Path | Mapping[str, object],
    origin: str = "timm",
    *,
    resample: Resample = Bicubic(),
    grid: tuple[int, int] | None = None,
) -> Loaded:
    """Fill a module from a file or a state dict that has the names of `origin`.

    Positions of another grid and biases of other windows are resampled by `resample`; `grid` is the file's (height,
    width) in patches where it is not square. A head for another number of classes is left as it was built. Both are said
    in a WeightsNotice, and which weights were taken of a file with several. Nothing is changed unless everything fits.
    """
    source = origin_named(origin)
    with at("resample"):
        check(resample, Resample)
    with at("grid"):
        check(grid, tuple[int, int] | None)
    module = built(module)
    state, taken = chosen(weights)
    model, own = described(module), module.state_dict()
    label = f"{Path(weights).name} as {origin}" if isinstance(weights, (str, Path)) else f"state dict as {origin}"
    with at(label):
        refuse_other_kinds(source, origin, model)
        theirs = renamed(tidied(source, state, model), source.names(model), own)
        theirs, note = on_our_grid(theirs, module, grid, resample)
        theirs, windows = in_our_windows(theirs, module, resample)
        theirs, fresh = without_other_heads(theirs, own, heads_of(module, own))
        refuse_other_shapes(theirs, own, FOREIGN_FITTING if isinstance(module, ForeignNetwork) else FITTING)
    module.load_state_dict(theirs, strict=False)
    done = Loaded(" ".join(one for one in (note, windows) if one), fresh, taken)
    if str(done):
        warnings.warn(f"{label}: {done}", WeightsNotice, stacklevel=2)
    return done


def chosen(weights: str | Path | Mapping[str, object]) -> tuple[Mapping[str, object], str]:
    """The weights, and a sentence on which these are where there are several: a run's checkpoint, or one with an average."""
    state, note = own.read(Path(weights)) if isinstance(weights, (str, Path)) else (weights, "")
    taken, others = passed_over(state)
    if not others:
        return state, note
    alone = "give it alone"
    if isinstance(weights, (str, Path)):
        line = f"torch.save(read_file(Path({str(weights)!r}))[{others[0]!r}], '{others[0]}.pth')"
        alone = f"save it alone, with read_file of frugalvit.weights.files: {line}"
    return state, f"'{taken}' is taken, but {some(others)} would fit as well. To take that instead, {alone}."


def built(module: nn.Module) -> Network:
    """The model itself, also out of a classifier."""
    inner = getattr(module, "module", module)
    if not isinstance(inner, Network):
        raise WeightsError(f"{type(module).__name__} is no model of ours. Give what Model.build or frugalvit.load returned.")
    return inner


def described(module: Network) -> Architecture:
    assert isinstance(module.spec, Architecture)
    return module.spec


def refuse_other_kinds(source: Origin, origin: str, model: Architecture) -> None:
    if not isinstance(model, source.kinds):
        able = [name for name, one in ORIGINS.items() if isinstance(model, one.kinds)]
        raise WeightsError(f"{origin} has no names for a {type(model).__name__}. Use {' or '.join(able)}.", path="origin")


def tidied(source: Origin, state: Mapping[str, object], model: Architecture) -> State:
    try:
        return source.tidy(state, model)
    except (RuntimeError, IndexError, TypeError, AttributeError) as error:
        raise WeightsError(f"the arrays do not have the shapes of this origin ({str(error).splitlines()[0]}).") from error


def export_weights(module: Network, origin: str = "timm") -> State:
    """The module's parameters under the names, and in the layout, of `origin`."""
    source = origin_named(origin)
    module = built(module)
    model = described(module)
    with at(f"export to {origin}"):
        refuse_other_kinds(source, origin, model)
        for part in sorted(unlike(model, origin)):
            warnings.warn(
                f"export to {origin}: the model has {part}, which is not what {origin} computes", WeightsNotice, stacklevel=2
            )
        state = {name: value.detach().clone() for name, value in module.state_dict().items()}
        return source.untidy(exported(state, source.names(model)), model)


def unlike(model: Architecture, origin: str) -> set[str]:
    """What weights cannot say: an activation or a norm's eps that the other library has otherwise."""
    if not isinstance(model, Model):
        return convnets.unlike(model) if isinstance(model, ConvNet) else set()
    named = family(model)
    found = named.unlike(model) if named else set()
    usual = named.eps if named else LayerNorm().eps
    for path, value in flatten(model).items():
        if path.startswith("tokenizer."):
            continue
        if path.endswith(".eps") and value != usual:
            found.add(f"eps={value:g} in a norm")
        if path.endswith(".activation") and value != "Gelu" and origin != "augreg":
            found.add(str(value))
    return found


def origin_named(name: str) -> Origin:
    if name not in ORIGINS:
        raise WeightsError(f"no origin is called '{name}'. {suggestion(name, ORIGINS)}", path="origin")
    return ORIGINS[name]


def on_our_grid(state: State, module: Network, grid: tuple[int, int] | None, rule: Resample) -> tuple[State, str]:
    """The state with positions for the module's grid, and a sentence where that changed them."""
    note = ""
    for index, layer in enumerate(module.layers):
        name = f"layers.{index}.positions"
        if not isinstance(layer, LearnedPositions) or name not in state or state[name].ndim != 3 or len(state[name]) != 1:
            continue
        shape = layer.shape
        with at(name):
            found = grid_of(state[name].shape[1], shape, grid)
        if found != (shape.height, shape.width):
            state = state | {name: resampled(state[name], shape, found, rule)}
            sizes = f"{found[0]} x {found[1]} to {shape.height} x {shape.width}"
            kept = "; summary tokens kept" if shape.summary else ""
            note = f"positions resampled from {sizes} ({type(rule).__name__}){kept}."
    return state, note


def in_our_windows(state: State, module: Network, rule: Resample) -> tuple[State, str]:
    """The state with relative biases for the module's windows, and a sentence where that changed them."""
    sizes = []
    for place, term in module.named_modules():
        name = f"{place}.bias"
        if not isinstance(term, OffsetBias) or name not in state or state[name].ndim != 2:
            continue
        if len(state[name]) != len(term.bias):
            with at(name):
                side = window_of(len(state[name]))
            state = state | {name: rebiased(state[name], side, term.grid, rule)}
            sizes.append(f"{side} x {side} to {term.grid[0]} x {term.grid[1]}")
    found = " and ".join(dict.fromkeys(sizes))
    return state, f"relative biases resampled from windows of {found} ({type(rule).__name__})." if found else ""


def heads_of(module: Network, own: Iterable[str]) -> list[str]:
    """The places of the maps that end in the classes."""
    if not isinstance(module, ForeignNetwork):
        return [name.removesuffix(".weight") for name in own if name.startswith("readout.heads.") and name.endswith(".weight")]
    maps = ((name, one) for name, one in module.named_modules() if isinstance(one, nn.Linear | nn.Conv2d))
    return [name for name, one in maps if one.weight.shape[0] == module.spec.classes]


def without_other_heads(state: State, own: Mapping[str, Tensor], heads: list[str]) -> tuple[State, tuple[str, ...]]:
    """The state without heads that have another number of classes, and a sentence on each."""
    kept, notes = dict(state), []
    for head in heads:
        theirs, ours = state[f"{head}.weight"].shape, own[f"{head}.weight"].shape
        if theirs[1:] == ours[1:] and theirs[0] != ours[0]:
            kept = {name: value for name, value in kept.items() if name not in (f"{head}.weight", f"{head}.bias")}
            short = head.removeprefix("readout.heads.")
            notes.append(f"head '{short}' is fresh: the file has {theirs[0]} classes, the model {ours[0]}.")
    return kept, tuple(notes)
