"""The time of a whole training step on small pictures: read, augment, mix, forward, backward, update.

    python benchmarks/small_step.py --data CIFAR [MODEL:ADD ...] [--batch 128] [--steps 1000] [--out docs/results]

CIFAR is a folder of arrays. MODEL is vit, cait, pit, swin or t2t, ADD none or spt+lsa: the published recipe `small.cifar10`
with the pictures on the device. Prints milliseconds a step, images/s, the share of time spent waiting
for data, and the seconds until the first step.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import frugalvit
from frugalvit.data.arrays import ArrayFolder
from frugalvit.report.environment import short_commit
from frugalvit.training.devices import place_for
from frugalvit.training.prepare import prepare
from kept import Kept
from script import started


def timed(item: str, data: Path, batch: int, steps: int, device: str, path: str) -> dict[str, Any]:
    model, _, add = item.partition(":")
    recipe = frugalvit.recipe("small.cifar10", f"model={model}", f"add={add or 'none'}", f"batch={batch}", f"path={path}")
    training = prepare(recipe, {"train": ArrayFolder(0.0).open("train", data)}, place_for(device, recipe.precision))
    step, reader = training.step, training.step.reader(training.batches, range(20 + steps), 0)
    began = time.perf_counter()
    step.take([next(reader)])
    step.taken()
    first = time.perf_counter() - began
    for _ in range(1, 20):
        step.take([next(reader)])
    step.taken()
    began, waited = time.perf_counter(), 0.0
    for _ in range(steps):
        asked = time.perf_counter()
        given = next(reader)
        waited += time.perf_counter() - asked
        step.take([given])
    values = step.taken()
    seconds = (time.perf_counter() - began) / steps
    return {
        "model": item,
        "batch": batch,
        "steps": steps,
        "path": training.recipe.path,
        "precision": training.place.precision,
        "ms": round(1e3 * seconds, 3),
        "images_per_second": round(batch / seconds),
        "waiting": round(waited / steps / seconds, 4),
        "first_step_s": round(first),
        "loss": round(values["loss"], 4),
        "notes": step.notes,
    }


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# The time of a whole training step on small pictures",
        "",
        "`python benchmarks/small_step.py`: the published recipe of Lee et al. (2021) on CIFAR-10, everything included "
        "(reading, AutoAugment, erasing, mixing, forward, backward, update). The authors' code runs 4,506 (ViT) and 3,727 "
        "images/s (ViT with SPT and LSA) at batch 128 on such a device, without data loading.",
        "",
        "| model | batch | path | precision | ms a step | images/s | waiting for data | first step, s |",
        "|---|---:|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [row["model"].replace(":none", "").replace(":", " "), row["batch"], row["path"], row["precision"]]
        cells += [f"{row['ms']:.3f}", f"{row['images_per_second']:,}", f"{row['waiting']:.1%}", row["first_step_s"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "| model | batch | steps | device | torch | commit |", "|---|---:|---:|---|---|---|"]
    for row in rows:
        where = row["where"]
        cells = [row["model"], row["batch"], row["steps"], where["device"], where["torch"], where["commit"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=["vit:none", "vit:spt+lsa"], metavar="MODEL:ADD")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--path", default="auto", help="auto, plain, sent or kept")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    kept = Kept(arguments.out, "small_step", lambda row: (row["model"], row["batch"], row["path"]), page)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    where = {"device": device, "torch": torch.__version__, "commit": arguments.commit}
    for item in arguments.items:
        row = timed(item, arguments.data, arguments.batch, arguments.steps, arguments.device, arguments.path)
        print(json.dumps(row), flush=True)
        kept.add(row | {"where": where})


if __name__ == "__main__":
    started(main)
