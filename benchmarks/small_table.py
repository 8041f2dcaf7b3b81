"""The table of Lee et al. (2021) on CIFAR-10: their protocol, our mean ± sd and n, the last epoch beside the best, and theirs.

    python benchmarks/small_table.py vit:none vit:spt+lsa --data CIFAR [--passes 300] [--seeds 0,1,2] [--together 2]

CIFAR is a folder of arrays (train_images.npy, test_images.npy, ...). Seeds train at the same time on CUDA, and so do as many
models as --together says, each in a process of its own. The paper reports its best epoch on the test pictures, so these are
measured on the way (data.validate=test), and both figures are given. Rows of earlier calls stay; a row that is measured again
replaces its old one. Every validation's losses and accuracies go into small_table_logs. With --override the training is
another than theirs, and its row says so.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

import frugalvit
from frugalvit.errors import FrugalError
from frugalvit.report.environment import short_commit
from frugalvit.report.progress import Lines
from frugalvit.report.statistics import summarize
from frugalvit.run import Run
from kept import Kept
from script import each_apart, run_apart, started

PAPER = {  # top-1, best epoch: table 2 of arXiv 2112.13492
    "vit:none": 93.58,
    "vit:spt+lsa": 94.53,
    "t2t:none": 95.30,
    "t2t:spt+lsa": 95.57,
    "cait:none": 94.91,
    "cait:spt+lsa": 95.81,
    "pit:none": 94.24,
    "pit:spt+lsa": 95.88,
    "swin:none": 94.46,
    "swin:spt+lsa": 95.93,
}
KEPT = ("step", "epoch", "loss", "lr", "val_top1", "val_loss", "time_images_per_second", "time_waiting")


def measured(item: str, arguments: argparse.Namespace, runs: Path) -> tuple[dict[str, Any], list[Run]]:
    model, _, add = item.partition(":")
    words = [f"model={model}", f"add={add}", f"passes={arguments.passes}", "data.validate=test", *arguments.override]
    recipe = frugalvit.recipe("small.cifar10", *words)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    began = time.perf_counter()
    name = name_of(item, arguments)
    display = Lines((runs / f"{name}.txt").open("a", encoding="utf-8"))
    done = frugalvit.train_seeds(
        recipe,
        seeds,
        out=runs / name,
        data=arguments.data,
        resume=True,
        device=arguments.device,
        display=display,
    )
    print(f"{item}: {time.perf_counter() - began:.0f} s in this call", flush=True)
    records = [record for run in done for record in logged(run)]
    rates = [record["time_images_per_second"] for record in records if record["epoch"] > 1] or [0.0]
    row = {
        "item": item,
        "passes": arguments.passes,
        "last": [run.summary["val_top1"] for run in done],
        "best": [run.summary["best_val_top1"] for run in done],
        "seeds": seeds,
        "parameters": frugalvit.cost(recipe.model).parameters,
        "images_per_second_each": round(statistics.median(rates)),
        "waiting": round(statistics.median(record["time_waiting"] for record in records), 4),
        "seconds": round(max(seconds_of(logged(run), recipe.pictures) for run in done)),
        "nonfinite": sum(run.summary["nonfinite"] for run in done),
        "overrides": arguments.override,
        "together": arguments.together,
        "where": where(arguments),
    }
    return row, done


def by_itself(item: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The same in a process of its own; its row, with the logs beside ours."""
    name = name_of(item, arguments)
    part = arguments.runs / f"{name}-row"
    words = ["--data", arguments.data, "--passes", arguments.passes, "--seeds", arguments.seeds, "--device", arguments.device]
    words += ["--runs", arguments.runs, "--commit", arguments.commit, "--out", part]
    words += [word for one in arguments.override for word in ("--override", one)]
    run_apart([__file__, item, *words])
    logs = f"small_table_logs/{name}.jsonl"
    (arguments.out / logs).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(part / logs, arguments.out / logs)
    (row,) = json.loads((part / "small_table.json").read_text())["rows"]
    return row | {"together": arguments.together}


def name_of(item: str, arguments: argparse.Namespace) -> str:
    """Of a run's folder and of its log."""
    name = f"{item.replace(':', '-').replace('+', '-')}-{arguments.passes}"
    if not arguments.override:
        return name
    return f"{name}-{hashlib.blake2b(' '.join(arguments.override).encode(), digest_size=4).hexdigest()}"


