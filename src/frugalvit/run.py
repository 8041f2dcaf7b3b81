"""A whole training, from a recipe to a run folder: what `frugalvit train` does, as a function."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from frugalvit.beginning import (
    as_saved,
    begin,
    description,
    lengthen,
    opened,
    opened_teacher,
    same_path,
)
from frugalvit.cautions import start_cautions
from frugalvit.data.batches import telling_lost_workers
from frugalvit.data.source import Source
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import DataError, SpecError
from frugalvit.first_weights import Begun, initialized, naming_repeated, start_of
from frugalvit.judging import Judged, checked_teacher
from frugalvit.measure.latency import device_name
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.network import Network
from frugalvit.nn.own import own_module, own_state
from frugalvit.nn.readout import MeanLogits, OneHead
from frugalvit.report.environment import environment
from frugalvit.report.loggers import check_logger, logger_named
from frugalvit.report.progress import Display, Silent
from frugalvit.report.record import RunFolder
from frugalvit.spec import encode
from frugalvit.stopping import Stopping, listening
from frugalvit.teaching import Given
from frugalvit.training import loop
from frugalvit.training.devices import Place, place_for
from frugalvit.training.evaluate import evaluate
from frugalvit.training.loop import NonFinite, Record
from frugalvit.training.own import OwnObjective, own_objective
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.state import checkpoint, latest, prune
from frugalvit.training.switches import few_threads, settled
from frugalvit.training.waiting import Waiting
from frugalvit.validating import stopped_early, stops, validated
from frugalvit.weights.files import write_safetensors


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
    objective: nn.Module | OwnObjective | None = None,
    teacher: Given | None = None,
    init: str | Begun = "",
    origin: str = "",
    resume: bool = False,
    extend: bool = False,
    device: str = "auto",
    workers: int = 0,
    log: Sequence[str] = (),
    display: Display | None = None,
) -> Run:
    """Train a recipe into the folder `out`. `resume` continues where a killed run stopped, to the very same weights; on
    another kind of device or in another precision only where `device` names it.

    `data` is a path, or ready sources for "train", "val" and perhaps "test"; `model` is a ready module, `objective` a module
    or a function, and `teacher` a module, a function or a classifier in place of the recipe's (docs/own.md). A run with a
    module or an objective of one's own saves its weights and cannot be rebuilt from its recipe alone. `extend` lets a resumed
    run have another length than it began with, and says what that does to the learning rate.
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
    if not resume and Path(out).exists():
        RunFolder(Path(out)).refuse_contents()  # before pictures are decoded
    log = [log] if isinstance(log, str) else log
    for name in log:
        check_logger(name)
    if isinstance(model, Network) and isinstance(model.spec, Architecture):
        recipe = replace(recipe, model=model.spec)
    recipe = same_path(recipe, Path(out)) if resume else recipe
    place = place_for(device, recipe.precision)
    sources = opened(recipe, data)
    with settled(recipe), ExitStack() as switches:
        training = prepare(
            recipe,
            sources,
            place,
            module=own_module(model),
            objective=own_objective(objective),
            teacher=opened_teacher(recipe, sources, place, teacher, objective),
            workers=workers,
            progress=lambda done, total: display.count("decoding pictures, once", done, total),
        )
        switches.enter_context(few_threads(training))
        repeats = isinstance(init, Begun)
        init, origin, kept = start_of(init, origin, Path(out), resume)
        described = description(training, model, objective) | kept
        where = environment() | described_place(place)
        described = as_saved(Path(out), described) if resume else described
        fresh = latest(Path(out) / "state") is None
        anew = resume and fresh and (Path(out) / "recipe.json").exists()
        if resume and fresh and (Path(out) / "summary.json").exists():
            raise DataError("is finished, and its checkpoints are gone. Use another --out to train again.", path=str(out))
        ended = not extend and (Path(out) / "summary.json").exists()
        moved = "" if fresh or ended else elsewhere(Path(out), place, asked=device != "auto")
        if resume and extend:
            lengthen(Path(out), training, described, where, display)
        with naming_repeated(init, repeats):
            notices = [*initialized(training, init, origin)] if fresh else []
        judged = checked_teacher(training, workers) if fresh else Judged(())
        notices += judged.notes
        where |= {"teacher": encode(judged)} if judged.notes else {}
        with (RunFolder.resume if resume else RunFolder.create)(Path(out), described, where) as folder:
            start = f"from the weights of {init}" if init else "from fresh weights (no --init)"
            words = () if model is not None else start_cautions(training, init)
            lost = ["there is no checkpoint yet, so it begins anew"] if anew else []
            begin(training, folder, [*lost, start, *words, *notices], display)
            if moved:
                display.note(moved)
            loggers = [logger_named(name, folder.path, described) for name in log]
            display.start(training.clock.total, training.state.step)
            began, waiting, measured = training.state.step, Waiting(training, workers), None
            try:
                with telling_lost_workers(), listening(lambda: training.state.step > began) as stopping:
                    for record in follow(training, folder, workers, display, stopping):
                        measured = ending(record, training)
                        folder.append({"step": record.step, **record.values})
                        display.show({"step": record.step, **record.values, "advice": waiting.advice(record)})
                        for logger in loggers:
                            logger.log(record.step, record.values)
            finally:
                display.stop()
                for logger in loggers:
                    logger.close()
            with telling_lost_workers():
                return finish(training, folder, model, workers, measured)


def described_place(place: Place) -> dict[str, Any]:
    """What computes, for those who repeat a run or compare two."""
    return {
        "device": str(place.device),
        "device_name": device_name(place.device),
        "cuda": torch.version.cuda if place.device.type == "cuda" else None,
        "precision": place.precision,
        "threads": torch.get_num_threads(),
    }


