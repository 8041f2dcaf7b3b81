"""Whether the fast ways compute what the plain path computes: the loss of the same training, step by step, in each of them.

    python benchmarks/loss_agreement.py [MODEL:BATCH | FAMILY:ADD:BATCH ...] [--ways all] [--steps 200] [--data CIFAR]

All ways begin with the same weights and see the same pictures, draws and learning rates (fused AdamW, `--rate` behind a
warm-up; trainings at several stand beside each other). MODEL:BATCH trains a model by name on synthetic pictures whose class
shows in a coarse pattern, under noise that is drawn anew every step (`--noise`), so that it cannot know them by heart and stop
learning before the steps end. FAMILY:ADD:BATCH is the recipe `small.cifar10`, `vit:spt+lsa:128` for one, with its augmentation
on the device (path=kept), on the arrays in CIFAR or else on synthetic pictures. The ways:

- plain: autocast to bf16, none of our Triton kernels, nothing compiled. What the others are compared with;
- again: plain a second time, for sums whose order the device does not keep;
- fp32: the same without autocast and TF32. Its distance from plain is what bf16 does, and a yardstick of all others;
- nudged_1, nudged_2, nudged_3: plain from weights that were moved at random by half a step of bf16 at most. How far these go
  from plain is how far a training throws differences as small as those of rounding: the other yardstick;
- kernels: as plain with our kernels, which is what runs by default;
- compiled: that by torch.compile;
- stream, compiled_stream: these two with bf16 between blocks too (precision=bf16_stream);
- graph, compiled_graph: a step captured and replayed as a CUDA graph; of small.cifar10 alone, which is compiled where it is
  long. They are compared with kernels and compiled too, the same functions not captured.

fp32 and plain always run. Every loss goes into loss_agreement_logs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import frugalvit
from frugalvit.data.source import Source
from frugalvit.measure.latency import device_name
from frugalvit.report.environment import short_commit
from frugalvit.training import compiled
from frugalvit.training.devices import Place, place_for
from frugalvit.training.duration import Steps
from frugalvit.training.graph_step import GraphStep
from frugalvit.training.prepare import prepare
from frugalvit.training.schedule import Constant
from kept import Kept
from script import started
from ways import (
    NUDGES,
    RATE,
    SEED,
    WARMUP,
    WAYS,
    ByName,
    Noisy,
    Way,
    model_losses,
    nudge,
    pictures_for,
    ways_named,
    without_kernels,
)

DEFAULT = ["deit_tiny_patch16_224:256", "deit_small_patch16_224:128", "vit:spt+lsa:128"]


COMPARED = [(way, "plain") for way in WAYS if way != "plain"] + [("graph", "kernels"), ("compiled_graph", "compiled")]


class Unfit(Exception):
    """Why a way was not taken."""


def recipe_losses(
    family: str, add: str, batch: int, way: Way, source: Source, place: Place, steps: int, rate: float
) -> list[float]:
    """Of small.cifar10, by the functions of a `GraphStep` in every way."""
    recipe = frugalvit.recipe("small.cifar10", f"model={family}", f"add={add}", f"batch={batch}", f"lr={rate}", "path=kept")
    total = compiled.FROM if way.compiled else 1  # by which a captured step chooses; the learning rate does not look at it
    recipe = replace(recipe, duration=Steps(total), schedule=Constant(Steps(round(WARMUP * steps))), seed=SEED)
    training = prepare(recipe, {"train": source}, place)
    step, batches = training.step, training.batches
    assert isinstance(step, GraphStep)
    if not way.kernels:
        without_kernels(training.state.module)
    if way.nudge:
        nudge(training.state.module, way.nudge)
    if not way.captured:
        step.tried = True
        if way.compiled:
            step.prepared = compiled.compiled(step.prepared, compiled.OPTIONS[0], whole=True)
            step.terms = compiled.compiled(step.terms, compiled.OPTIONS[0], whole=False)
    losses = []
    for number in range(steps):
        step.take([batches[number]])
        losses.append(step.taken()["loss"])
        if step.notes:
            raise Unfit("; ".join(step.notes))
    return losses


def losses_of(
    model: str, batch: int, name: str, source: Any, device: torch.device, arguments: argparse.Namespace
) -> list[float]:
    way, steps = WAYS[name], arguments.steps
    if device.type != "cuda" and way.captured:
        raise Unfit("graphs need CUDA")
    if device.type != "cuda" and name == "kernels":
        raise Unfit("our kernels need CUDA, and without them this is plain")
    torch._dynamo.reset()
    place = Place(device, way.precision)
    if ":" in model:
        family, add = model.split(":")
        return recipe_losses(family, add, batch, way, source, place, steps, arguments.rate)
    pictures = Noisy.of(source, arguments.noise, device)
    return model_losses(ByName.build(model, way, place), pictures, batch, steps, arguments.rate)


def compare(item: str, arguments: argparse.Namespace, device: torch.device) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """A row, and the losses of each way that was taken."""
    model, _, batch = item.rpartition(":")
    source, data = pictures_for(model, arguments)
    curves: dict[str, list[float]] = {}
    spent: dict[str, float] = {}
    skipped: dict[str, str] = {}
    for name, way in WAYS.items():
        if name not in ("plain", "fp32", *arguments.ways) or (way.captured and ":" not in model):
            continue
        began = time.perf_counter()
        try:
            curves[name] = losses_of(model, int(batch), name, source, device, arguments)
        except Unfit as error:
            skipped[name] = str(error)
        spent[name] = time.perf_counter() - began
        print(f"{item} {name}: {skipped.get(name, f'{spent[name]:.1f} s')}", flush=True)
    tenth = max(arguments.steps // 10, 1)
    row = {
        "model": model,
        "batch": int(batch),
        "steps": arguments.steps,
        "rate": arguments.rate,
        "pictures": len(source),
        "noise": None if ":" in model else arguments.noise,
        "ways": {
            name: {
                "first": round(statistics.fmean(losses[:tenth]), 5),
                "last": round(statistics.fmean(losses[-tenth:]), 5),
                "seconds": round(spent[name], 1),
            }
            for name, losses in curves.items()
        },
        "differences": differences(curves),
        "skipped": skipped,
        "where": {"device": device_name(device), "torch": torch.__version__, "data": data, "commit": arguments.commit},
    }
    return row, curves


def differences(curves: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Mean, median and largest distance of the losses, step by step; ratios are to fp32's and to nudged ways' from plain."""
    apart = {
        (way, against): [abs(one - other) for one, other in zip(curves[way], curves[against], strict=True)]
        for way, against in COMPARED
        if way in curves and against in curves
    }
    yardstick = apart["fp32", "plain"]
    thrown = [statistics.fmean(apart[name, "plain"]) for name in NUDGES if (name, "plain") in apart]
    return [
        {
            "way": way,
            "against": against,
            "mean": short(statistics.fmean(steps)),
            "median": short(statistics.median(steps)),
            "largest": short(max(steps)),
            "ratio": ratio(statistics.fmean(steps), statistics.fmean(yardstick)),
            "median_ratio": ratio(statistics.median(steps), statistics.median(yardstick)),
            "nudged_ratio": ratio(statistics.fmean(steps), statistics.fmean(thrown)) if thrown else None,
        }
        for (way, against), steps in apart.items()
    ]


