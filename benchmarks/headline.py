"""A small transformer and its teacher, both from scratch on CIFAR-10, in one process and within a time limit.

    python benchmarks/headline.py --data CIFAR [--val] [--passes 100] [--teacher-passes 80] [--seed 0] [--out docs/results]

CIFAR is a folder of arrays (train_images.npy, test_images.npy, ...). The clock is that of the process: it starts with Python
and counts imports, opening, compiling (from an empty cache), the training of both, and the measurement. With `--val`, 45,000
training pictures are learned from and the 5,000 others measured: for choosing. Without, all 50,000 are learned from, and the
finished student reads the test pictures, once; so does its teacher, when the clock has stopped. Rows of earlier calls stay.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import frugalvit
from frugalvit.beginning import opened
from frugalvit.errors import FrugalError
from frugalvit.nn.architecture import Architecture
from frugalvit.recipes.teach import taught
from frugalvit.report.environment import short_commit
from frugalvit.report.files import write_json
from frugalvit.report.progress import Lines
from frugalvit.report.record import RunFolder
from frugalvit.report.table import as_markdown
from frugalvit.run import Run
from frugalvit.studies.timing import time_split
from frugalvit.training.devices import place_for
from frugalvit.training.duration import Epochs
from frugalvit.training.evaluate import Framed, evaluate
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import RunTeacher, Teaching

SECONDS, PARAMETERS = 540, 10_000_000
KEPT = ("step", "epoch", "loss", "supervised_class", "distilled_distill", "lr", "val_top1", "time_images_per_second")


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
    with told.open("w", encoding="utf-8") as file:
        run = frugalvit.train(recipe, out=out, data=data, device=arguments.device, display=Lines(file))
    split = time_split(run.path)
    seconds = {"steps": split.steps, "compiling": split.first, "rest": time.perf_counter() - began - split.total}
    notes = [line.removeprefix("note: ") for line in told.read_text("utf-8").splitlines() if line.startswith("note: ")]
    return Trained(run, {name: len(source) for name, source in data.items()}, seconds, split.images_per_second, notes)


def top1_of(run: Run, recipe: Recipe, split: str, arguments: argparse.Namespace) -> float:
    """Of a finished run, in percent."""
    classifier, place = frugalvit.load(run.path), place_for(arguments.device, recipe.precision)
    framed = Framed(opened(recipe, arguments.data)[split], classifier.spec.preprocess, place)
    return evaluate(classifier.module.to(place.device).eval(), framed, 0)["top1"]


def measured(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    start, split = age(), "val" if arguments.val else "test"
    teacher = recipe_of(arguments.teacher, arguments.teacher_override, arguments.teacher_passes, arguments)
    plain = recipe_of(arguments.student, arguments.override, arguments.passes, arguments)
    student = taught(plain, Teaching(RunTeacher(str(folder / "teacher"))), arguments.way)
    parameters = parameters_of(replace(student.model, classes=10))
    if parameters > PARAMETERS:
        raise SystemExit(f"the student has {parameters:,} parameters, more than {PARAMETERS:,}. Choose a smaller one.")
    both = {"teacher": trained(teacher, folder / "teacher", {"train", "val"}, arguments)}
    torch.cuda.empty_cache()
    both["student"] = trained(student, folder / "student", {"train", split}, arguments)
    first, done = (one.run.summary for one in both.values())
    seconds = {f"{who}, {name}": value for who, one in both.items() for name, value in one.seconds.items()}
    total = age()
    seconds = {"before": start} | seconds
    seconds["between"] = total - sum(seconds.values())
    return {
        "split": split,
        "seed": arguments.seed,
        "teacher": " ".join([arguments.teacher, *arguments.teacher_override]),
        "teacher_passes": arguments.teacher_passes,
        "teacher_top1": first["val_top1"] if arguments.val else top1_of(both["teacher"].run, teacher, "test", arguments),
        "student": " ".join([arguments.student, *arguments.override]),
        "way": arguments.way,
        "passes": arguments.passes,
        "parameters": parameters,
        "results": {name: value for name, value in done.items() if name.startswith(f"{split}_top1")},
        "pictures": {who: one.pictures for who, one in both.items()},
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "images_per_second": {who: round(one.images_per_second) for who, one in both.items()},
        "total": round(total, 1),
        "limit": arguments.seconds,
        "within": total <= arguments.seconds,
        "nonfinite": first["nonfinite"] + done["nonfinite"],
        "notes": {who: one.notes for who, one in both.items()},
    }


def write_log(path: Path, runs: Path) -> None:
    """One line a record: who it is of, and what is worth keeping."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for who in ("teacher", "student"):
            for record in RunFolder(runs / who).metrics():
                kept = {name: float(f"{record[name]:.5g}") for name in KEPT if name in record}
                file.write(json.dumps({"run": who, **kept}) + "\n")


