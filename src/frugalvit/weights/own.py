"""Weights that this package wrote, under the names of the module itself: a classifier's or a run's `model.safetensors`, and
the checkpoints of a run that has none yet.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frugalvit.errors import WeightsError
from frugalvit.weights.files import read_file, read_metadata
from frugalvit.weights.translate import State, unwrapped

FILE, KIND = "model.safetensors", "ClassifierSpec"  # the latter is what `config.json` holds
RECIPE = "recipe.json"  # of a run
MOST = 12  # runs to name in a message


def names(model: Any) -> Iterator[tuple[str, str]]:
    """(name, the same name) for every tensor of the module."""
    with torch.device("meta"):
        module = replace(model, classes=model.classes or 1).build(seed=0)
    for name in module.state_dict():
        yield name, name


def tidy(state: Mapping[str, object], model: Any) -> State:
    return unwrapped(state)


def untidy(state: Mapping[str, Tensor], model: Any) -> State:
    return dict(state)


def wrote(weights: Path) -> bool:
    """Whether a folder's weights without a `config.json` are ours: a run's, or with the description in their header."""
    return (weights.parent / RECIPE).is_file() or "frugalvit" in read_metadata(weights)


def runs_in(folder: Path) -> list[str]:
    """The runs and models below a folder: `student`, or `student/seed-0` where there are several seeds."""
    files = [file for name in (FILE, RECIPE) for depth in ("*", "*/*") for file in folder.glob(f"{depth}/{name}")]
    return sorted({file.parent.relative_to(folder).as_posix() for file in files})


def refuse_several(folder: Path) -> None:
    """Where one run is wanted: a folder of them."""
    runs = runs_in(folder)
    if runs:
        listed = ", ".join([*runs[:MOST], *(["..."] if len(runs) > MOST else [])])
        several = f"holds several runs: {listed}. Give one of these folders."
        raise WeightsError(several if len(runs) > 1 else f"holds a run: {listed}. Give that folder.", path=str(folder))


def refuse_unfinished(folder: Path) -> None:
    """Where a model is wanted: a run that has none yet."""
    if not (folder / RECIPE).is_file():
        return
    cure = "Repeat its command with --resume (in Python, resume=True) to go on"
    if newest(folder) is not None and not class_of_own(folder):
        cure += f", or begin another run from its newest checkpoint, with --init {shlex.quote(str(folder))}"
    raise WeightsError(f"is a run that is not finished: there is no {FILE} yet. {cure}.", path=str(folder))


def refuse_own_module(weights: Path) -> None:
    """Where a model of ours is wanted: a run of a module of the user's own."""
    if name := class_of_own(weights.parent):
        raise WeightsError(
            f"is a run of a module of your own, {name}, which only your code can build. Its weights are in {weights.name}: "
            f"module.load_state_dict(safetensors.torch.load_file({str(weights)!r})).",
            path=str(weights.parent),
        )


def class_of_own(run: Path) -> str:
    """The class of the user's module that a run has trained; nothing where it is a model of ours, or no run."""
    return described(run / RECIPE).get("ready_model", "") if (run / RECIPE).is_file() else ""


def newest(run: Path) -> Path | None:
    """The newest checkpoint of a run."""
    return max((run / "state").glob("step-*.safetensors"), default=None)


def read(path: Path) -> tuple[dict[str, Any], str]:
    """A file's contents; of a checkpoint only the weights that the run would end with, and a sentence on which these are."""
    state = read_file(path)
    header = read_metadata(path).get("frugalvit_state") if path.suffix == ".safetensors" else None
    if header is None:
        return state, ""
    part = ending(path, state)
    weights = {name.removeprefix(f"{part}."): value for name, value in state.items() if name.startswith(f"{part}.")}
    if not all(bool(value.isfinite().all()) for value in weights.values()):
        raise WeightsError("a checkpoint whose weights are no numbers. Give an older one, or other weights.", path=str(path))
    step = json.loads(header)["counters"]["best_step"] if part == "best" else json.loads(header)["step"]
    which = {"best": "best weights", "average": "averaged weights", "model": "weights"}[part]
    return weights, f"a checkpoint: the run's {which}, of step {step}, are taken."


def ending(path: Path, state: Mapping[str, object]) -> str:
    """The part of a checkpoint that the run would end with: early stopping goes back to the best."""
    there = {name.partition(".")[0] for name in state}
    recipes = [one / RECIPE for one in path.parents[1:3] if (one / RECIPE).is_file()]  # from state/ or debug/step-.../
    if "best" in there and recipes and described(recipes[0]).get("stop") is not None:
        return "best"
    return "average" if "average" in there else "model"


def described(recipe: Path) -> dict[str, Any]:
    """What a run's recipe holds."""
    try:
        return json.loads(recipe.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WeightsError(f"is not JSON ({error}).", path=str(recipe)) from error
