"""Weights of any known origin into a module, and out of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from frugalvit.errors import WeightsError, WeightsNotice, at, suggestion
from frugalvit.nn.layers import LearnedPositions
from frugalvit.nn.model import Model, VisionTransformer
from frugalvit.nn.norm import LayerNorm
from frugalvit.outline import flatten
from frugalvit.spec import check
from frugalvit.weights import augreg, hf, timm
from frugalvit.weights.files import read_file
from frugalvit.weights.resample import Bicubic, Resample, grid_of, resampled
from frugalvit.weights.translate import State, exported, refuse_other_shapes, renamed


@dataclass(frozen=True)
class Origin:
    """Where weights come from: a pure function that tidies its tensors, name pairs, and the function's inverse."""

    about: str
    tidy: Callable[[Mapping[str, object], Model], State]
    names: Callable[[Model], Iterator[tuple[str, str]]]
    untidy: Callable[[Mapping[str, Tensor], Model], State]
    ending: str = ".safetensors"  # of the files that `frugalvit export` writes


ORIGINS = {
    "timm": Origin("timm's ViT and DeiT", timm.tidy, timm.names, timm.untidy),
    "official": Origin("the released DeiT .pth files (names as timm's)", timm.tidy, timm.names, timm.untidy),
    "hf": Origin("HF transformers' ViT and DeiT, as in their files", hf.tidy_file, hf.file_names, hf.untidy_file),
    "hf-module": Origin(
        "HF transformers' ViT and DeiT, as a module has them in memory since version 5",
        hf.tidy_module,
        hf.module_names,
        hf.untidy_module,
    ),
    "augreg": Origin("AugReg's and big_vision's .npz files (Flax)", augreg.tidy, augreg.names, augreg.untidy, ".npz"),
}


@dataclass(frozen=True)
class Loaded:
    """What `load_weights` did beyond copying. Its text is empty when the file fitted as it was."""

    resampled: str = ""
    fresh: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([*([self.resampled] if self.resampled else []), *self.fresh])


def load_weights(
    module: VisionTransformer,
    weights: str | Path | Mapping[str, object],
    origin: str = "timm",
    *,
    resample: Resample = Bicubic(),
    grid: tuple[int, int] | None = None,
) -> Loaded:
    """Fill a module from a file or a state dict that has the names of `origin`.

    Positions of another grid are resampled by `resample`; `grid` is the file's (height, width) in patches where it is
    not square. A head for another number of classes is left as it was built. Both are said in a WeightsNotice. Nothing
    is changed unless everything fits.
    """
    source = origin_named(origin)
    with at("resample"):
        check(resample, Resample)
    with at("grid"):
        check(grid, tuple[int, int] | None)
    module = built(module)
    state = read_file(Path(weights)) if isinstance(weights, (str, Path)) else weights
    model, own = module.spec, module.state_dict()
    label = f"{Path(weights).name} as {origin}" if isinstance(weights, (str, Path)) else f"state dict as {origin}"
    with at(label):
        theirs = renamed(tidied(source, state, model), source.names(model), own)
        theirs, note = on_our_grid(theirs, module, grid, resample)
        theirs, fresh = without_other_heads(theirs, own)
        refuse_other_shapes(theirs, own)
    module.load_state_dict(theirs, strict=False)
    done = Loaded(note, fresh)
    if str(done):
        warnings.warn(f"{label}: {done}", WeightsNotice, stacklevel=2)
    return done


def built(module: nn.Module) -> VisionTransformer:
    """The model itself, also out of a classifier."""
    inner = getattr(module, "module", module)
    if not isinstance(inner, VisionTransformer):
        raise WeightsError(f"{type(module).__name__} is no model of ours. Give what Model.build or frugalvit.load returned.")
    return inner


def tidied(source: Origin, state: Mapping[str, object], model: Model) -> State:
    try:
        return source.tidy(state, model)
    except (RuntimeError, IndexError, TypeError, AttributeError) as error:
        raise WeightsError(f"the arrays do not have the shapes of this origin ({str(error).splitlines()[0]}).") from error


def export_weights(module: VisionTransformer, origin: str = "timm") -> State:
    """The module's parameters under the names, and in the layout, of `origin`."""
    source = origin_named(origin)
    module = built(module)
    with at(f"export to {origin}"):
        for part in sorted(unlike(module.spec, origin)):
            warnings.warn(
                f"export to {origin}: the model has {part}, which is not what {origin} computes", WeightsNotice, stacklevel=2
            )
        state = {name: value.detach().clone() for name, value in module.state_dict().items()}
        return source.untidy(exported(state, source.names(module.spec)), module.spec)


def unlike(model: Model, origin: str) -> set[str]:
    """What weights cannot say: an activation or a norm's eps that the other library has otherwise."""
    found = set()
    for path, value in flatten(model).items():
        if path.endswith(".eps") and value != LayerNorm().eps:
            found.add(f"eps={value:g} in a norm")
        if path.endswith(".activation") and value != "Gelu" and origin != "augreg":
            found.add(str(value))
    return found


def origin_named(name: str) -> Origin:
    if name not in ORIGINS:
        raise WeightsError(f"no origin is called '{name}'. {suggestion(name, ORIGINS)}", path="origin")
    return ORIGINS[name]


def on_our_grid(state: State, module: VisionTransformer, grid: tuple[int, int] | None, rule: Resample) -> tuple[State, str]:
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
            note = f"positions resampled from {sizes} ({type(rule).__name__}); summary tokens kept."
    return state, note


def without_other_heads(state: State, own: Mapping[str, Tensor]) -> tuple[State, tuple[str, ...]]:
    """The state without heads that have another number of classes, and a sentence on each."""
    kept, notes = dict(state), []
    for name in state:
        if name.startswith("readout.heads.") and name.endswith(".weight"):
            theirs, ours = state[name].shape, own[name].shape
            if theirs[1:] == ours[1:] and theirs[0] != ours[0]:
                head = name.removesuffix(".weight")
                del kept[name], kept[f"{head}.bias"]
                short = head.removeprefix("readout.heads.")
                notes.append(f"head '{short}' is fresh: the file has {theirs[0]} classes, the model {ours[0]}.")
    return kept, tuple(notes)
