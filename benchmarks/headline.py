"""A small transformer from scratch on CIFAR-10, by itself or with a teacher, in one process and within a time limit.

    python benchmarks/headline.py --data CIFAR --way none [--val] [--passes 200] [--seed 0] [--out docs/results]
    python benchmarks/headline.py --data CIFAR --way hard [--val] [--passes 100] [--teacher-passes 80] [--seed 0]
    python benchmarks/headline.py --data CIFAR --way soft --override 'objective.terms[1].how.temperature=1' ...
    python benchmarks/headline.py --data CIFAR --way soft --val --teacher-run RUN ...

CIFAR is a folder of arrays (train_images.npy, test_images.npy, ...). The clock is that of the process: it starts with Python
and counts imports, opening, compiling (from an empty cache), all training, the teacher's too, and the measurement. With
`--val`, 45,000 training pictures are learned from and the 5,000 others measured: for choosing. Without, all 50,000 are learned
from, and the finished student reads the test pictures, once; so does its teacher, when the clock has stopped. With `--val`, a
finished run of the same teacher may teach (`--teacher-run`), so that several ways are chosen from without training it again
for each. Rows of earlier calls stay.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

import frugalvit
from frugalvit.assign import override
from frugalvit.beginning import opened
from frugalvit.cli.distill import of_taught
from frugalvit.errors import SpecError
from frugalvit.measure.latency import device_name
from frugalvit.nn.architecture import Architecture
from frugalvit.recipes.teach import taught
from frugalvit.report.environment import short_commit
from frugalvit.report.files import read_json
from frugalvit.report.progress import Lines
from frugalvit.report.record import RunFolder
from frugalvit.report.statistics import summarize
from frugalvit.report.table import as_markdown
from frugalvit.run import Run
from frugalvit.studies.timing import time_split
from frugalvit.training.devices import place_for
from frugalvit.training.duration import Epochs
from frugalvit.training.evaluate import Framed, evaluate
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import RunTeacher, Teaching
from kept import Kept
from script import as_name, started

SECONDS, PARAMETERS = 540, 10_000_000
LONGEST = 180  # letters of a log's name, which a file system bounds
KEY = ("split", "seed", "teacher", "teacher_passes", "teacher_trained", "student", "way", "passes")
TERMS = ("supervised_class", "distilled_class", "distilled_distill")
KEPT = ("step", "epoch", "loss", *TERMS, "lr", "val_top1", "time_images_per_second")
FREE = {"seed", "path", "evaluate", "save", "keep", "log_every", "nonfinite"}  # in which one teacher may differ from another


def age() -> float:
    """The seconds since this process was started (Linux)."""
    started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started


def parameters_of(model: Architecture) -> int:
    """Without tracing the model, which `frugalvit.cost` does and which takes seconds that count."""
    with torch.device("meta"):
        return sum(one.numel() for one in model.build().parameters())


def recipe_of(name: str, words: list[str], passes: int, arguments: argparse.Namespace) -> Recipe:
    made = frugalvit.recipe(name, *words, f"seed={arguments.seed}", *([] if arguments.val else ["data.dataset.holdout=0.0"]))
    if arguments.val and not getattr(made.data.dataset, "holdout", 1.0):
        raise SystemExit(f"{name} holds out no training pictures. Override data.dataset.holdout=0.1, or leave --val away.")
    return replace(made, duration=Epochs(passes), evaluate=Epochs(passes), save=Epochs(passes))


@dataclass(frozen=True)
class Trained:
    """A run, the number of pictures that it read of each split, and its seconds: of steps, of compiling, of all else."""

    run: Run
    pictures: dict[str, int]
    seconds: dict[str, float]
    images_per_second: float
    notes: list[str]  # such as that a step could not be compiled


def trained(recipe: Recipe, out: Path, splits: set[str], arguments: argparse.Namespace) -> Trained:
    """A training that sees those splits alone."""
    began = time.perf_counter()
    data = {name: source for name, source in opened(recipe, arguments.data).items() if name in splits}
    told = out.parent / f"{out.name}.txt"
    print(f"{out.name}: trains; its progress is in {told}", file=sys.stderr, flush=True)
    with told.open("w", encoding="utf-8") as file:
        run = frugalvit.train(recipe, out=out, data=data, device=arguments.device, display=Lines(file))
    split = time_split(run.path)
    seconds = {"steps": split.steps, "compiling": split.first, "rest": time.perf_counter() - began - split.total}
    notes = [line.removeprefix("note: ") for line in told.read_text("utf-8").splitlines() if line.startswith("note: ")]
    return Trained(run, {name: len(source) for name, source in data.items()}, seconds, split.images_per_second, notes)


def trained_before(run: Path, recipe: Recipe) -> dict[str, Any]:
    """What a row says of a teacher that is a finished run; refused where that was another training than the page would name."""
    found, results = frugalvit.recipe(str(run)), RunFolder(run).results()
    same = replace(recipe, model=replace(recipe.model, classes=found.model.classes))
    other = [one.name for one in fields(Recipe) if getattr(found, one.name) != getattr(same, one.name)]
    if told := [name for name in other if name not in FREE]:
        raise SpecError(
            f"{run} has another {told[0]} than --teacher, --teacher-override and --teacher-passes say. Say what it was trained "
            "with, or train it here.",
            path="--teacher-run",
        )
    if "val_top1" not in results:
        problem = f"{run} has not ended, or was not measured on val."
        raise SpecError(f"{problem} Name another, or train it here.", path="--teacher-run")
    where = read_json(run / "environment.json")
    about = {"seed": found.seed, "commit": where.get("commit"), "device": where.get("device_name")}
    return {"teacher_trained": "before", "teacher_top1": results["val_top1"], "teacher_run": about}


def top1_of(run: Run, recipe: Recipe, split: str, arguments: argparse.Namespace) -> float:
    """Of a finished run, in percent."""
    classifier, place = frugalvit.load(run.path), place_for(arguments.device, recipe.precision)
    framed = Framed(opened(recipe, arguments.data)[split], classifier.spec.preprocess, place)
    return evaluate(classifier.module.to(place.device).eval(), framed, 0)["top1"]


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    start, split = age(), "val" if arguments.val else "test"
    about = [word for word in arguments.override if of_taught(word)]
    student = recipe_of(
        arguments.student, [word for word in arguments.override if word not in about], arguments.passes, arguments
    )
    alone = arguments.way == "none"
    before = arguments.teacher_run
    if not alone:
        student = taught(student, Teaching(RunTeacher(str(before or folder / "teacher"))), arguments.way)
    student = override(student, *about)
    parameters = parameters_of(replace(student.model, classes=10))
    if parameters > PARAMETERS:
        raise SystemExit(f"the student has {parameters:,} parameters, more than {PARAMETERS:,}. Choose a smaller one.")
    done: dict[str, Trained] = {}
    if not alone:
        teacher = recipe_of(arguments.teacher, arguments.teacher_override, arguments.teacher_passes, arguments)
        known = {"teacher_trained": "here"} if before is None else trained_before(before, teacher)
    if not alone and before is None:
        done["teacher"] = trained(teacher, folder / "teacher", {"train", "val"}, arguments)
        torch.cuda.empty_cache()
    done["student"] = trained(student, folder / "student", {"train", split}, arguments)
    seconds = {f"{who}, {name}": value for who, one in done.items() for name, value in one.seconds.items()}
    total = age()
    seconds = {"before": start} | seconds
    seconds["between"] = total - sum(seconds.values())
    row: dict[str, Any] = {"split": split, "seed": arguments.seed, "teacher": "none", "teacher_passes": 0}
    if not alone:
        row |= {"teacher": " ".join([arguments.teacher, *arguments.teacher_override])}
        row |= {"teacher_passes": arguments.teacher_passes} | known
        if before is None:
            first = done["teacher"].run
            row["teacher_top1"] = first.summary["val_top1"] if arguments.val else top1_of(first, teacher, "test", arguments)
    results = done["student"].run.summary
    return row | {
        "student": " ".join([arguments.student, *arguments.override]),
        "way": arguments.way,
        "passes": arguments.passes,
        "parameters": parameters,
        "results": {name: value for name, value in results.items() if name.startswith(f"{split}_top1")},
        "pictures": {who: one.pictures for who, one in done.items()},
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "images_per_second": {who: round(one.images_per_second) for who, one in done.items()},
        "total": round(total, 1),
        "limit": arguments.seconds,
        "together": arguments.together,
        "within": total <= arguments.seconds,
        "nonfinite": sum(one.run.summary["nonfinite"] for one in done.values()),
        "notes": {who: one.notes for who, one in done.items()},
    }


def write_log(path: Path, runs: Path) -> None:
    """One line a record: who it is of, and what is worth keeping."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for who in ("teacher", "student"):
            for record in RunFolder(runs / who).metrics() if (runs / who).exists() else ():
                kept = {name: float(f"{record[name]:.5g}") for name in KEPT if name in record}
                file.write(json.dumps({"run": who, **kept}) + "\n")


