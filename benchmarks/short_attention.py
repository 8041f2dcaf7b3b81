"""Our kernel for attention over few tokens beside the library's ways, in bf16 on a CUDA GPU: forward, and with backward.

    python benchmarks/short_attention.py [--attentions NAME ...] [--batch 128 512] [--rounds 5] [--out docs/results]

Every way goes from q, k and v side by side, as the product before leaves them, to what the product behind reads, and back.
`cudnn`, `flash`, `efficient` and `math` are `scaled_dot_product_attention` by each of its backends, `compiled` is products and
softmax written out under torch.compile. With LSA no token sees itself and each head learns its temperature: the library's mask
lies ready, its temperature is a factor of q. Forward keeps what backward needs. Before a way is timed, in CUDA graphs and in
turns with the others, its outputs and gradients are compared with those in float32.

What takes long is compiling: `--ahead` processes do it for all attentions at the same time, before anything is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from attention_ways import ATTENTIONS, WAYS, Given, distances, ways
from frugalvit.measure.captured import captured
from frugalvit.measure.latency import device_name, seconds, wait
from frugalvit.report.environment import short_commit
from frugalvit.training.devices import place_for
from kept import Kept
from script import each_apart, run_apart, started

MADE_HERE = ("ours", "compiled")  # the ways that have to be compiled
PASSES = {"forward": "Forward", "both": "Forward and backward"}
CALLS = 10  # in a graph
REPLAYS = 2  # of a graph in a round
NOISE = 0.04  # of a token's length: bf16 leaves up to 0.02


def why(error: Exception, told: Iterable[warnings.WarningMessage]) -> str:
    """One line. Of a backend that does not take something, the library says what in warnings."""
    said = [str(one.message) for one in told]
    said = [one for one in said if "not used because" not in one and "runtime disabled" not in one]
    refused = said and ("No available kernel" in str(error) or "No viable backend" in str(error))
    text = said[0] if refused else f"{type(error).__name__}: {error}"
    return text.partition(" (Triggered internally")[0].splitlines()[0][:160]


# ------------------------------------------------------------------------------------------------ time


def repeated(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Several calls in one graph."""

    def calls() -> None:
        for _ in range(CALLS):
            call()

    return captured(calls) if device.type == "cuda" else calls


def microseconds(calls: Callable[[], object], device: torch.device) -> float:
    """Of one call. One graph runs before the clock does, so that the first launch is not timed."""
    if device.type != "cuda":
        return 1e6 * seconds(calls, 1, device) / CALLS
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.current_stream(device)
    calls()
    start.record(stream)
    for _ in range(REPLAYS):
        calls()
    end.record(stream)
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / REPLAYS / CALLS


def measured(attention: str, batch: int, rounds: int, device: torch.device) -> dict[str, Any]:
    given = Given(attention, batch, device)
    wanted = given.wanted()
    timed: dict[tuple[str, str], Callable[[], object]] = {}
    errors: dict[str, float] = {}
    told = dict.fromkeys(WAYS, "needs CUDA and Triton")
    for name, way in ways(given).items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                off = distances(given, given.found(way), wanted)
                wrong = [f"{what} by {far:.2g}" for what, far in off.items() if not far <= NOISE]  # nan is wrong too
                if wrong:
                    told[name] = f"wrong: {', '.join(wrong)}"
                    continue
                graphs = {"forward": repeated(way, device), "both": repeated(given.both(way), device)}
            except Exception as error:  # whatever libraries and compilers raise where they have no kernel
                wait(device)  # raises where the device itself has failed
                told[name] = why(error, caught)
                continue
        timed |= {(name, one): graph for one, graph in graphs.items()}
        errors[name] = max(off.values())
        del told[name]
    found: dict[tuple[str, str], list[float]] = {key: [] for key in timed}
    for _ in range(rounds):
        for key, graph in timed.items():
            found[key].append(microseconds(graph, device))
    times = {key: round(statistics.median(values), 2) for key, values in found.items()}
    return {
        "attention": attention,
        "batch": batch,
        "tokens": given.tokens,
        "heads": given.heads,
        "width": given.width,
        "lsa": given.lsa,
        "microseconds": {one: {way: times[way, one] for way in errors} for one in PASSES},
        "errors": {way: float(f"{far:.2g}") for way, far in errors.items()},
        "not_measured": told,
        "rounds": rounds,
    }


# ------------------------------------------------------------------------------------------------ compiled ahead