def log_name(row: dict[str, Any]) -> str:
    """`test-small.best_cifar10-token-100-convnet.cifar10-80-seed-0`, with overrides."""
    words = [row[name] for name in ("split", "student", "way", "passes", "teacher", "teacher_passes")]
    return re.sub(r"[^\w.]+", "-", " ".join(map(str, [*words, "seed", row["seed"]])))


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# A teacher and a student from scratch, in one process",
        "",
        "`python benchmarks/headline.py` on CIFAR-10: seconds are those of the whole process on one device, from the start of "
        "Python on, compiling from an empty cache included. Rows with `val` learned from 45,000 training pictures and are "
        "measured on the 5,000 others; rows with `test` learned from all 50,000, and the finished student has read the test "
        "pictures once.",
    ]
    results = [
        {
            "measured on": row["split"],
            "seed": row["seed"],
            "student": f"`{row['student']}`, {row['way']}, {row['passes']} passes",
            "parameters": f"{row['parameters']:,}",
            "teacher": f"`{row['teacher']}`, {row['teacher_passes']} passes",
            "teacher's top-1": f"{row['teacher_top1']:.2f}",
            **{name.removeprefix(f"{row['split']}_"): f"{value:.2f}" for name, value in row["results"].items()},
            "seconds": f"{row['total']:.0f} of {row['limit']:g}{'' if row['within'] else ': too long'}",
            **{name: row["where"][name] for name in ("device", "torch", "commit")},
        }
        for row in rows
    ]
    seconds = [{"measured on": row["split"], "seed": row["seed"], **row["seconds"], "all": row["total"]} for row in rows]
    return "\n".join([*lines, "", as_markdown(results), "Seconds:", "", as_markdown(seconds)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--student", default="small.best_cifar10")
    parser.add_argument("--override", action="append", default=[], metavar="NAME=VALUE", help="of the student's recipe")
    parser.add_argument("--passes", type=int, default=100, help="of the student")
    parser.add_argument("--way", default="token", choices=("token", "hard", "soft"))
    parser.add_argument("--teacher", default="convnet.cifar10")
    parser.add_argument("--teacher-override", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--teacher-passes", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the limit")
    parser.add_argument("--val", action="store_true", help="on held-out training pictures")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, help="an empty folder that keeps both runs")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if min(arguments.passes, arguments.teacher_passes) < 1:
        parser.error("--passes and --teacher-passes are 1 or more.")
    arguments.out.mkdir(parents=True, exist_ok=True)
    saved = arguments.out / "headline.json"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "compiled")
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "kernels")
        runs = arguments.runs or Path(folder)
        runs.mkdir(parents=True, exist_ok=True)
        try:
            row = measured(arguments, runs)
        except FrugalError as error:
            sys.exit(f"{type(error).__name__}: {error}")
        write_log(arguments.out / "headline_logs" / f"{log_name(row)}.jsonl", runs)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    row["where"] = {"device": device, "torch": torch.__version__, "commit": arguments.commit}
    print(json.dumps(row), flush=True)
    told = ("split", "seed", "teacher", "teacher_passes", "student", "way", "passes")
    rows = json.loads(saved.read_text())["rows"] if saved.exists() else []
    rows = [one for one in rows if any(one[name] != row[name] for name in told)] + [row]
    write_json(saved, {"rows": rows})
    (arguments.out / "headline.md").write_text(page(rows))
    print(page(rows))


if __name__ == "__main__":
    main()