def rate_of(row: dict[str, Any]) -> float:
    """Rows of earlier versions had one rate alone."""
    return row.get("rate", RATE)


def named(row: dict[str, Any]) -> str:
    return row["model"] if rate_of(row) == RATE else f"{row['model']}, rate {rate_of(row):g}"


def short(value: float) -> float:
    return float(f"{value:.4g}")


def ratio(value: float, yardstick: float) -> float | None:
    return round(value / yardstick, 3) if yardstick else None


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; those measured in other runs of this script keep their own commit and device."""
    lines = [
        "# Whether the fast ways compute what the plain path computes",
        "",
        "`python benchmarks/loss_agreement.py`: the same training in several ways (the same weights at first, pictures, draws "
        "and learning rates), and how far its losses are from those of another way, step by step. There are two yardsticks: "
        "fp32 against plain, and plain against itself from weights that were moved by half a step of bf16 at most (nudged). "
        "A way whose ratio is about 1 or below is as far from plain as rounding takes it. A training that wavers multiplies "
        "every difference, the least too, and by chance: so the second is the mean of three, and such a training says less of "
        "a way than a steady one. Whether gradients agree, before anything is multiplied, stands in "
        "[gradient_agreement](gradient_agreement.md). What each way is stands at the top of the script. First and last: the "
        "mean loss of the first and of the last tenth of the steps, so that one sees it learn. The learning rate rises to "
        f"{RATE:g} where no other is named.",
        "",
        "| model | batch | way | first | last | against | mean difference | median | largest | of fp32's mean | median "
        "| of nudged's mean |",
        "|---|---:|---|---:|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        plain = row["ways"]["plain"]
        cells = [named(row), str(row["batch"]), "plain", f"{plain['first']:.4f}", f"{plain['last']:.4f}"]
        lines.append(f"| {' | '.join(cells)} | | | | | | | |")
        for one in row["differences"]:
            way = row["ways"][one["way"]]
            found = [one.get(name) for name in ("ratio", "median_ratio", "nudged_ratio")]
            ratios = ["" if one is None else f"{one:.3f}" for one in found]
            cells = [named(row), str(row["batch"]), one["way"], f"{way['first']:.4f}", f"{way['last']:.4f}"]
            cells += [one["against"], *(f"{one[name]:.2e}" for name in ("mean", "median", "largest")), *ratios]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| model | batch | steps | pictures | not taken | device | torch | commit |"]
    lines += ["|---|---:|---:|---|---|---|---|---|"]
    for row in rows:
        where = row["where"]
        missing = "; ".join(f"{name}: {why}" for name, why in row["skipped"].items()) or "none"
        noisy = f", noise of {row['noise']:g} anew every step" if row.get("noise") else ""
        cells = [named(row), str(row["batch"]), str(row["steps"]), f"{row['pictures']:,} {where['data']}{noisy}", missing]
        lines.append(f"| {' | '.join([*cells, where['device'], where['torch'], where['commit']])} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=DEFAULT, metavar="MODEL:BATCH")
    parser.add_argument(
        "--ways", type=ways_named, default="all", help=f"all, or some, separated by commas, of {', '.join(WAYS)}"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rate", type=float, default=RATE, help="the learning rate, behind its warm-up")
    parser.add_argument("--pictures", type=int, default=2048, help="synthetic ones")
    parser.add_argument(
        "--noise", type=float, default=4.0, help="added to the normalized pictures of models by name; its deviation"
    )
    parser.add_argument("--data", type=Path, help="arrays for small.cifar10")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    device = place_for(arguments.device, "bf16").device
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    logs = arguments.out / "loss_agreement_logs"
    logs.mkdir(parents=True, exist_ok=True)
    kept = Kept(arguments.out, "loss_agreement", lambda row: (row["model"], row["batch"], rate_of(row)), page)
    text = ""
    for item in arguments.items:
        row, curves = compare(item, arguments, device)
        print(json.dumps(row), flush=True)
        lines = [json.dumps({"way": way, "losses": [float(f"{loss:.7g}") for loss in curve]}) for way, curve in curves.items()]
        calm = "" if arguments.rate == RATE else f"-{arguments.rate:g}"
        (logs / f"{item.replace(':', '-').replace('+', '-')}{calm}.jsonl").write_text("\n".join(lines) + "\n")
        text = kept.add(row)
    print(text)


if __name__ == "__main__":
    started(main)