def elsewhere(out: Path, place: Place, asked: bool) -> str:
    """A word where a run goes on with another kind of device or in another precision; refused where nobody asked for it."""
    known, here = RunFolder(out).places(), (place.device.type, place.precision)
    if not known or here in known:
        return ""
    there = " and ".join(f"on {kind} in {precision}" for kind, precision in sorted(known))
    if not asked:
        problem = f"was trained {there}; here it would go on {here[0]} in {here[1]}, to other weights."
        raise DataError(f"{problem} Say --device {here[0]} if you want that.", path=str(out))
    return f"caution: the run was trained {there}, and goes on {here[0]} in {here[1]}: other weights than in one go"


def fit(
    recipe: Recipe,
    data: str | Path | Mapping[str, Source] | None = None,
    device: str = "auto",
    teacher: Given | None = None,
) -> Iterator[Record]:
    """The records of a training, for loops of one's own; nothing is written. A teacher must be worth it, as in `train`."""
    place, sources = place_for(device, recipe.precision), opened(recipe, data)
    with settled(recipe):
        training = prepare(recipe, sources, place, teacher=opened_teacher(recipe, sources, place, teacher))
        checked_teacher(training, workers=0)
    return settled_records(training)


def settled_records(training: Training) -> Iterator[Record]:
    """The loop's records; what the caller does between two of them, torch computes as it did before."""
    records = loop.fit(training.step, training.batches, training.cadence)
    while True:
        with settled(training.recipe):
            record = next(records, None)
        if record is None:
            return
        yield record


def follow(training: Training, folder: RunFolder, workers: int, display: Display, stopping: Stopping) -> Iterator[Record]:
    """The loop's records, with validation added where it is due, and a checkpoint where that is, or where the user stops."""
    state, cadence = training.state, training.cadence
    states = folder.path / "state"
    if state.step and stops(training, state.step):  # it had ended when it was killed, or is to go on for longer
        display.note(stopped_early(state))
        return
    try:
        for record in loop.fit(training.step, training.batches, cadence, workers, lambda: stopping.asked):
            values = dict(record.values)
            if cadence.evaluates(record.step) and "val" in training.sources:
                values |= validated(training, workers, display)
            for text in training.step.notes:
                display.note(text)
            training.step.notes.clear()
            yield Record(record.step, values)
            ends = stops(training, record.step)
            interrupted = stopping.asked and record.step < cadence.total
            if cadence.saves(record.step) or ends or interrupted:
                state.save(checkpoint(states, record.step))
                prune(states, training.recipe.keep)
            if interrupted:
                raise KeyboardInterrupt
            if ends:
                display.note(stopped_early(state))
                return
    except NonFinite as error:
        bundle = folder.debug_bundle_path(state.step)
        state.save(bundle / "state.safetensors")
        error.problem = f"{error.problem} The state is in {bundle}."
        raise


def ending(record: Record, training: Training) -> dict[str, float] | None:
    """What validation found at the last step, by the names that it has there."""
    found = {name.removeprefix("val_"): value for name, value in record.values.items() if name.startswith("val_")}
    return found if found and record.step == training.clock.total else None


def finish(
    training: Training, folder: RunFolder, model: nn.Module | None, workers: int, last: Mapping[str, float] | None
) -> Run:
    """The results: weights that `load` takes, and the summary; the test split is read here, once.

    `last` is what validation has found already, where it was the last step's.
    """
    state = training.state
    summary: dict[str, Any] = {"step": state.step}
    result = state.best if training.recipe.stop is not None else {}
    if not result and state.average is not None:
        result = state.average.tensors
    if result:
        state.module.load_state_dict(result)  # and there they stay: a module of the user's is what was saved
    known = {} if last is None or training.recipe.stop is not None else {"val": last}  # of the weights that are the result
    for split in ("val", "test"):
        if split in training.sources:
            found = known.get(split) or evaluate(state.module, training.framed[split], workers, training.answering)
            summary |= {f"{split}_{name}": value for name, value in found.items()}
            summary |= {f"{split}_unreadable": len(training.sources[split]) - summary[f"{split}_pictures"]}
    state.module.stream = None  # a module of the user's is called without autocast from here on
    classifier = saved(training, folder, model)
    summary |= {"best_val_top1": state.counters["best"], "best_step": state.counters["best_step"]}
    summary |= {"nonfinite": state.counters["nonfinite"], "bad_pictures": state.counters["bad_pictures"]}
    folder.summary(summary)
    return Run(folder.path, summary, classifier)


def saved(training: Training, folder: RunFolder, model: nn.Module | None) -> Classifier | None:
    if model is not None and not isinstance(model, Network):
        write_safetensors(folder.path / "model.safetensors", model.state_dict())
        if training.state.best:
            write_safetensors(folder.path / "best.safetensors", own_state(training.state.best))
        return None
    one = len(training.answering) == 1 < len(training.recipe.model.heads)
    fusion = OneHead(training.answering[0]) if one else MeanLogits()
    spec = ClassifierSpec(training.recipe.model, training.preprocess, training.sources["train"].classes, fusion)
    built = spec.model.build(seed=0)
    built.load_state_dict(training.state.module.state_dict())
    classifier = Classifier(spec, built).eval()
    classifier.save(folder.path)
    if training.state.best:
        write_safetensors(folder.path / "best.safetensors", training.state.best, {"frugalvit": json.dumps(encode(spec))})
    return classifier
