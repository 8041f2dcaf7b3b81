"""How a training begins: its data, its teacher, its description, and where it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from frugalvit.cautions import cautions
from frugalvit.data.dataset import opened_splits
from frugalvit.data.digits import Digits
from frugalvit.data.files import refuse_other_classes
from frugalvit.data.mistaken import naming_what_is_there
from frugalvit.data.source import SPLITS, Source
from frugalvit.data.split import NoSplit
from frugalvit.data.subset import FirstClasses
from frugalvit.errors import DataError, SpecError, at
from frugalvit.recipes.find import BESIDE
from frugalvit.report.progress import Display
from frugalvit.report.record import RunFolder
from frugalvit.spec import decode, encode, read, shown
from frugalvit.teaching import Given, open_teacher
from frugalvit.training.devices import Place
from frugalvit.training.duration import Duration
from frugalvit.training.prepare import Training
from frugalvit.training.recipe import Recipe, filled, preprocess_of
from frugalvit.training.schedule import Clock
from frugalvit.training.state import latest, refuse_damaged
from frugalvit.training.teacher import Teacher


def opened(recipe: Recipe, data: str | Path | Mapping[str, Source] | None) -> dict[str, Source]:
    """Ready sources as they are; a path in full, so that pictures keep their names wherever the run is resumed."""
    if isinstance(data, Mapping):
        refuse_no_sources(data)
        if "train" not in data or not set(data) <= set(SPLITS):
            raise DataError(f"splits {sorted(data)}. Give train, and val and test where there are any.", path="data")
        sources = dict(data)
    else:
        if data is not None and not isinstance(data, (str, Path)):
            raise DataError(f"{shown(data)} is neither a path nor a dict of sources by split.", path="data")
        root = Path(data).resolve() if data else None
        if root is not None:
            refuse_own_data(recipe.data.dataset)
        with naming_what_is_there(recipe.data.dataset, root, "data.dataset=", recipe.model.classes):
            sources = all_splits(recipe, root)
    refuse_unfit(sources)
    return sources


def refuse_no_sources(data: Mapping[str, Source]) -> None:
    for split, source in data.items():
        if not isinstance(source, Source):
            raise DataError(
                f"{shown(source)} is no source of pictures. Give arrays, frugalvit.data.arrays.Arrays(images_NHWC, labels, "
                "classes), or what a data set opens.",
                path=f"data[{split!r}]",
            )


def refuse_unfit(sources: Mapping[str, Source]) -> None:
    """Splits that would train on nonsense, or fail in the midst of it."""
    classes = sources["train"].classes
    if len(classes) < 2:
        raise DataError(f"classes {list(classes)}: nothing to tell apart. Give pictures of two classes or more.", path="train")
    for split, source in sources.items():
        refuse_other_classes(source.classes, classes, split, "train")
        if not len(source):
            raise DataError("there are no pictures in it. Add some, or leave the split out.", path=split)
        labels = np.asarray(source.labels)
        if len(labels) != len(source):
            raise DataError(f"{len(labels)} labels for {len(source)} pictures. Give one a picture.", path=split)
        wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
        if len(wrong):
            problem = f"label {labels[wrong[0]]} of {source.name(int(wrong[0]))} is out of range."
            raise DataError(f"{problem} There are {len(classes)} classes, counted from 0.", path=split)


def refuse_own_data(dataset: object, instead: str = "choose a recipe for your pictures") -> None:
    if isinstance(dataset, Digits):
        raise DataError(f"the digits come with the package. Leave --data out, or {instead}.", path="--data")


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
    return sources | {"test": test}


def opened_teacher(
    recipe: Recipe, sources: Mapping[str, Source], place: Place, ready: Given | None = None, objective: object = None
) -> Teacher | None:
    """Whoever teaches: the one that is given, or the recipe's; nobody where no term would listen, unless of one's own."""
    teaching = recipe.teaching
    if ready is None and teaching is None:
        return None
    if objective is None and not recipe.objective.needs_teacher:
        raise SpecError(
            "a teacher is named, but no term of the objective learns from one. Add Distilled(...), or leave the teacher out.",
            path="recipe.teaching",
        )
    train = sources["train"]
    preprocess, taps = preprocess_of(filled(recipe, train)), recipe.objective.teacher_taps
    with at("recipe.teaching"):
        known = "same" if teaching is None else teaching.classes
        who = ready if ready is not None or teaching is None else teaching.teacher
        assert who is not None
        return open_teacher(who, preprocess, train.classes, place, taps=taps, known=known)


def description(training: Training, model: nn.Module | None, objective: object) -> dict[str, Any]:
    """What a run is: its recipe and its data. Resuming checks that both are the same."""
    found = encode(training.recipe)
    found["data_fingerprint"] = {name: source.fingerprint() for name, source in training.sources.items()}
    if training.step.teacher is not None:
        found["teacher_fingerprint"] = training.step.teacher.fingerprint()
    if model is not None:
        found["ready_model"] = type(model).__name__  # such a run cannot be rebuilt from JSON
    if objective is not None:
        found["ready_objective"] = type(objective).__name__
    return found


def same_path(recipe: Recipe, out: Path) -> Recipe:
    """The recipe with the path that the run in a folder took, where the recipe leaves it open."""
    if recipe.path != "auto" or not (out / "recipe.json").exists():
        return recipe
    taken = RunFolder(out).recipe().get("path", "plain")
    return replace(recipe, path=taken) if taken in ("plain", "sent", "decoded", "kept") else recipe


def as_saved(out: Path, described: dict[str, Any]) -> dict[str, Any]:
    """The description of the run in a folder as an older version wrote it, if it says the same: fields have come since.

    A field that is not there means what it means by default; a run without a path took the plain one. A teacher with the same
    fingerprint is the same, wherever it lies by now.
    """
    if not (out / "recipe.json").exists():
        return described
    saved = RunFolder(out).recipe()
    teacher, asked, taught = described.get("teacher_fingerprint"), described.get("teaching"), saved.get("teaching")
    if teacher and asked and taught and teacher == saved.get("teacher_fingerprint"):
        described = described | {"teaching": asked | {"teacher": taught["teacher"]}}
    beside = {name: saved[name] for name in BESIDE if name in saved}
    try:
        whole = encode(decode({name: value for name, value in saved.items() if name not in beside}, Recipe)) | beside
    except SpecError:
        return described  # with parts of one's own, or damaged: compared as it is
    whole |= {"path": saved.get("path", "plain"), "duration": described["duration"]}  # of another length is told elsewhere
    return saved | {"duration": described["duration"]} if whole == described else described


def lengthen(out: Path, training: Training, described: Mapping[str, Any], where: Mapping[str, Any], display: Display) -> None:
    """Write the new length into the recipe of a run, and say how the learning rate and the average change."""
    if not (out / "recipe.json").exists():
        return
    old, saved = RunFolder(out).recipe(), latest(out / "state")
    ended = RunFolder(out).results() if (out / "summary.json").exists() else None
    before = replace(training.recipe, duration=read(old["duration"], Duration, {}))
    step = 0 if saved is None else int(saved.stem.removeprefix("step-"))
    clocks = [
        Clock(one.duration.steps(training.clock.per_epoch, 0), training.clock.per_epoch) for one in (before, training.recipe)
    ]
    if training.recipe.stop is not None and ended is not None and ended["step"] < clocks[0].total:
        problem = f"stopped early at step {step} of {clocks[0].total}, so that more steps are of no use to it."
        raise DataError(f"{problem} Train with a longer stop.patience, or with stop=none, into another --out.", path=str(out))
    if clocks[1].total < step:
        problem = f"has taken {step} steps, more than the {clocks[1].total} that are asked for."
        raise DataError(f"{problem} Ask for more, or use another --out.", path=str(out))
    rates = [before.schedule.lr(step, training.step.peak, clock) for clock in clocks]
    with RunFolder.resume(out, {**described, "duration": old["duration"]}, where) as folder:  # all else must be as it was
        folder.replace_recipe(described)
    average = before.average
    decays = [] if average is None else [average.within(clock.total).decay for clock in clocks]
    other = f", the decay of the average from {decays[0]:.6g} to {decays[1]:.6g}" if len(set(decays)) > 1 else ""
    display.note(
        f"extended from {clocks[0].total} to {clocks[1].total} steps: the learning rate at step {step} goes from "
        f"{rates[0]:.3g} to {rates[1]:.3g}{other}"
    )


def begin(training: Training, folder: RunFolder, notices: Sequence[str], display: Display) -> None:
    """Continue from the newest checkpoint, or start with what `initialized` left."""
    saved = latest(folder.path / "state")
    if saved is not None:
        refuse_damaged(saved)
        training.state.load(saved)
        folder.cut(training.state.step)
        display.note(f"resumed at step {training.state.step} of {training.clock.total}")
        return
    folder.cut(-1)
    for text in (*cautions(training), *notices):
        display.note(text)
