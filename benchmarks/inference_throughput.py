"""Inference throughput beside timm's: the same batch, alternating in one run.

    python benchmarks/inference_throughput.py [MODEL:BATCH ...] [--rounds 5] [--steps 40] [--out docs/results]

Both sides: torch.compile in its default mode, autocast to bf16 over fp32 parameters, inference mode, one synthetic batch on the
device; device events on CUDA, the clock elsewhere. A round times timm, then FrugalViT; the ratio is the median over rounds of
ours / timm's within a round. A batch of 1 is waited for before the next one, so its milliseconds are a latency; larger batches
queue. A model may be measured with several batches, `deit_tiny_patch16_224:1` too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

import frugalvit
from frugalvit.measure.latency import device_name, seconds, wait
from frugalvit.report.environment import short_commit
from frugalvit.training.devices import place_for
from kept import Kept
from script import started

DEFAULT = ["deit_tiny_patch16_224:1024", "deit_small_patch16_224:512", "deit_base_patch16_224:256"]
DEFAULT += ["convit_small:256", "cait_s24_224:256", "pit_s_224:256", "swin_tiny_patch4_window7_224:256"]
COMPILERS: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {"on": torch.compile, "off": lambda module: module}


def prediction(forward: Callable[[Tensor], Tensor], image_BCHW: Tensor) -> Callable[[], None]:
    device = image_BCHW.device

    def step() -> None:
        with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16):
            forward(image_BCHW)
        if len(image_BCHW) == 1:
            wait(device)

    return step


def compare(name: str, batch: int, arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch._dynamo.reset()
    compiled = COMPILERS[arguments.compile]
    spec = frugalvit.model(name)
    theirs, ours = compiled(timm.create_model(name).to(device).eval()), compiled(spec.build().to(device).eval())
    image_BCHW = torch.randn(batch, spec.image.channels, spec.image.height, spec.image.width, device=device)
    sides = {"timm": prediction(theirs, image_BCHW), "frugalvit": prediction(lambda image: ours(image)["class"], image_BCHW)}
    for step in sides.values():
        seconds(step, arguments.warm, device)
    found: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(arguments.rounds):
        for side, step in sides.items():
            found[side].append(seconds(step, arguments.steps, device))
    ratios = [timms / own for own, timms in zip(found["frugalvit"], found["timm"], strict=True)]
    medians = {side: statistics.median(rounds) for side, rounds in found.items()}
    return {
        "model": name,
        "batch": batch,
        "timm": round(batch / medians["timm"]),
        "frugalvit": round(batch / medians["frugalvit"]),
        "timm_ms": round(1e3 * medians["timm"], 3),
        "frugalvit_ms": round(1e3 * medians["frugalvit"], 3),
        "ratio": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
        "rounds": arguments.rounds,
    }


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; models measured in other runs of this script keep their own commit and versions."""
    lines = [
        "# Inference throughput beside timm's",
        "",
        "`python benchmarks/inference_throughput.py`: images/s and milliseconds a batch, median over rounds with both sides "
        "alternating; the ratio is ours / timm's images/s within a round: median (lowest to highest). "
        "A batch of 1 is waited for before the next one, so its milliseconds are a latency; larger batches queue. "
        "A + behind a commit: with changes not yet committed.",
        "",
        "| model | batch | timm | FrugalViT | timm, ms | FrugalViT, ms | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        spread = f"{row['ratio']:.3f} ({row['lowest']:.3f} to {row['highest']:.3f})"
        times = [f"{row['timm_ms']:.3f}", f"{row['frugalvit_ms']:.3f}"]
        cells = [row["model"], str(row["batch"]), f"{row['timm']:,}", f"{row['frugalvit']:,}", *times, spread]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| model | batch | rounds x steps | compiled | device | torch | timm | commit |"]
    lines += ["|---|---:|---:|---|---|---|---|---|"]
    for row in rows:
        where = row["where"]
        cells = [row["model"], str(row["batch"]), f"{row['rounds']} x {where['steps_per_round']}"]
        cells += [where[name] for name in ("compile", "device", "torch", "timm", "commit")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=DEFAULT, metavar="MODEL:BATCH")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warm", type=int, default=20, help="steps before the first round")
    parser.add_argument("--compile", default="on", choices=list(COMPILERS))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    device = place_for(arguments.device, "bf16").device
    where = {
        "device": device_name(device),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "commit": arguments.commit,
        "compile": arguments.compile,
        "steps_per_round": arguments.steps,
    }
    kept = Kept(arguments.out, "inference_throughput", lambda row: (row["model"], row["batch"]), page)
    text = ""
    for item in arguments.items:
        name, _, batch = item.rpartition(":")
        row = compare(name, int(batch), arguments, device) | {"where": where}
        print(json.dumps(row), flush=True)
        text = kept.add(row)
    print(text)


if __name__ == "__main__":
    started(main)
