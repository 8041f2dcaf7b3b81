"""Packed one-bit models beside PyTorch, ONNX Runtime and OpenVINO on a CPU: all in turns, in one run, with the same threads.

    cmake -S runtime -B build -DFRUGALVIT_PYTHON=ON && make -C build -j && cp build/python/_native*.so src/frugalvit/deploy
    PYTHONPATH=src python benchmarks/packed_latency.py [--settings 1x1 2x1 2x32] [--rounds 7] [--out docs/results]

The first command is for a machine where the package is not installed. A setting is THREADSxBATCH. Weights are random: speed
does not depend on them. Peers get normalized tensors; the packed models get 8-bit pixels of their size, or a decoded photograph
of 500 x 375, which they resize, cut and normalize themselves. A runtime that is not installed has no row
(pip install 'frugalvit[bench]'). Results are kept by CPU and the widest kernels that it has: a run on another machine adds its
tables.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frugalvit
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.deploy.memory import PICTURE, packed_memory
from frugalvit.deploy.native import MOST_THREADS, load_packed
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import encoded
from frugalvit.errors import WeightsError
from frugalvit.measure.peers import RUNTIMES, Missing, PeerFiles, limited, pytorch
from frugalvit.measure.turns import Times, in_turns, over
from frugalvit.report.environment import short_commit, version
from kept import Kept
from machine import kernels, key, machine_here, title
from script import started

PACKED = {
    "BinaryViT-S": "binaryvit_small_patch4_224",
    "BinaryViT-S*": "binaryvit_small_patch4_224_star",
    "binary DeiT-S": "binary_deit_small_patch16_224",
}
PEERS = {"DeiT-S": "deit_small_patch16_224", "DeiT-Ti": "deit_tiny_patch16_224"}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
KERNELS = ("avx2", "avx512", "neon")
REQUIRED = (  # a model, and what it is to beat
    ("BinaryViT-S", "DeiT-S, ONNX Runtime fp32"),
    ("BinaryViT-S", "DeiT-S, OpenVINO int8"),
    ("binary DeiT-S", "DeiT-S, ONNX Runtime fp32"),
)
SIZES = ("single_bytes", "half_bytes", "memory_bytes")
PACKAGES = ("torch", "numpy", "onnxruntime", "openvino", "nncf")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Way = Callable[[], object]


# ------------------------------------------------------------------------------------------------ what runs


def written(names: dict[str, str], folder: Path) -> list[dict[str, Any]]:
    """Each model packed, with reals in fp32 and with positions and head in fp16; its files' bytes and its memory."""
    found = []
    for short, name in names.items():
        model = frugalvit.model(name)
        torch.manual_seed(0)
        preprocess = Preprocess(model.image.height, model.image.width, *IMAGENET)
        spec = ClassifierSpec(model, preprocess, tuple(map(str, range(model.classes or 0))))
        classifier = Classifier(spec, model.build(seed=0)).eval()
        files = {precision: folder / f"{name}-{precision}.fvit" for precision in ("single", "half")}
        for precision, file in files.items():
            file.write_bytes(encoded(packed_model(classifier, name, precision).packed))  # type: ignore[arg-type]
        sizes = {f"{precision}_bytes": file.stat().st_size for precision, file in files.items()}
        parameters = sum(one.numel() for one in classifier.module.parameters())
        held = packed_memory(files["single"], 1)
        found.append({"model": short, "name": name, "parameters": parameters, **sizes, "memory_bytes": held})
    return found


def packed_ways(file: Path, short: str, threads: int, batch: int, sets: tuple[str, ...]) -> Iterator[tuple[str, Way]]:
    """By each set of kernels that this CPU has; the one that it would choose comes last."""
    generator = np.random.default_rng(0)
    for name in sets:
        try:
            with kernels(name):
                model = load_packed(file, threads)
        except WeightsError:
            continue
        image_BHWC = generator.integers(0, 256, (batch, *model.image), dtype=np.uint8)
        yield f"{short}, {name}, pixels", partial(model.logits, image_BHWC)
        if batch == 1:
            picture_HWC = generator.integers(0, 256, (*PICTURE, model.image[2]), dtype=np.uint8)
            yield f"{short}, {name}, picture", partial(model.picture_logits, picture_HWC)