def log_name(row: dict[str, Any]) -> str:
    """`test-small.best_cifar10-hard-100-convnet.cifar10-80-seed-0`, with overrides."""
    words = [row[name] for name in ("split", "student", "way", "passes", "teacher", "teacher_passes")]
    when = "before" if row.get("teacher_trained") == "before" else ""
    name = as_name(" ".join(map(str, [*words, when, "seed", row["seed"]])))
    if len(name) <= LONGEST:
        return name
    return f"{name[:LONGEST]}-{hashlib.blake2b(name.encode(), digest_size=4).hexdigest()}-seed-{row['seed']}"


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# A transformer from scratch, in one process",
        "",
        "`python benchmarks/headline.py` on CIFAR-10, without a teacher, or with one that was trained in the same process or "
        "before it (which is said): seconds are those of the whole process on one device, from the start of Python on, "
        "compiling from an empty cache included; a teacher trained before is not in them. Rows with `val` are measured on "
        "training pictures that were held out; rows with `test` learned from all training pictures, and the finished student "
        "has read the test pictures once. No test-time augmentation. At once: how many such processes shared the device, at "
        "least, which makes each of them longer.",
    ]
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        alike.setdefault((row["split"], *said_of(row)), []).append(row)
    means = [
        {
            "measured on": split,
            "student": student,
            "teacher": teacher,
            "top-1, mean ± sd": summarize([one["results"][f"{split}_top1"] for one in same]).text(2),
            "seeds": ", ".join(str(one["seed"]) for one in same),
            "seconds, the longest": f"{max(one['total'] for one in same):.0f}",
        }
        for (split, student, teacher), same in alike.items()
    ]
    results = [
        {
            "measured on": row["split"],
            "seed": row["seed"],
            **dict(zip(("student", "teacher"), said_of(row), strict=True)),
            "parameters": f"{row['parameters']:,}",
            "learned from": f"{row['pictures']['student']['train']:,} pictures",
            "teacher's top-1": f"{row['teacher_top1']:.2f}" if "teacher_top1" in row else "",
            **{name.removeprefix(f"{row['split']}_"): f"{value:.2f}" for name, value in row["results"].items()},
            "seconds": f"{row['total']:.0f} of {row['limit']:g}{'' if row['within'] else ': too long'}",
            "at once": row.get("together", 1),
            **{name: row["where"][name] for name in ("device", "torch", "commit")},
        }
        for row in rows
    ]
    seconds = [{"measured on": row["split"], "seed": row["seed"], **row["seconds"], "all": row["total"]} for row in rows]
    parts = [*lines, "", as_markdown(means), "Each:", "", as_markdown(results), "Seconds:", "", as_markdown(seconds)]
    return "\n".join(parts)


