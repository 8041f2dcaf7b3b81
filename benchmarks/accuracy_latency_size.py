"""Accuracy, latency and size of trained models in full precision, in int8 and in one bit, each in the runtime that is for it.

    python benchmarks/accuracy_latency_size.py RUN... [--data PATH] [--threads 1] [--split test] [--limit N] [--out FOLDER]

A run of a binary model has two rows: PyTorch in fp32, and the packed file in the one-bit runtime. Any other has PyTorch in
fp32, ONNX Runtime in fp32 and OpenVINO in int8, its ranges taken from training pictures. Accuracy is top-1 on the run's own
data, one picture at a time, as the runtime itself answers. Latency is that of one picture of the model's size, all rows of all
runs in turns. Size is that of what the runtime reads. A runtime that is not installed has no row. Results are kept by CPU and
the widest kernels that it has: a run on another machine adds its table. The split is held in memory: say --limit where it is
large.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frugalvit
from frugalvit.cli.bench_packed import environment
from frugalvit.cli.evaluating import split_of
from frugalvit.data.finish import normalize
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.split import Picked
from frugalvit.deploy.classifier import Classifier
from frugalvit.deploy.native import load_packed
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import encoded
from frugalvit.errors import SpecError
from frugalvit.measure.peers import Missing, PeerFiles, Predict, in_onnx_runtime, in_openvino_int8, pytorch
from frugalvit.measure.turns import Times, in_turns
from frugalvit.recipes.find import recipe
from frugalvit.report.environment import short_commit
from frugalvit.training.devices import place_for
from frugalvit.training.evaluate import Framed, measures
from kept import Kept
from machine import key, machine_here, title
from script import started

CALIBRATION = 300  # training pictures, NNCF's own number


@dataclass(frozen=True)
class Contestant:
    """A trained model in a runtime."""

    run: str
    runtime: str
    bytes: int
    answer: Callable[[torch.Tensor], np.ndarray]  # uint8 image_1CHW to logits_1C
    call: Callable[[], object]  # what is timed, all that can be prepared being prepared


@dataclass(frozen=True)
class Split:
    """Pictures of a run as its model frames them, uint8 and one at a time, with their labels."""

    image_NCHW: torch.Tensor
    label_N: torch.Tensor


def framed(run: Path, arguments: argparse.Namespace, split: str, most: int | None, preprocess: Preprocess) -> Split:
    """At most so many, spread evenly."""
    source = split_of(run, arguments.data, split, "", [])
    if most is not None and most < len(source):
        source = Picked(source, np.linspace(0, len(source) - 1, most).round().astype(int))
    pairs = [
        (image[: len(label)], label) for image, label in Framed(source, preprocess, place_for("cpu", "fp32")).batches(workers=0)
    ]
    image_NCHW, label_N = (torch.cat(parts) for parts in zip(*pairs, strict=True))
    return Split(image_NCHW[label_N >= 0], label_N[label_N >= 0])


def contestants(run: Path, arguments: argparse.Namespace, folder: Path, missing: dict[str, str]) -> Iterator[Contestant]:
    classifier = frugalvit.load(run)
    few = framed(run, arguments, "train", CALIBRATION, classifier.preprocess)
    name, real = run.resolve().name, partial(normalized, preprocess=classifier.preprocess)
    pictures = [real(one[None]) for one in few.image_NCHW]

    def contestant(runtime: str, size: int, predict: Predict) -> Contestant:
        return Contestant(name, runtime, size, lambda image_1CHW: predict(real(image_1CHW)), partial(predict, pictures[0]))

    fp32 = sum(one.numel() * one.element_size() for one in classifier.module.state_dict().values())
    yield contestant("PyTorch fp32", fp32, pytorch(classifier, torch.float32))
    file = folder / "model.fvit"
    if packed_into(file, classifier, name):
        model = load_packed(file, arguments.threads)
        yield Contestant(
            name,
            f"packed, one bit ({model.kernels})",
            file.stat().st_size,
            lambda image_1CHW: model.logits(image_1CHW.permute(0, 2, 3, 1).contiguous().numpy()),
            partial(model.logits, few.image_NCHW[:1].permute(0, 2, 3, 1).contiguous().numpy()),
        )
        return
    files = PeerFiles(classifier, pictures, folder)
    for runtime, into in (("ONNX Runtime fp32", in_onnx_runtime), ("OpenVINO int8", in_openvino_int8)):
        try:
            peer = into(files, arguments.threads)
            yield contestant(runtime, peer.bytes, peer.predict)
        except Missing as error:
            missing[runtime] = error.problem


def packed_into(file: Path, classifier: Classifier, name: str) -> bool:
    """Write the packed file, if the model has such a form."""
    try:
        file.write_bytes(encoded(packed_model(classifier, name).packed))
    except SpecError:
        return False
    return True


def normalized(image_BCHW: torch.Tensor, preprocess: Preprocess) -> np.ndarray:
    return normalize(image_BCHW, preprocess.mean, preprocess.std).numpy()


def accuracy(one: Contestant, split: Split) -> dict[str, float]:
    logits_NC = torch.cat([torch.from_numpy(one.answer(image[None])) for image in split.image_NCHW])
    found = dict(measures(logits_NC, split.label_N))
    return {"top1": found["top1"], "pictures": found["pictures"]}


def measured(arguments: argparse.Namespace, folder: Path, missing: dict[str, str]) -> list[dict[str, Any]]:
    rows, ways = [], {}
    for place, run in enumerate(arguments.runs):
        (folder / str(place)).mkdir()
        split = framed(run, arguments, arguments.split, arguments.limit, frugalvit.load(run).preprocess)
        made = recipe(str(run))
        for one in contestants(run, arguments, folder / str(place), missing):
            print(f"{one.run}, {one.runtime}: accuracy", file=sys.stderr, flush=True)
            facts = {"data": type(made.data.dataset).__name__, "split": arguments.split, "seed": made.seed}
            rows.append({"run": one.run, "runtime": one.runtime, "bytes": one.bytes, **facts, **accuracy(one, split)})
            ways[f"{place} {one.runtime}"] = one.call
    times: dict[str, Times] = {}
    for number, found in in_turns(ways, arguments.rounds, arguments.calls):
        times = found
        print(f"round {number} of {arguments.rounds}", file=sys.stderr, flush=True)
    for row, spent in zip(rows, times.values(), strict=True):
        row |= {"ms": 1e3 * spent.seconds, "fastest_ms": 1e3 * spent.fastest}
    return rows


def page(machines: list[dict[str, Any]]) -> str:
    lines = [
        "# Accuracy, latency and size",
        "",
        "`python benchmarks/accuracy_latency_size.py RUN...`: top-1 as the runtime itself answers, one picture at a time; "
        "milliseconds for a picture of the model's size, median over rounds in which all rows take turns, and the fastest of "
        "all calls; megabytes that the runtime reads. int8 takes its ranges from training pictures.",
    ]
    for machine in machines:
        versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
        missing = "".join(f" {runtime}: {why}." for runtime, why in machine["missing"].items())
        threads = f"{machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
        lines += ["", f"## {title(machine)}", "", f"{threads}, {versions}, commit {machine['commit']}.{missing}", ""]
        lines += [
            "| run | runtime | data | seed | n | top-1, % | ms | fastest | MB |",
            "|---|---|---|---:|---:|---:|---:|---:|---:|",
        ]
        for row in machine["rows"]:
            cells = [row["run"], row["runtime"], f"{row['data']} {row['split']}", str(row["seed"]), str(row["pictures"])]
            cells += [f"{row['top1']:.2f}", f"{row['ms']:.3f}", f"{row['fastest_ms']:.3f}", f"{row['bytes'] / 1e6:.3f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, help="pictures of the split, spread evenly; by default all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, help="in a turn; by default as many as fill a third of a second, 50 at the most")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    where, missing, machine = environment(), {}, machine_here()
    with tempfile.TemporaryDirectory() as folder:
        rows = measured(arguments, Path(folder), missing)
    machine |= {"threads": arguments.threads, "packages": where["packages"]}
    machine |= {"commit": arguments.commit, "missing": missing, "rows": rows}
    print(Kept(arguments.out, "accuracy_latency_size", key, page, what="machines").add(machine))


if __name__ == "__main__":
    started(main)