def pytorch_ways(names: dict[str, str], batch: int, missing: dict[str, str]) -> Iterator[tuple[str, Way]]:
    for short, name in names.items():
        image_BCHW = noise(name, batch)
        for precision, kind in PRECISIONS.items():
            try:
                predict = pytorch(frugalvit.model(name).build(seed=0), kind)
            except Missing as error:
                missing[f"PyTorch {precision}"] = error.problem
                continue
            yield f"{short}, PyTorch {precision}", partial(predict, image_BCHW)


def peer_ways(files: dict[str, PeerFiles], threads: int, missing: dict[str, str]) -> Iterator[tuple[str, Way]]:
    for short, one in files.items():
        for runtime, into in RUNTIMES.items():
            try:
                predict = into(one, threads).predict
            except Missing as error:
                missing[runtime] = error.problem
                continue
            image_BCHW = one.pictures[0]
            yield f"{short}, {runtime}", partial(predict, image_BCHW)


def noise(name: str, batch: int) -> np.ndarray:
    image = frugalvit.model(name).image
    shape = (batch, image.channels, image.height, image.width)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


# ------------------------------------------------------------------------------------------------ what is found


def measure(arguments: argparse.Namespace, folder: Path, machine: dict[str, Any]) -> Iterator[None]:
    """Fills `machine`, a setting at a time."""
    machine["files"] = written(PACKED, folder)
    peers: dict[int, dict[str, PeerFiles]] = {}
    for place, (threads, batch) in enumerate(arguments.settings):
        torch.set_num_threads(threads)
        ways: dict[str, Way] = {}
        for short, name in PACKED.items():
            first = ("reference",) if place == 0 and short == next(iter(PACKED)) else ()
            ways |= packed_ways(folder / f"{name}-single.fvit", short, threads, batch, (*first, *KERNELS))
        say(f"{threads} threads, batch {batch}: peers")
        if batch == 1:  # a model of one bit takes PyTorch a second a picture
            ways |= pytorch_ways(PACKED, batch, machine["missing"])
        ways |= pytorch_ways(PEERS, batch, machine["missing"])
        if batch not in peers:
            for name in PEERS.values():
                (folder / f"{name}-{batch}").mkdir()
            made = {short: frugalvit.model(name).build(seed=0) for short, name in PEERS.items()}
            peers[batch] = {
                short: PeerFiles(made[short], [noise(name, batch)], folder / f"{name}-{batch}") for short, name in PEERS.items()
            }
        ways |= peer_ways(peers[batch], threads, machine["missing"])
        ways = {name: way for name, way in ways.items() if not any(text in name for text in arguments.without)}
        times: dict[str, Times] = {}
        for number, found in in_turns(ways, arguments.rounds, arguments.calls):
            times = found
            say(f"{threads} threads, batch {batch}: round {number} of {arguments.rounds}")
        machine["settings"].append({"threads": threads, "batch": batch, "rows": rows(times, batch)})
        machine["requirements"] += requirements(times, threads, batch)
        yield


def rows(times: dict[str, Times], batch: int) -> list[dict[str, Any]]:
    """Milliseconds a picture, and how many times as fast as each peer the packed models are, as the CPU would run them."""
    best = {short: chosen(times, short, "pixels") for short in PACKED}
    found = []
    for name, one in times.items():
        row: dict[str, Any] = {"what": name, "ms": 1e3 * one.seconds / batch, "fastest_ms": 1e3 * one.fastest / batch}
        row["over"] = {} if is_packed(name) else {short: over(one, times[ours]) for short, ours in best.items() if ours}
        found.append(row)
    return found


def requirements(times: dict[str, Times], threads: int, batch: int) -> list[dict[str, Any]]:
    found = []
    for short, peer in REQUIRED:
        for pixels in ("picture", "pixels"):
            ours = chosen(times, short, pixels)
            if ours and peer in times:
                row = {"threads": threads, "batch": batch, "model": short, "in": pixels, "peer": peer}
                ms = {"ms": 1e3 * times[ours].seconds / batch, "peer_ms": 1e3 * times[peer].seconds / batch}
                found.append(row | ms | {"ratio": over(times[peer], times[ours])})
    return found


