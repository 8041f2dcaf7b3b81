"""The trainings of a study: several recipes, each once a seed; what has been measured is not trained again."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from frugalvit.beginning import opened
from frugalvit.data.source import Source
from frugalvit.errors import DataError, SpecError, WeightsError, at, suggestion
from frugalvit.measure.latency import device_name
from frugalvit.report.environment import short_commit
from frugalvit.report.files import read_json
from frugalvit.report.progress import Display, Silent
from frugalvit.run import Run
from frugalvit.seeds import refuse_seeds, train_seeds
from frugalvit.studies.identity import key_by_path, key_for, saved_digest
from frugalvit.studies.ledger import Entry, Ledger
from frugalvit.studies.timing import time_split
from frugalvit.training.devices import place_for
from frugalvit.training.recipe import Recipe

FILE = "study.json"
Entries = dict[str, dict[int, Entry]]  # by training and seed


@dataclass(frozen=True)
class Setup:
    """How often a study trains, where it writes, and which pictures its results are of."""

    seeds: tuple[int, ...]
    out: Path  # run folders, and `study.json`
    data: Path | None = None
    split: Literal["val", "test"] = "val"
    device: str = "auto"
    only: tuple[str, ...] | None = None  # the trainings to run now, where not all; the others are shown if they are there
    file: Path | None = None  # instead of `out/study.json`
    commit: str = ""  # where the working directory does not tell
    display: Display = Silent()

    def __post_init__(self) -> None:
        refuse_seeds(self.seeds)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.file or self.out / FILE)

    @property
    def where(self) -> dict[str, str]:
        device = place_for(self.device, "fp32").device
        return {"device": device_name(device), "torch": torch.__version__, "commit": self.commit or short_commit()}


def trained(trainings: Mapping[str, Recipe], setup: Setup) -> Entries:
    """The results of the trainings by name and seed. Those that are missing train now, seeds of one at once on CUDA.

    A training is known by its recipe, its pictures and its teacher's weights, whatever its name: studies with one file share
    what they have in common.
    """
    for name in setup.only or ():
        if name not in trainings:
            raise SpecError(f"no training is called '{name}'. {suggestion(name, trainings)}", path="only")
    found: Entries = {}
    for name, recipe in trainings.items():
        with at(name):
            sources = pictures(recipe, setup)
        there = entries_of(recipe, sources, setup)
        missing = [seed for seed in setup.seeds if seed not in there]
        if missing and (setup.only is None or name in setup.only):
            setup.ledger.add(measured(name, recipe, sources, missing, setup))
            there = entries_of(recipe, sources, setup)
        found[name] = there
    return found


def unmeasured(trainings: Mapping[str, Recipe], setup: Setup) -> list[str]:
    """Those that lack a seed."""
    return [name for name, found in trained(trainings, replace(setup, only=())).items() if len(found) < len(setup.seeds)]


def pictures(recipe: Recipe, setup: Setup) -> dict[str, Source]:
    """The splits that its training may read: where held-out pictures measure, the test pictures stay unseen."""
    sources = opened(recipe, setup.data)
    if setup.split not in sources:
        there = ", ".join(one for one in sources if one != "train") or "none"
        raise DataError(f"there is no split '{setup.split}' to measure on. There is: {there}.", path="split")
    return sources if setup.split == "test" else {name: sources[name] for name in ("train", setup.split)}


def entries_of(recipe: Recipe, sources: Mapping[str, Source], setup: Setup) -> dict[int, Entry]:
    """What there is of a training, by seed."""
    ledger = setup.ledger
    try:
        key = key_for(recipe, sources, ledger)
        entries = {seed: ledger.find(key, seed) for seed in setup.seeds}
    except WeightsError:
        by_path = key_by_path(recipe, sources)
        entries = {seed: ledger.find_by_path(by_path, seed) for seed in setup.seeds}
    return {seed: entry for seed, entry in entries.items() if entry is not None}


def taught_by_another(recipe: Recipe, sources: Mapping[str, Source], found: Mapping[int, Entry], setup: Setup) -> bool:
    """Whether a seed that is missing was measured with another network at the teacher's path."""
    ledger, by_path = setup.ledger, key_by_path(recipe, sources)
    return any(ledger.find_by_path(by_path, seed) is not None for seed in setup.seeds if seed not in found)


def measured(name: str, recipe: Recipe, sources: Mapping[str, Source], seeds: Sequence[int], setup: Setup) -> list[Entry]:
    """Train now, or continue what was interrupted."""
    key, by_path = key_for(recipe, sources, setup.ledger), key_by_path(recipe, sources)
    if place_for(setup.device, recipe.precision).device.type == "cuda":
        torch.compiler.reset()  # it keeps eight variants of a function, and each recipe is one
    began = time.perf_counter()
    runs = train_seeds(
        recipe,
        seeds,
        out=setup.out / folder_name(name),
        data=sources,
        resume=True,
        device=setup.device,
        display=setup.display,
    )
    seconds, where = time.perf_counter() - began, setup.where
    return [
        Entry(
            name=name,
            key=key,
            seed=seed,
            results=results_of(run),
            folder=str(run.path),
            teacher=teacher_of(run),
            seconds=round(seconds, 1),
            where=where,
            by_path=by_path,
            weights=saved_digest(run.path),
        )
        for seed, run in zip(seeds, runs, strict=True)
    ]


def results_of(run: Run) -> dict[str, float]:
    """The numbers of its summary, and where its time went."""
    numbers = {name: float(value) for name, value in run.summary.items() if isinstance(value, (int, float))}
    return numbers | {f"time_{name}": value for name, value in asdict(time_split(run.path)).items()}


def teacher_of(run: Run) -> str:
    return str(described(run.path).get("teacher_fingerprint", ""))


def described(folder: Path) -> dict[str, Any]:
    """A run's recipe.json, empty where there is none."""
    return read_json(folder / "recipe.json") if (folder / "recipe.json").exists() else {}


def folder_name(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-")
