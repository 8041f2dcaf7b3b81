"""Training throughput beside timm's, on one GPU: the same batch, the same step, alternating in one run.

    python benchmarks/train_throughput.py [MODEL:BATCH ...] [--ways plain,graph,stream,skip] [--rounds 5] [--out docs/results]

Both sides: torch.compile in its default mode, autocast to bf16 over fp32 parameters, fused AdamW, drop_path 0.1,
soft-target cross-entropy, one synthetic batch on the device, device events. A round times timm, then FrugalViT in each of
its ways; the ratio is the median over rounds of ours / timm's within a round. The ways: `plain` as timm; `graph`, the same step
captured as a CUDA graph, which is how FrugalViT trains; `stream`, a graph where what flows from block to block is rounded to
bf16 too (precision=bf16_stream); `skip`, a stream whose stochastic depth leaves out a fixed count of samples (FixedCountDepth,
a deviation); `fp8`, a stream whose blocks multiply in 8-bit floats (with_fp8_linears).

Calls of several models may share a device: with --meet FOLDER and --calls N they compile at the same time, wait until all N are
ready, and measure one after the other.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F

import frugalvit
from frugalvit.measure.captured import captured
from frugalvit.report.environment import short_commit
from frugalvit.zoo.change import with_fixed_count_depth, with_fp8_linears
from kept import Kept
from script import started

DEFAULT = ["deit_tiny_patch16_224:1024", "deit_small_patch16_224:512", "deit_base_patch16_224:256"]
DEFAULT += ["convit_small:256", "cait_s24_224:256", "pit_s_224:256", "swin_tiny_patch4_window7_224:256"]


def training_step(
    module: torch.nn.Module, forward: Callable[[torch.Tensor], torch.Tensor], batch: int, graph: bool = False
) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True, capturable=graph)
    image_BCHW = torch.randn(batch, 3, 224, 224, device="cuda")
    target_BC = torch.randn(batch, 1000, device="cuda").softmax(1)

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(forward(image_BCHW), target_BC)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return captured(step) if graph else step


def timm_step(name: str, batch: int) -> Callable[[], None]:
    module = timm.create_model(name, drop_path_rate=0.1).cuda()
    return training_step(module, torch.compile(module), batch)


def our_step(name: str, batch: int, way: str = "plain") -> Callable[[], None]:
    spec = frugalvit.model(name, drop_path=0.1)
    changed = {"skip": with_fixed_count_depth, "fp8": with_fp8_linears}
    module = (changed[way](spec) if way in changed else spec).build().cuda()
    module.stream = torch.bfloat16 if way in ("stream", "skip", "fp8") else None
    compiled = torch.compile(module)
    return training_step(module, lambda image: compiled(image, module.random_draws(batch))["class"], batch, way != "plain")


def seconds(step: Callable[[], None], count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / count / 1e3


@contextlib.contextmanager
def met(folder: Path | None, calls: int) -> Iterator[None]:
    """Until all calls are here, and then one at a time. One that never comes is waited for ten minutes."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{os.getpid()}.ready").touch()
    until = time.monotonic() + 600
    while len(list(folder.glob("*.ready"))) < calls and time.monotonic() < until:
        time.sleep(0.2)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def compare(name: str, batch: int, ways: list[str], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each of our ways, all measured beside the same rounds of timm's."""
    rounds, steps = arguments.rounds, arguments.steps
    torch._dynamo.reset()
    sides = {"timm": timm_step(name, batch)} | {way: our_step(name, batch, way) for way in ways}
    for step in sides.values():
        seconds(step, 1)
    rates: dict[str, list[float]] = {side: [] for side in sides}
    with met(arguments.meet, arguments.calls):
        for step in sides.values():
            seconds(step, 20)
        for _ in range(rounds):
            for side, step in sides.items():
                rates[side].append(batch / seconds(step, steps))
    for way in ways:
        ratios = [ours / theirs for ours, theirs in zip(rates[way], rates["timm"], strict=True)]
        yield {
            "model": name,
            "way": way,
            "batch": batch,
            "timm": round(statistics.median(rates["timm"])),
            "frugalvit": round(statistics.median(rates[way])),
            "ratio": round(statistics.median(ratios), 3),
            "lowest": round(min(ratios), 3),
            "highest": round(max(ratios), 3),
            "rounds": rounds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=DEFAULT, metavar="MODEL:BATCH")
    parser.add_argument("--ways", default="plain", help="of ours, separated by commas: plain, graph, stream, skip, fp8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument(
        "--meet", type=Path, metavar="FOLDER", help="where calls at the same time find each other; empty at first"
    )
    parser.add_argument("--calls", type=int, default=1, metavar="N", help="that meet there, of one model each")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    where = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "timm": timm.__version__,
        "commit": arguments.commit,
        "steps_per_round": arguments.steps,
    }
    kept = Kept(arguments.out, "train_throughput", lambda row: (row["model"], row.get("way", "plain")), page)
    text = ""
    for item in arguments.items:
        name, batch = item.split(":")
        made = [row | {"where": where} for row in compare(name, int(batch), arguments.ways.split(","), arguments)]
        for row in made:
            print(json.dumps(row), flush=True)
        text = kept.add(*made)
    print(text)


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; models measured in other runs of this script keep their own commit and versions."""
    models, ways = [item.partition(":")[0] for item in DEFAULT], ["plain", "graph", "stream", "skip", "fp8"]
    models += [row["model"] for row in rows]
    rows = sorted(rows, key=lambda row: (models.index(row["model"]), ways.index(row.get("way", "plain"))))
    lines = [
        "# Training throughput beside timm's",
        "",
        "`python benchmarks/train_throughput.py`: images/s, median over rounds of a training step with both sides alternating; "
        "the ratio is ours / timm's within a round: median (lowest to highest). "
        "A + behind a commit: with changes not yet committed. "
        "Ways: plain, as timm; graph, the step captured as a CUDA graph; stream, a graph with what flows between blocks in "
        "bf16 too (precision=bf16_stream); skip, a stream with FixedCountDepth, which is a deviation; "
        "fp8, a stream with blocks that multiply in 8-bit floats.",
        "",
        "| model | way | batch | timm | FrugalViT | ratio |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        spread = f"{row['ratio']:.3f} ({row['lowest']:.3f} to {row['highest']:.3f})"
        cells = [row["model"], row.get("way", "plain"), row["batch"], f"{row['timm']:,}", f"{row['frugalvit']:,}", spread]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "| model | way | rounds x steps | device | torch | timm | commit |"]
    lines += ["|---|---|---:|---|---|---|---|"]
    for row in rows:
        where = row["where"]
        times = f"{row['rounds']} x {where['steps_per_round']}"
        cells = [row["model"], row.get("way", "plain"), times, where["device"], where["torch"], where["timm"], where["commit"]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    started(main)