def is_packed(name: str) -> bool:
    return name.endswith((", pixels", ", picture"))


def chosen(times: dict[str, Times], short: str, pixels: str) -> str:
    """The way that has the last, widest kernels; none where there is none."""
    return next((name for name in reversed(times) if name.startswith(f"{short}, ") and name.endswith(f", {pixels}")), "")


# ------------------------------------------------------------------------------------------------ how it is shown


def page(machines: list[dict[str, Any]]) -> str:
    lines = [
        "# Packed one-bit models beside other runtimes",
        "",
        "`python benchmarks/packed_latency.py`: milliseconds a picture, median over rounds in which all take turns; fastest: "
        "of all calls. × is how many times as fast as the peer the packed model is, the median of ratios within a round; in "
        "the tables of all rows, with pixels of the model's size. Peers get normalized tensors; packed models normalize "
        "pixels, and resize and cut pictures (500 x 375, decoded), themselves. Random weights; int8 by NNCF with ranges of "
        "noise. A + behind a commit: with changes not yet committed.",
    ]
    for machine in machines:
        lines += ["", f"## {title(machine)}", "", machine_line(machine), ""]
        cells = [
            [row["model"], row["in"], row["threads"], row["batch"], row["ms"], row["peer"], row["peer_ms"], row["ratio"]]
            for row in machine["requirements"]
        ]
        lines += [*table(["model", "in", "threads", "batch", "ms", "against", "ms", "×"], cells), ""]
        cells = [
            [one["model"], one["parameters"] / 1e6, *(one[key] and one[key] / 1e6 for key in SIZES)] for one in machine["files"]
        ]
        lines += table(["model", "parameters, M", "file, MB", "with fp16 positions and head", "peak memory, MB"], cells)
        for setting in machine["settings"]:
            threads, models = setting["threads"], list(PACKED)
            lines += ["", f"{threads} thread{'s' if threads > 1 else ''}, batch {setting['batch']}:", ""]
            cells = [
                [row["what"], row["ms"], row["fastest_ms"], *(row["over"].get(short) for short in models)]
                for row in setting["rows"]
            ]
            lines += table(["", "ms a picture", "fastest", *(f"× {short}" for short in models)], cells)
    return "\n".join(lines) + "\n"


def table(titles: list[str], lines: list[list[Any]]) -> list[str]:
    """Markdown; what is None is left empty."""
    rule = ["---" if all(isinstance(line[place], str) for line in lines) else "---:" for place in range(len(titles))]
    shown = [
        ["" if cell is None else f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in line] for line in lines
    ]
    return [f"| {' | '.join(cells)} |" for cells in (titles, rule, *shown)]


def machine_line(machine: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items() if version)
    missing = "".join(f" {runtime}: {why}." for runtime, why in machine["missing"].items())
    return f"{machine['cpus']} cores, {versions}, commit {machine['commit']}, {machine['rounds']} rounds.{missing}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def setting(text: str) -> tuple[int, int]:
    threads, _, batch = text.partition("x")
    if int(threads) > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"{threads} threads. Use up to {MOST_THREADS}.")
    return counted(threads), counted(batch)


def counted(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is too few. Use 1 and more.")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", type=setting, default=[(1, 1), (2, 1), (2, 32)], metavar="THREADSxBATCH")
    parser.add_argument("--rounds", type=counted, default=7)
    parser.add_argument(
        "--calls", type=counted, help="in a turn; by default as many as fill a third of a second, 50 at the most"
    )
    parser.add_argument("--without", nargs="+", default=[], metavar="TEXT", help="leave out what has it in its name: PyTorch")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    with kernels(""):
        machine: dict[str, Any] = {**machine_here(), "cpus": os.cpu_count()}
    machine["packages"] = {name: version(name) for name in PACKAGES} | limited()
    machine |= {"commit": arguments.commit, "rounds": arguments.rounds, "missing": {}, "settings": [], "requirements": []}
    kept = Kept(arguments.out, "packed_latency", key, page, what="machines")
    text = ""
    with tempfile.TemporaryDirectory() as folder:
        for _ in measure(arguments, Path(folder), machine):
            text = kept.add(machine)
    print(text)


if __name__ == "__main__":
    started(main)