def logged(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def seconds_of(records: list[dict[str, Any]], pictures: int) -> float:
    """A run's training time by its records, over all calls that trained it; without validation and checkpoints."""
    steps = [0, *(record["step"] for record in records)]
    taken = [after - before for before, after in itertools.pairwise(steps)]
    return sum(count * pictures / one["time_images_per_second"] for count, one in zip(taken, records, strict=True))


def where(arguments: argparse.Namespace) -> dict[str, str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    return {"device": device, "torch": torch.__version__, "commit": arguments.commit}


def write_logs(path: Path, done: list[Run]) -> None:
    """One line a validation: the seed's folder and what is worth keeping."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for run in done:
            for record in logged(run):
                if "val_top1" not in record:
                    continue
                kept = {name: rounded(record[name]) for name in KEPT if name in record}
                file.write(json.dumps({"run": run.path.name, **kept}) + "\n")


def rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Lee et al.'s small-data table on CIFAR-10",
        "",
        "`python benchmarks/small_table.py`: top-1 of the 10,000 test pictures, mean ± sample deviation over seeds; the paper "
        "reports its best epoch (one run). Passes are epochs over 50,000 pictures; the paper's are 300. Nothing was chosen on "
        "the test pictures but the best epoch, as in the paper. Seeds trained at the same time, and so did some models, as the "
        "second table says; minutes are those of all seeds, and other programs may have shared the device: they tell what was "
        "spent, not how fast a training is. bf16 products; the paper trains in fp32. A model that is changed is not the "
        "paper's: the overrides in the second table are what was tried to see why one falls short.",
        "",
        "| model | passes | last epoch | best epoch | the paper, best epoch | parameters | images/s each | waiting | minutes |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            row["item"].replace(":none", "").replace(":", " ") + (", changed" if row["overrides"] else ""),
            row["passes"],
            summarize(row["last"]).text(2),
            summarize(row["best"]).text(2),
            f"{PAPER[row['item']]:.2f}",
            f"{row['parameters']:,}",
            f"{row['images_per_second_each']:,}",
            f"{row['waiting']:.1%}",
            f"{row['seconds'] / 60:.1f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "| model | passes | seeds | models at once | device | torch | commit | overrides |"]
    lines += ["|---|---:|---|---:|---|---|---|---|"]
    for row in rows:
        place = row["where"]
        cells = [row["item"], row["passes"], ", ".join(map(str, row["seeds"])), row.get("together", 1)]
        cells += [place["device"], place["torch"], place["commit"]]
        lines.append(f"| {' | '.join(map(str, [*cells, ' '.join(row['overrides']) or 'none']))} |")
    return "\n".join(lines) + "\n"


def key(row: dict[str, Any]) -> tuple[str, int, tuple[str, ...]]:
    return row["item"], row["passes"], tuple(row["overrides"])


def as_in_the_paper(row: dict[str, Any]) -> tuple[int, int, list[str]]:
    """The longest training of a model first."""
    return list(PAPER).index(row["item"]), -row["passes"], row["overrides"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="+", choices=list(PAPER), metavar="MODEL:ADD", help=", ".join(PAPER))
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=300)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--together", type=int, default=1, help="models that train at the same time, each in a process")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--override", action="append", default=[], metavar="NAME=VALUE", help="of the recipe; is shown")
    parser.add_argument("--runs", type=Path, default=Path("runs/small_table"), help="run folders; what is there is resumed")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    arguments.runs.mkdir(parents=True, exist_ok=True)
    kept = Kept(arguments.out, "small_table", key, page, order=as_in_the_paper)
    failed: list[str] = []
    if arguments.together > 1:
        for item, finished in each_apart(arguments.items, arguments.together, lambda item: by_itself(item, arguments)):
            if finished.exception() is None:
                kept.add(finished.result())
            else:
                print(f"{item}: {finished.exception()}", file=sys.stderr, flush=True)
                failed.append(item)
    else:
        for item in arguments.items:
            try:
                row, done = measured(item, arguments, arguments.runs)
            except FrugalError as error:
                print(f"{item}: {error}", file=sys.stderr, flush=True)
                failed.append(item)
                continue
            print(json.dumps(row), flush=True)
            write_logs(arguments.out / "small_table_logs" / f"{name_of(item, arguments)}.jsonl", done)
            kept.add(row)
    print(page(kept.rows()))
    if failed:
        sys.exit(f"{', '.join(failed)} failed; their messages stand above. The rows of the others are kept.")


if __name__ == "__main__":
    started(main)
