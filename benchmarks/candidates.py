"""A search by hand: a recipe with some overrides each, trained on 45,000 pictures and measured on the 5,000 held out.

`search_small.py` and `search_teacher.py` say which. `--together` candidates train at the same time, each in a process of its
own. Rows of earlier calls stay, so that the page shows the whole search, failures too. `--runs` keeps the trained models.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import frugalvit
from frugalvit.beginning import opened
from frugalvit.errors import FrugalError
from frugalvit.report.environment import short_commit
from frugalvit.report.progress import Silent
from frugalvit.studies.timing import time_split
from kept import Kept
from script import as_name, each_apart, run_apart


@dataclass(frozen=True)
class Search:
    recipe: str
    candidates: Mapping[str, tuple[str, ...]]
    results: str  # the name of the page and of what it is made of
    passes: int
    together: int
    script: Path


class Notes(Silent):
    """Keeps what a training has to say, such as that it could not be compiled, and prints it."""

    def __init__(self, name: str):
        self.name = name
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)


def trained(search: Search, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    overrides = chosen(search, arguments)[name]
    recipe = frugalvit.recipe(search.recipe, f"passes={arguments.passes}", *overrides)
    began = time.perf_counter()
    data = opened(recipe, arguments.data)
    data.pop("test", None)
    with tempfile.TemporaryDirectory() as folder:
        display, kept = Notes(name), arguments.runs or Path(folder)
        out = kept / f"{as_name(name)}-{arguments.passes}"
        run = frugalvit.train(recipe, out=out, data=data, device=arguments.device, display=display)
        split = time_split(run.path)
        summary = run.summary
    cost = frugalvit.cost(replace(recipe.model, classes=10))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {
        "name": name,
        "overrides": list(overrides),
        "passes": arguments.passes,
        **{key: summary[key] for key in ("val_top1", "best_val_top1", "val_loss", "nonfinite")},
        "parameters": cost.parameters,
        "macs": cost.macs,
        "images_per_second": round(split.images_per_second),
        "seconds": round(time.perf_counter() - began, 1),
        "seconds_steps": round(split.steps, 1),
        "seconds_first": round(split.first, 1),
        "together": arguments.together,
        "notes": display.notes,
        "where": {"device": device, "torch": torch.__version__, "commit": arguments.commit},
    }


def by_itself(search: Search, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["--data", arguments.data, "--passes", arguments.passes, "--device", arguments.device]
        words += ["--commit", arguments.commit, "--together", 1, "--out", folder]
        words += ["--runs", arguments.runs] if arguments.runs else []
        words += ["--candidate", f"{name}={','.join(chosen(search, arguments)[name])}"]
        run_apart([search.script, *words])
        (row,) = json.loads((Path(folder) / f"{search.results}.json").read_text())["rows"]
    return row | {"together": arguments.together}


def page(search: Search, rows: list[dict[str, Any]]) -> str:
    lines = [
        f"# How `{search.recipe}` was chosen",
        "",
        f"`python benchmarks/{search.script.name}`: trained on 45,000 pictures of CIFAR-10, top-1 of the 5,000 held out (one "
        "seed; the standard error of such a figure is about 0.3). The test pictures were not read. Seconds are of all, and of "
        "that of compiling and capturing; where several trained together, they are longer than alone. Overrides are of the "
        "recipe as it was at that commit.",
        "",
        "| candidate | overrides | passes | val top-1 | parameters | GMACs | images/s | s | compiling, s | at once | commit |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in sorted(rows, key=lambda row: (-row["passes"], -row["val_top1"])):
        cells = [row["name"], f"`{' '.join(row['overrides']) or 'none'}`", row["passes"], f"{row['val_top1']:.2f}"]
        cells += [f"{row['parameters']:,}", f"{row['macs'] / 1e9:.2f}", f"{row['images_per_second']:,}", row["seconds"]]
        cells += [row["seconds_first"], row["together"], row["where"]["commit"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def chosen(search: Search, arguments: argparse.Namespace) -> dict[str, tuple[str, ...]]:
    given = {name: words.split(",") if words else [] for name, _, words in (one.partition("=") for one in arguments.candidate)}
    own = {name: tuple(words) for name, words in given.items()}
    return own or {name: search.candidates[name] for name in arguments.names}


def search_by_hand(search: Search, description: str | None) -> None:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = list(search.candidates)
    parser.add_argument("names", nargs="*", default=names, metavar="NAME", help=", ".join(map(repr, names)))
    parser.add_argument("--candidate", action="append", default=[], metavar="NAME=A=1,B=2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=search.passes)
    parser.add_argument("--together", type=int, default=search.together)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, help="a folder that keeps the runs")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if bare := [one for one in arguments.candidate if "=" not in one]:
        parser.error(f"--candidate {bare[0]}: say NAME=A=1,B=2, or NAME= for the recipe as it is.")
    if arguments.together < 1:
        parser.error("--together is 1 or more.")
    if unknown := [name for name in arguments.names if name not in names]:
        parser.error(f"there is no candidate '{unknown[0]}'. There are: {', '.join(map(repr, names))}.")
    kept = Kept(arguments.out, search.results, lambda row: (row["name"], row["passes"]), partial(page, search))
    wanted = list(chosen(search, arguments))
    failed: list[str] = []

    def tried(name: str, work: Callable[[], dict[str, Any]]) -> None:
        try:
            row = work()
        except (FrugalError, subprocess.CalledProcessError) as error:  # others may do better
            by_process = isinstance(error, subprocess.CalledProcessError)  # which has said itself what was wrong
            told = f"its process ended with {error.returncode}" if by_process else str(error)
            print(f"{name}: {told}", file=sys.stderr, flush=True)
            failed.append(name)
        else:
            print(json.dumps(row), flush=True)
            kept.add(row)

    if arguments.together > 1 and len(wanted) > 1:
        for name, finished in each_apart(wanted, arguments.together, lambda name: by_itself(search, name, arguments)):
            tried(name, finished.result)
    else:
        for name in wanted:
            tried(name, partial(trained, search, name, arguments))
    if failed:
        sys.exit(f"{', '.join(failed)} failed; their messages stand above. The rows of the others are kept.")
