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
from frugalvit.errors import DataError, SpecError, at, suggestion
from frugalvit.measure.latency import device_name
from frugalvit.report.environment import short_commit
from frugalvit.report.files import read_json
from frugalvit.report.progress import Display, Silent
from frugalvit.run import Run
from frugalvit.seeds import refuse_seeds, train_seeds
from frugalvit.spec import encode
from frugalvit.studies.ledger import Entry, Ledger, key_of
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

    A training is known by its recipe and its pictures, whatever its name: studies with one file share what they have in common.
    """
    for name in setup.only or ():
        if name not in trainings:
            raise SpecError(f"no training is called '{name}'. {suggestion(name, trainings)}", path="only")
    ledger, found = setup.ledger, {}
    for name, recipe in trainings.items():
        with at(name):
            sources = opened(recipe, setup.data)
            refuse_other_split(sources, setup.split)
            key = key_for(recipe, sources)
        missing = [seed for seed in setup.seeds if ledger.find(key, seed) is None]
        if missing and (setup.only is None or name in setup.only):
            ledger.add(measured(name, key, recipe, sources, missing, setup))
        entries = {seed: ledger.find(key, seed) for seed in setup.seeds}
        found[name] = {seed: entry for seed, entry in entries.items() if entry is not None}
    return found


def key_for(recipe: Recipe, sources: Mapping[str, Source]) -> str:
    """Of the recipe but for its seed, and of the pictures."""
    return key_of(encode(replace(recipe, seed=0)), {split: one.fingerprint() for split, one in sources.items()})


def measured(
    name: str, key: str, recipe: Recipe, sources: Mapping[str, Source], seeds: Sequence[int], setup: Setup
) -> list[Entry]:
    """Train now, or continue what was interrupted."""
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
        Entry(name, key, seed, results_of(run), str(run.path), teacher_of(run), round(seconds, 1), where)
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


def refuse_other_split(sources: Mapping[str, Source], split: str) -> None:
    if split not in sources:
        there = ", ".join(one for one in sources if one != "train") or "none"
        raise DataError(f"there is no split '{split}' to measure on. There is: {there}.", path="split")