def said_of(row: dict[str, Any]) -> tuple[str, str]:
    """Student and teacher, for people."""
    student = f"`{row['student']}`, {row['passes']} passes"
    if row["way"] == "none":
        return student, "none"
    when = ", trained before" if row.get("teacher_trained") == "before" else ""
    return student, f"`{row['teacher']}`, {row['teacher_passes']} passes{when}, {row['way']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--student", default="small.best_cifar10")
    parser.add_argument("--override", action="append", default=[], metavar="NAME=VALUE", help="of the student, or its teaching")
    parser.add_argument("--passes", type=int, default=100, help="of the student")
    parser.add_argument("--way", default="hard", choices=("none", "token", "hard", "soft"), help="to learn from the teacher")
    parser.add_argument("--teacher", default="convnet.cifar10")
    parser.add_argument("--teacher-override", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--teacher-passes", type=int, default=80)
    parser.add_argument("--teacher-run", type=Path, metavar="RUN", help="a finished run of that teacher, with --val alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the limit")
    parser.add_argument("--together", type=int, default=1, metavar="N", help="such processes at once here, for the table")
    parser.add_argument("--val", action="store_true", help="on held-out training pictures")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, help="an empty folder that keeps the runs")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if min(arguments.passes, arguments.teacher_passes) < 1:
        parser.error("--passes and --teacher-passes are 1 or more.")
    if arguments.teacher_run is not None and (not arguments.val or arguments.way == "none"):
        parser.error("--teacher-run is for choosing a way: say --val too, and a --way. On test each trains its own.")
    if arguments.runs is not None and arguments.runs.exists() and any(arguments.runs.iterdir()):
        parser.error(f"--runs {arguments.runs}: there is something in it. Name an empty folder, or one that is not there.")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "compiled")
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "kernels")
        os.environ["FRUGALVIT_CACHE"] = str(Path(folder) / "pictures")
        runs = arguments.runs or Path(folder)
        runs.mkdir(parents=True, exist_ok=True)
        row = measured(arguments, runs)
        device = device_name(place_for(arguments.device, "auto").device)
        row["where"] = {"device": device, "torch": torch.__version__, "commit": arguments.commit}
        print(json.dumps(row), flush=True)
        print(Kept(arguments.out, "headline", lambda row: tuple(row.get(name) for name in KEY), page).add(row))
        write_log(arguments.out / "headline_logs" / f"{log_name(row)}.jsonl", runs)


if __name__ == "__main__":
    started(main)
