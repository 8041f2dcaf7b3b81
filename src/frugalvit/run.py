"""A whole training, from a recipe to a run folder: what `frugalvit train` does, as a function."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from frugalvit.data.dataset import opened_splits
from frugalvit.data.digits import Digits
from frugalvit.data.files import refuse_other_classes
from frugalvit.data.source import SPLITS, Source
from frugalvit.data.split import NoSplit
from frugalvit.data.subset import FirstClasses
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import DataError, SpecError
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.network import Network
from frugalvit.nn.shape import MapShape, Shape
from frugalvit.report.environment import environment
from frugalvit.report.loggers import check_logger, logger_named
from frugalvit.report.progress import Display, Silent
from frugalvit.report.record import RunFolder
from frugalvit.spec import encode, read
from frugalvit.training import loop
from frugalvit.training.devices import place_for
from frugalvit.training.duration import Duration
from frugalvit.training.evaluate import evaluate
from frugalvit.training.loop import NonFinite, Record
from frugalvit.training.optimizer import AdamW, peak_lr
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Clock
from frugalvit.training.state import checkpoint, latest, prune
from frugalvit.weights.fetch import fetch
from frugalvit.weights.files import write_safetensors
from frugalvit.weights.load import load_weights

KNOWN_LR = {"AdamW": (1e-6, 1e-2), "Sgd": (1e-4, 1.0)}  # of the papers' recipes, per 256 pictures
SMALL = 10**9  # multiply-accumulates of a batch's forward pass, about


@dataclass(frozen=True)
class Run:
    """A finished training: its folder, its results, and the classifier it made (None for a model of one's own)."""

    path: Path
    summary: dict[str, Any]
    classifier: Classifier | None


def train(
    recipe: Recipe,
    *,
    out: str | Path,
    data: str | Path | Mapping[str, Source] | None = None,
    model: nn.Module | None = None,
    objective: nn.Module | None = None,
    init: str = "",
    origin: str = "",
    resume: bool = False,
    extend: bool = False,
    device: str = "auto",
    workers: int = 0,
    log: Sequence[str] = (),
    display: Display | None = None,
) -> Run:
    """Train a recipe into the folder `out`. `resume` continues where a killed run stopped, to the very same weights.

    `data` is a path, or ready sources for "train", "val" and perhaps "test"; `model` and `objective` are ready modules, in
    which case the weights are saved but the run cannot be rebuilt from its recipe alone. `extend` lets a resumed run have
    another length than it began with, and says what that does to the learning rate.
    """
    display = display or Silent()
    if not isinstance(recipe, Recipe):
        raise SpecError(
            f"train takes a Recipe, not {type(recipe).__name__}. Use frugalvit.recipe('vit.digits').", path="recipe"
        )
    if extend and not resume:
        raise SpecError("only a resumed run can be extended. Say --resume too.", path="--extend")
    if workers < 0:
        raise SpecError(f"{workers} processes. Use 0 and more.", path="--workers")
    log = [log] if isinstance(log, str) else log
    for name in log:
        check_logger(name)
    if isinstance(model, Network) and isinstance(model.spec, Architecture):
        recipe = replace(recipe, model=model.spec)
    place = place_for(device, recipe.precision)
    training = prepare(recipe, opened(recipe, data), place, module=own_module(model), objective=objective)
    init = init or (begun_from(Path(out)) if resume else "")
    enough_threads(training)
    described = description(training, model, objective) | ({"init": init} if init else {})
    where = environment() | {"device": str(place.device), "precision": place.precision, "threads": torch.get_num_threads()}
    if resume and extend:
        lengthen(Path(out), training, described, where, display)
    notices = [] if latest(Path(out) / "state") else initialized(training, init, origin)
    with (RunFolder.resume if resume else RunFolder.create)(Path(out), described, where) as folder:
        start = f"from the weights of {init}" if init else "from fresh weights (no --init)"
        begin(training, folder, [start, *notices], display)
        loggers = [logger_named(name, folder.path, described) for name in log]
        display.start(training.clock.total, training.state.step)
        try:
            for record in follow(training, folder, workers, display):
                folder.append({"step": record.step, **record.values})
                display.show({"step": record.step, **record.values})
                for logger in loggers:
                    logger.log(record.step, record.values)
        finally:
            display.stop()
            for logger in loggers:
                logger.close()
        return finish(training, folder, model, workers)


def enough_threads(training: Training) -> None:
    """One thread for small products on a CPU: several would spend their time waiting for each other."""
    module, place = training.state.module, training.place
    counted = place.device.type == "cpu" and isinstance(module, Network) and len(module.shapes) > 0
    if counted and products(module) * training.recipe.batch < SMALL:
        torch.set_num_threads(1)


def products(module: Network) -> int:
    """The multiply-accumulates of a picture's forward pass, about: each parameter once for every token or place."""
    last = module.shapes[-1]
    if isinstance(last, Shape):
        return sum(one.numel() for one in module.parameters()) * last.length
    places = [(part, shape) for _, part, shape in module.places() if isinstance(shape, MapShape)]
    return sum(one.numel() * shape.height * shape.width for part, shape in places for one in part.parameters())


def begun_from(out: Path) -> str:
    """The weights that the run in a folder began from, so that resuming it need not name them again."""
    return str(RunFolder(out).recipe().get("init", "")) if (out / "recipe.json").exists() else ""


def fit(recipe: Recipe, data: str | Path | Mapping[str, Source] | None = None, device: str = "auto") -> Iterator[Record]:
    """The records of a training, for loops of one's own; nothing is written."""
    training = prepare(recipe, opened(recipe, data), place_for(device, recipe.precision))
    return loop.fit(training.step, training.batches, training.cadence)


def opened(recipe: Recipe, data: str | Path | Mapping[str, Source] | None) -> dict[str, Source]:
    """Ready sources as they are; a path in full, so that pictures keep their names wherever the run is resumed."""
    if isinstance(data, Mapping):
        if "train" not in data or not set(data) <= set(SPLITS):
            raise DataError(f"splits {sorted(data)}. Give train, and val and test where there are any.", path="data")
        return dict(data)
    root = Path(data).resolve() if data else None
    if root is not None and isinstance(recipe.data.dataset, Digits):
        raise DataError(
            "the digits come with the package. Leave --data out, or choose a recipe for your pictures.", path="--data"
        )
    return all_splits(recipe, root)


def all_splits(recipe: Recipe, root: Path | None) -> dict[str, Source]:
    """Train and validation, and the test split where there is another one; it is read when all is done."""
    dataset = recipe.data.dataset
    sources = opened_splits(dataset, root, recipe.data.subset)
    try:
        test = dataset.open("test", root)
    except NoSplit:
        return sources
    if isinstance(recipe.data.subset, FirstClasses):
        test = recipe.data.subset.pick(test)
    if "val" in sources and test.fingerprint() == sources["val"].fingerprint():
        return sources
    refuse_other_classes(test.classes, sources["train"].classes, "test", "train")
    return sources | {"test": test}


def description(training: Training, model: nn.Module | None, objective: nn.Module | None) -> dict[str, Any]:
    """What a run is: its recipe and its data. Resuming checks that both are the same."""
    found = encode(training.recipe)
    found["data_fingerprint"] = {name: source.fingerprint() for name, source in training.sources.items()}
    if model is not None:
        found["ready_model"] = type(model).__name__  # such a run cannot be rebuilt from JSON
    if objective is not None:
        found["ready_objective"] = type(objective).__name__
    return found


def lengthen(out: Path, training: Training, described: Mapping[str, Any], where: Mapping[str, Any], display: Display) -> None:
    """Write the new length into the recipe of a run, and say how the learning rate changes where it goes on."""
    saved = latest(out / "state")
    if not (out / "recipe.json").exists() or saved is None:
        return
    old = RunFolder(out).recipe()
    before = replace(training.recipe, duration=read(old["duration"], Duration, {}))
    step = int(saved.stem.removeprefix("step-"))
    clocks = [
        Clock(one.duration.steps(training.clock.per_epoch, 0), training.clock.per_epoch) for one in (before, training.recipe)
    ]
    rates = [before.schedule.lr(step, training.step.peak, clock) for clock in clocks]
    with RunFolder.resume(out, {**described, "duration": old["duration"]}, where) as folder:  # all else must be as it was
        folder.replace_recipe(described)
    display.note(
        f"extended from {clocks[0].total} to {clocks[1].total} steps: the learning rate at step {step} goes from "
        f"{rates[0]:.3g} to {rates[1]:.3g}"
    )


def own_module(model: nn.Module | None) -> Any:
    return model if model is None or isinstance(model, Network) else Wrapped(model)


class Wrapped(nn.Module):
    """A module of the user's that returns logits, as one that returns a dict of heads."""

    draws = 0
    layers: tuple[nn.Module, ...] = ()

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        outputs = self.inner(image_BCHW)
        return outputs if isinstance(outputs, dict) else {"class": outputs}


def initialized(training: Training, init: str, origin: str) -> list[str]:
    """Start from given weights, if there are any, and return what there is to say of them. Before a folder is made."""
    if not init:
        return []
    fetched = fetch(init)
    if not (origin or fetched.origin):
        raise SpecError(f"whose names does {fetched.path} have? Say --origin.", path="--init")
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        load_weights(training.state.module, fetched.path, origin or fetched.origin)
    if training.state.average is not None:
        training.state.average.load(training.state.module.state_dict())
    return [str(notice.message) for notice in notices]


def begin(training: Training, folder: RunFolder, notices: Sequence[str], display: Display) -> None:
    """Continue from the newest checkpoint, or start with what `initialized` left."""
    saved = latest(folder.path / "state")
    if saved is not None:
        training.state.load(saved)
        folder.cut(training.state.step)
        display.note(f"resumed at step {training.state.step} of {training.clock.total}")
        return
    folder.cut(-1)
    for text in (*cautions(training), *notices):
        display.note(text)


def cautions(training: Training) -> Iterator[str]:
    """What is worth a word before the first step."""
    recipe = training.recipe
    peak = peak_lr(recipe.optimizer, recipe.pictures)
    yield (
        f"{len(training.sources['train'])} pictures, {recipe.pictures} a step, {training.clock.total} steps; "
        f"peak learning rate {peak:.3g}; {training.place.device}, {training.place.precision}"
    )
    low, high = KNOWN_LR[type(recipe.optimizer).__name__]
    per = peak * 256 / recipe.pictures
    if not low <= per <= high:
        kind = "AdamW" if isinstance(recipe.optimizer, AdamW) else "SGD"
        known = f"what is known to work with {kind}, {low:g} to {high:g}"
        yield f"caution: a learning rate of {per:.2g} per 256 pictures is outside {known}"


def follow(training: Training, folder: RunFolder, workers: int, display: Display) -> Iterator[Record]:
    """The loop's records, with validation added where it is due, and a checkpoint after each that has been used."""
    state, cadence = training.state, training.cadence
    states = folder.path / "state"
    if state.step and stops(training, state.step):
        return  # it had ended when it was killed
    try:
        for record in loop.fit(training.step, training.batches, cadence, workers):
            values = dict(record.values)
            if cadence.evaluates(record.step) and "val" in training.sources:
                values |= validated(training, workers, display)
            yield Record(record.step, values)
            ends = stops(training, record.step)
            if cadence.saves(record.step) or ends:
                state.save(checkpoint(states, record.step))
                prune(states, training.recipe.keep)
            if ends:
                display.note(f"stopped at step {record.step}: no better since step {state.counters['best_step']}")
                return
    except NonFinite as error:
        bundle = folder.debug_bundle_path(state.step)
        state.save(bundle / "state.safetensors")
        error.problem = f"{error.problem} The state is in {bundle}."
        raise


def validated(training: Training, workers: int, display: Display) -> dict[str, float]:
    """Validation of what would be the result now; its weights are kept where early stopping may go back to them."""
    state, source = training.state, training.sources["val"]
    with averaged(training):
        found = evaluate(state.module, source, training.preprocess, training.place, workers)
        if state.counters["best"] is None or found["top1"] > state.counters["best"]:
            state.counters |= {"best": found["top1"], "best_step": state.step}
            state.best = {name: value.detach().clone() for name, value in state.module.state_dict().items()}
    chance = 100 / len(source.classes)
    if found["top1"] <= 1.2 * chance and state.step >= training.clock.per_epoch and not state.counters.get("warned"):
        state.counters["warned"] = True
        display.note(
            f"caution: validation is at chance ({found['top1']:.1f} %, chance is {chance:.1f} %). Are the labels of both "
            "splits in the same order? `frugalvit data check` looks."
        )
    return {f"val_{name}": value for name, value in found.items()}


@contextmanager
def averaged(training: Training) -> Iterator[None]:
    """Inside, the module holds the averaged weights, where the recipe averages."""
    state = training.state
    if state.average is None:
        yield
        return
    own = {name: value.clone() for name, value in state.module.state_dict().items()}
    state.module.load_state_dict(state.average.tensors)
    try:
        yield
    finally:
        state.module.load_state_dict(own)


def stops(training: Training, step: int) -> bool:
    """Whether early stopping ends the training here."""
    stop, state, clock = training.recipe.stop, training.state, training.clock
    if stop is None or not training.cadence.evaluates(step):
        return False
    return step - state.counters["best_step"] >= stop.patience.steps(clock.per_epoch, clock.total)


def finish(training: Training, folder: RunFolder, model: nn.Module | None, workers: int) -> Run:
    """The results: weights that `load` takes, and the summary; the test split is read here, once."""
    state = training.state
    summary: dict[str, Any] = {"step": state.step}
    with averaged(training):
        if state.best and training.recipe.stop is not None:
            state.module.load_state_dict(state.best)
        for split in ("val", "test"):
            if split in training.sources:
                found = evaluate(state.module, training.sources[split], training.preprocess, training.place, workers)
                summary |= {f"{split}_{name}": value for name, value in found.items()}
                summary |= {f"{split}_unreadable": len(training.sources[split]) - summary[f"{split}_pictures"]}
        classifier = saved(training, folder, model)
    summary |= {"best_val_top1": state.counters["best"], "best_step": state.counters["best_step"]}
    summary |= {"nonfinite": state.counters["nonfinite"], "bad_pictures": state.counters["bad_pictures"]}
    folder.summary(summary)
    return Run(folder.path, summary, classifier)


def saved(training: Training, folder: RunFolder, model: nn.Module | None) -> Classifier | None:
    if model is not None and not isinstance(model, Network):
        write_safetensors(folder.path / "model.safetensors", model.state_dict())
        return None
    spec = ClassifierSpec(training.recipe.model, training.preprocess, training.sources["train"].classes)
    built = spec.model.build(seed=0)
    built.load_state_dict(training.state.module.state_dict())
    classifier = Classifier(spec, built).eval()
    classifier.save(folder.path)
    if training.state.best:
        write_safetensors(folder.path / "best.safetensors", training.state.best, {"frugalvit": json.dumps(encode(spec))})
    return classifier
