"""Whether the gradients of the fast ways are as near to those of fp32 as the plain path's are.

    python benchmarks/gradient_agreement.py [MODEL:BATCH ...] [--ways all] [--batches 8] [--steps 100]

Losses that part after a hundred steps may part by rounding that a training multiplies, or by a mistake; a gradient tells them
apart. The ways, the models by name and their noisy pictures (ways.py) are those of loss_agreement.py. With the weights of the
start, and with those that `plain` has after `--steps` steps, each way gives its gradients of the same `--batches` batches:

- error: the distance from fp32's gradient in units of that gradient's length, the mean over the batches;
- bias: the same of the gradients' mean over all batches, in which rounding cancels and a mistake does not.

Both stand beside those of `plain`, which are what bf16 does.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from frugalvit.measure.latency import device_name
from frugalvit.report.environment import short_commit
from frugalvit.report.table import as_markdown
from frugalvit.training.devices import Place, place_for
from kept import Kept
from script import started
from ways import NUDGES, WAYS, ByName, Noisy, model_losses, pictures_for, ways_named

DEFAULT = ["deit_tiny_patch16_224:256", "deit_small_patch16_224:128"]
FIRST = 1_000_000  # the number of the first batch, none of the training's


def gradient(model: ByName, pictures: Noisy, step: int, batch: int) -> Tensor:
    """All in one row, in fp32."""
    model.module.zero_grad(set_to_none=True)
    model.loss(pictures, step, batch)
    found = [one.grad for one in model.module.parameters() if one.grad is not None]
    return torch.cat([one.float().flatten() for one in found])


def distances(found: list[Tensor], right: list[Tensor]) -> dict[str, float]:
    errors = [float((one - other).norm() / other.norm()) for one, other in zip(found, right, strict=True)]
    mean, mean_right = torch.stack(found).mean(0), torch.stack(right).mean(0)
    return {"error": statistics.fmean(errors), "bias": float((mean - mean_right).norm() / mean_right.norm())}


def compare(item: str, arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    name, _, words = item.rpartition(":")
    batch = int(words)
    source, _ = pictures_for(name, arguments)
    pictures = Noisy.of(source, arguments.noise, device)
    trained = ByName.build(name, WAYS["plain"], Place(device, WAYS["plain"].precision))
    weights = {"start": {key: one.clone() for key, one in trained.module.state_dict().items()}}
    losses = model_losses(trained, pictures, batch, arguments.steps)
    weights[f"after {arguments.steps} steps"] = trained.module.state_dict()
    found: dict[str, dict[str, list[Tensor]]] = {where: {} for where in weights}
    asked = ("fp32", "plain", *arguments.ways)
    idle = {"again", *NUDGES} | (set() if device.type == "cuda" else {"kernels"})  # plain itself
    ways = [way for way in WAYS if way in asked and way not in idle and not WAYS[way].captured]
    for way in ways:
        torch._dynamo.reset()
        model = ByName.build(name, WAYS[way], Place(device, WAYS[way].precision))
        for where, state in weights.items():
            model.module.load_state_dict(state)
            steps = range(FIRST, FIRST + arguments.batches)
            found[where][way] = [gradient(model, pictures, step, batch) for step in steps]
        print(f"{item} {way}", flush=True)
    return {
        "model": name,
        "batch": batch,
        "batches": arguments.batches,
        "losses": [round(losses[0], 4), round(losses[-1], 4)],
        "distances": {
            where: {way: distances(ones, of["fp32"]) for way, ones in of.items() if way != "fp32"}
            for where, of in found.items()
        },
        "where": {"device": device_name(device), "torch": torch.__version__, "commit": arguments.commit},
    }


def page(rows: list[dict[str, Any]]) -> str:
    table = [
        {
            "model": row["model"],
            "weights": where,
            "way": way,
            "error": f"{one['error']:.5f}",
            "of plain's": f"{one['error'] / of['plain']['error']:.2f}",
            "bias": f"{one['bias']:.5f}",
            "of plain's bias": f"{one['bias'] / of['plain']['bias']:.2f}",
        }
        for row in rows
        for where, of in row["distances"].items()
        for way, one in of.items()
    ]
    about = [
        {
            "model": row["model"],
            "batch": row["batch"],
            "batches": row["batches"],
            "loss of plain, first to last": f"{row['losses'][0]:.3f} to {row['losses'][1]:.3f}",
            **row["where"],
        }
        for row in rows
    ]
    lines = [
        "# Whether the fast ways have the plain path's gradients",
        "",
        "`python benchmarks/gradient_agreement.py`: the distance of each way's gradients from those of fp32, in units of their "
        "length: the mean over batches (error), and of the mean gradient of all batches (bias), in which rounding cancels and "
        "a mistake does not. Of plain's: how many times that of the plain path, which is what bf16 does. Models and pictures "
        "are those of [loss_agreement](loss_agreement.md).",
        "",
    ]
    return "\n".join([*lines, as_markdown(table), as_markdown(about)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=DEFAULT, metavar="MODEL:BATCH")
    parser.add_argument("--ways", type=ways_named, default="all", help="all, or some, separated by commas")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--pictures", type=int, default=2048)
    parser.add_argument("--noise", type=float, default=4.0, help="added to the normalized pictures; its deviation")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if wrong := [item for item in arguments.items if item.count(":") != 1]:
        parser.error(f"{wrong[0]}: say MODEL:BATCH, of a model by name.")
    device = place_for(arguments.device, "bf16").device
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    kept = Kept(arguments.out, "gradient_agreement", lambda row: (row["model"], row["batch"]), page)
    text = ""
    for item in arguments.items:
        row = compare(item, arguments, device)
        print(json.dumps(row), flush=True)
        text = kept.add(row)
    print(text)


if __name__ == "__main__":
    started(main)