def prepare(attentions: list[str], batches: list[int], device: torch.device) -> None:
    """Leave what has to be compiled in the caches of Triton and torch. What fails here is told by the process that measures."""
    from torch._inductor import config

    config.compile_threads = 1  # other processes have the other cores
    for attention in attentions:
        for batch in batches:
            given = Given(attention, batch, device)
            for name, way in ways(given).items():
                if name in MADE_HERE:
                    given.both(way)()


def prepare_apart(arguments: argparse.Namespace) -> None:
    """Each attention in a process of its own."""
    words = ["--prepare", "--device", arguments.device, "--batch", *arguments.batch, "--attentions"]
    work = each_apart(arguments.attentions, arguments.ahead, lambda name: run_apart([Path(__file__).resolve(), *words, name]))
    for name, finished in work:
        if finished.exception():
            print(f"{name} was not compiled ahead: {finished.exception()}", flush=True)


# ------------------------------------------------------------------------------------------------ what is written


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Attention over few tokens on a GPU",
        "",
        "`python benchmarks/short_attention.py`: µs from q, k and v in bf16 to what the heads gather, the median of rounds, "
        "all ways in turns; × is how many times as long as ours the fastest other way takes. `cudnn`, `flash`, `efficient` and "
        "`math` are the backends of torch's `scaled_dot_product_attention`, `compiled` is products and softmax under "
        "torch.compile. Errors are the greatest of outputs and gradients against float32, in lengths of a token's numbers: of "
        "ours, and of all others.",
    ]
    for one, title in PASSES.items():
        names = ["attention", "tokens", "heads", "batch", *WAYS, "×", "error, ours", "others"]
        lines += ["", f"## {title}", "", f"| {' | '.join(names)} |"]
        lines.append("|---|---:|---:|" + "---:|" * (len(WAYS) + 4))
        for row in rows:
            took, errors = row["microseconds"][one], dict(row["errors"])
            own = errors.pop("ours", None)
            others = [took[way] for way in took if way != "ours"]
            cells = [row["attention"], row["tokens"], f"{row['heads']} of {row['width']}", row["batch"]]
            cells += [f"{took[way]:.1f}" if way in took else "-" for way in WAYS]
            cells.append(f"{min(others) / took['ours']:.2f}" if "ours" in took and others else "-")
            cells += ["-" if own is None else f"{own:.2g}", f"{max(errors.values()):.2g}" if errors else "-"]
            lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "Measured:", "", *together((place(row), row) for row in rows)]
    missing = [(f"{way}: {reason}", row) for row in rows for way, reason in row["not_measured"].items()]
    lines += ["", "Not measured:", "", *together(missing)] if missing else []
    return "\n".join(lines) + "\n"


def place(row: dict[str, Any]) -> str:
    return "{device}, torch {torch}, commit {commit}".format(**row["where"])


def together(said: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """A line for each thing that is said, with the rows of which it is said."""
    found: dict[str, dict[str, list[str]]] = {}
    for text, row in said:
        found.setdefault(text, {}).setdefault(row["attention"], []).append(str(row["batch"]))
    lines = []
    for text, names in found.items():
        which = [f"{name} at {' and '.join(batches)}" for name, batches in names.items()]
        lines.append(f"- {text} ({', '.join(which)})")
    return lines


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--attentions", nargs="+", choices=ATTENTIONS, default=list(ATTENTIONS), metavar="NAME", help=", ".join(ATTENTIONS)
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ahead", type=int, default=min(os.cpu_count() or 1, 12), help="processes that compile; 0: none")
    parser.add_argument("--prepare", action="store_true", help="compile what a measurement needs, and end")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if min(*arguments.batch, arguments.rounds) < 1 or arguments.ahead < 0:
        parser.error("--batch and --rounds are 1 or more, --ahead is 0 or more.")
    device = place_for(arguments.device, "bf16").device
    if arguments.prepare:
        prepare(arguments.attentions, arguments.batch, device)
        return
    if device.type == "cuda" and arguments.ahead:
        prepare_apart(arguments)
        print(f"compiled after {time.perf_counter() - began:.0f} s", flush=True)
    where = {"device": device_name(device), "torch": torch.__version__, "commit": arguments.commit}
    kept = Kept(
        arguments.out,
        "short_attention",
        lambda row: (row["attention"], row["batch"]),
        page,
        order=lambda row: (row["tokens"], row["heads"], row["lsa"], row["batch"]),
    )
    text = ""
    for attention in arguments.attentions:
        for batch in arguments.batch:
            row = measured(attention, batch, arguments.rounds, device) | {"where": where}
            print(json.dumps(row), flush=True)
            text = kept.add(row)
    print(text)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    started(main)
