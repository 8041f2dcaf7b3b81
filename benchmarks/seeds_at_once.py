"""What several seeds of a small model gain by training at the same time on one GPU, and whether each trains as it would alone.

    python benchmarks/seeds_at_once.py ["RECIPE NAME=VALUE ..." ...] [--data CIFAR] [--most 3] [--steps 600] [--rounds 3]

CIFAR is a folder of arrays, for recipes of CIFAR-10. Each seed has a thread and a stream, as in `frugalvit train --seeds`.
First each trains alone for some steps, twice, then all at once, always from the same beginning: losses are compared. How far
alone is from alone is the noise of the device; more than that is what seeds do to each other. Then rounds in which one trains,
two do, and so on, continuing: images/s of all together, and how many times those of one in the same round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import frugalvit
from frugalvit.beginning import opened
from frugalvit.data.digits import Digits
from frugalvit.data.source import Source
from frugalvit.errors import FrugalError
from frugalvit.measure.latency import device_name
from frugalvit.report.environment import short_commit
from frugalvit.seeds import at_once
from frugalvit.training.devices import Place, place_for
from frugalvit.training.prepare import prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.switches import settled
from kept import Kept
from script import started

DEFAULT = ["small.cifar10", "small.cifar10 add=spt+lsa", "vit.digits batch=128 epochs=600"]


class Seed:
    """One training, and how far it is."""

    def __init__(self, recipe: Recipe, seed: int, sources: dict[str, Source], place: Place):
        with settled(recipe):
            self.training = prepare(replace(recipe, seed=seed), sources, place)
        self.done = 0

    def train(self, steps: int) -> float:
        """So many steps further; their mean loss, once the device has taken them."""
        step = self.training.step
        with settled(self.training.recipe):
            for given in step.reader(self.training.batches, range(self.done, self.done + steps), 0):
                step.take([given])
            self.done += steps
            return float(step.taken()["loss"])


def losses_of(seeds: list[Seed], steps: int) -> list[float]:
    return [one.train(steps) for one in seeds]


def seconds_of(seeds: list[Seed], steps: int, place: Place) -> float:
    """From the moment when all are ready until the last has taken its steps."""
    ready = threading.Barrier(len(seeds))
    began, ended = [0.0] * len(seeds), [0.0] * len(seeds)

    def job(index: int) -> None:
        seeds[index].train(5)
        ready.wait()
        began[index] = time.perf_counter()
        seeds[index].train(steps)
        ended[index] = time.perf_counter()

    at_once([partial(job, index) for index in range(len(seeds))], place.device)
    return max(ended) - min(began)


def measured(item: str, arguments: argparse.Namespace) -> dict[str, Any]:
    name, *words = item.split()
    recipe = frugalvit.recipe(name, *words)
    place = place_for(arguments.device, recipe.precision)
    found = opened(recipe, None if isinstance(recipe.data.dataset, Digits) else arguments.data)
    sources = {"train": found["train"]}
    build = partial(Seed, recipe, sources=sources, place=place)
    numbers = range(arguments.most)
    alone, again = (losses_of([build(seed) for seed in numbers], arguments.check) for _ in range(2))
    seeds: dict[int, Seed] = {}
    shared: dict[int, float] = {}

    def begin(seed: int) -> None:
        seeds[seed] = build(seed)
        shared[seed] = seeds[seed].train(arguments.check)

    at_once([partial(begin, seed) for seed in numbers], place.device)
    rates: dict[int, list[float]] = {count: [] for count in range(1, arguments.most + 1)}
    for _ in range(arguments.rounds):
        for count, kept in rates.items():
            seconds = seconds_of([seeds[seed] for seed in range(count)], arguments.steps, place)
            kept.append(count * arguments.steps * recipe.pictures / seconds)
    first = seeds[0].training
    return {
        "item": item,
        "batch": recipe.pictures,
        "path": first.recipe.path,
        "precision": first.place.precision,
        "deterministic": recipe.deterministic,
        "images_per_second": {str(count): [round(rate) for rate in kept] for count, kept in rates.items()},
        "loss_alone": alone,
        "loss_alone_again": again,
        "largest_difference": largest_difference(alone, [shared[seed] for seed in numbers]),
        "largest_difference_alone": largest_difference(alone, again),
        "check": arguments.check,
        "steps": arguments.steps,
        "where": {"device": device_name(place.device), "torch": torch.__version__, "commit": arguments.commit},
    }


def largest_difference(ones: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))


def compared(difference: float | None, steps: int) -> str:
    """A cell; empty where an earlier call did not compare."""
    if difference is None:
        return ""
    return f"{difference:.1e}, {steps}" if difference else f"none, {steps}"


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Several seeds at once",
        "",
        "`python benchmarks/seeds_at_once.py`: images/s of all seeds together, the median of rounds; × is how many times those "
        "of one seed in the same round, the median (lowest to highest). Difference: the largest among seeds, of the mean "
        "loss of their first steps, to the same training alone, with all seeds at once. Alone twice: the same between two "
        "trainings of each seed alone, the noise of the device; empty where it was not measured.",
        "",
        "| recipe | batch | seeds | images/s together | × one | difference, steps | alone twice, steps |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        ones = row["images_per_second"]["1"]
        for count, rates in row["images_per_second"].items():
            times = [rate / one for rate, one in zip(rates, ones, strict=True)]
            spread = f"{statistics.median(times):.2f} ({min(times):.2f} to {max(times):.2f})" if count != "1" else ""
            all_seeds = count == max(row["images_per_second"], key=int)  # only then were losses compared
            differences = (row["largest_difference"], row.get("largest_difference_alone")) if all_seeds else (None, None)
            cells = [f"`{row['item']}`", row["batch"], count, f"{statistics.median(rates):,.0f}", spread]
            cells += [compared(one, row["check"]) for one in differences]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "| recipe | path | precision | steps a round | rounds | device | torch | commit |"]
    lines += ["|---|---|---|---:|---:|---|---|---|"]
    for row in rows:
        where, rounds = row["where"], len(row["images_per_second"]["1"])
        cells = [f"`{row['item']}`", row["path"], row["precision"], row["steps"], rounds]
        cells += [where["device"], where["torch"], where["commit"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=DEFAULT, metavar="'RECIPE NAME=VALUE ...'")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--most", type=int, default=3, help="seeds that train at once")
    parser.add_argument("--check", type=int, default=100, help="steps whose losses are compared")
    parser.add_argument("--steps", type=int, default=600, help="of each seed in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if min(arguments.most, arguments.check, arguments.steps, arguments.rounds) < 1 or not all(map(str.strip, arguments.items)):
        parser.error("--most, --check, --steps and --rounds are 1 or more, and an item is a recipe's name and its overrides.")
    kept = Kept(arguments.out, "seeds_at_once", lambda row: row["item"], page)
    text = ""
    for item in arguments.items:
        try:
            row = measured(item, arguments)
        except FrugalError as error:
            sys.exit(f"{item}: {type(error).__name__}: {error}")
        print(json.dumps(row), flush=True)
        text = kept.add(row)
    print(text)


if __name__ == "__main__":
    started(main)
