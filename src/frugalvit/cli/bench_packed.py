"""`bench --packed`: a packed one-bit model beside PyTorch and other runtimes, in turns, with the same threads."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from frugalvit.cli.bench_page import Line, Row
from frugalvit.cli.console import console
from frugalvit.cli.packed_page import text, write
from frugalvit.cli.show import model_or_saved
from frugalvit.deploy.memory import PICTURE, packed_memory
from frugalvit.errors import SpecError

if TYPE_CHECKING:
    from frugalvit.deploy.native import PackedClassifier
    from frugalvit.measure.turns import Times
    from frugalvit.nn.architecture import Architecture

PEERS = {"DeiT-S": "deit_small_patch16_224", "DeiT-Ti": "deit_tiny_patch16_224"}
RUNS = 50  # whose steps are timed
NOISE = 2  # pictures from which int8 takes its ranges: enough for its speed
STEPPED = f"one photograph of {PICTURE[1]} x {PICTURE[0]} pixels, which is resized first, whatever the rows above take"
RANDOM = "Weights of the models beside it are random: their speed is measured, not their accuracy."
Way = Callable[[], object]


def bench_packed(
    file: Path,
    model: Architecture | None,
    threads: int | None,
    batch: int,
    steps: int | None,
    out: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    from frugalvit.deploy.native import wanted_threads

    threads = threads or wanted_threads()
    with Line(quiet) as line, tempfile.TemporaryDirectory() as folder:
        found = measured(file, model, threads, batch, steps, line, Path(folder))
    if out is not None:
        write(out, found)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console.print("\n".join(text(found)), markup=False)


def measured(
    file: Path, model: Architecture | None, threads: int, batch: int, steps: int | None, line: Line, folder: Path
) -> dict[str, Any]:
    import torch

    from frugalvit.deploy.packed_file import read_packed
    from frugalvit.measure.turns import in_turns

    ways, ours = packed_ways(file, threads, batch)
    torch.set_num_threads(threads)
    program = read_packed(file).program
    model, notes = (model, []) if model is not None else named(program, file.parent)
    peers, missing = other_ways(program, model, threads, batch, line, folder)
    times: dict[str, Times] = {}
    for number, found in in_turns(ways | peers, calls=steps):
        times, best = found, min(found[name].seconds for name in ways)
        line.say(f"round {number}: {1e3 * best:,.3g} ms packed")
    line.say("the steps, and memory")
    return {
        "kind": "packed",
        "name": program["name"],
        "file": file.name,
        "file_bytes": file.stat().st_size,
        "memory_bytes": packed_memory(file, threads),
        "kernels": ours.kernels,
        "threads": threads,
        "batch": batch,
        "rows": rows(times, tuple(ways), batch),
        "missing": missing,
        "steps": step_rows(ours, program),
        "steps_of": STEPPED,
        "notes": [*notes, *([RANDOM] if peers else [])],
        "environment": environment(),
    }


# ------------------------------------------------------------------------------------------------ what is measured


def packed_ways(file: Path, threads: int, batch: int) -> tuple[dict[str, Way], PackedClassifier]:
    """The packed model on a photograph (one at a time) and on pixels of its own size, and the model."""
    from frugalvit.deploy.native import SimulationNotice, load_packed

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SimulationNotice)  # it is refused below
        model = load_packed(file, threads)
    if model.simulated:
        raise SpecError(
            "the one-bit runtime is not built here, and its simulation says nothing about speed. "
            "With a C++20 compiler `pip install --force-reinstall --no-deps .` builds it: docs/install.md.",
            path=str(file),
        )
    height, width, channels = model.image
    generator = np.random.default_rng(0)
    picture_HWC = generator.integers(0, 256, (*PICTURE, channels), dtype=np.uint8)
    image_BHWC = generator.integers(0, 256, (batch, height, width, channels), dtype=np.uint8)
    ways: dict[str, Way] = {f"packed, pixels of {width} x {height}": lambda: model.logits(image_BHWC)}
    if batch == 1:
        photograph = f"packed, picture of {PICTURE[1]} x {PICTURE[0]}"
        ways = {photograph: lambda: model.picture_logits(picture_HWC), **ways}
    return ways, model


def other_ways(
    program: dict[str, Any], model: Architecture | None, threads: int, batch: int, line: Line, folder: Path
) -> tuple[dict[str, Way], dict[str, str]]:
    """The same architecture in PyTorch, and DeiTs in other runtimes where pictures have their size; what is missing and why."""
    import torch

    from frugalvit.measure.peers import RUNTIMES, Missing, PeerFiles, pytorch
    from frugalvit.zoo.find import model as zoo

    ways: dict[str, Way] = {}
    missing: dict[str, str] = {}
    if model is not None:
        refuse_another(program, model)
        images = noise(model, batch)
        for name, precision in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            line.say(f"PyTorch {name}")
            try:
                ways[f"the same in PyTorch {name}"] = called(pytorch(model.build(seed=0), precision), images[0])
            except Missing as error:
                missing[f"the same in PyTorch {name}"] = error.problem
    for short, name in PEERS.items():
        peer = zoo(name)
        if (peer.image.height, peer.image.width) != size_of(program)[:2]:
            height, width, _ = size_of(program)
            missing[short] = (
                f"not beside it, since it takes pictures of {peer.image} and the packed model of {height} x {width}"
            )
            continue
        images = noise(peer, batch)
        (folder / short).mkdir()
        files = PeerFiles(peer.build(seed=0), images, folder / short)
        for runtime, into in RUNTIMES.items():
            line.say(f"{short} in {runtime}")
            try:
                ways[f"{short} in {runtime}"] = called(into(files, threads).predict, images[0])
            except Missing as error:
                missing[f"{short} in {runtime}"] = error.problem
    return ways, missing


def called(predict: Callable[[np.ndarray], np.ndarray], image_BCHW: np.ndarray) -> Way:
    return lambda: predict(image_BCHW)


def noise(model: Architecture, batch: int) -> list[np.ndarray]:
    generator, image = np.random.default_rng(0), model.image
    shape = (batch, image.channels, image.height, image.width)
    return [generator.standard_normal(shape, dtype=np.float32) for _ in range(NOISE)]


def step_rows(model: PackedClassifier, program: dict[str, Any]) -> list[Row]:
    """Milliseconds by kind of step and size of what it writes, longest first."""
    generator = np.random.default_rng(0)
    picture_HWC = generator.integers(0, 256, (*PICTURE, model.image[2]), dtype=np.uint8)
    spent: dict[str, float] = {}
    for kind, number, seconds in model.step_seconds(picture_HWC, RUNS):
        buffer = program["buffers"][program["steps"][number]["to"]] if 0 <= number < len(program["steps"]) else None
        name = f"{kind} {buffer[0]} x {buffer[1]}" if buffer else kind
        spent[name] = spent.get(name, 0.0) + 1e3 * seconds
    total = sum(spent.values())
    longest = sorted(spent.items(), key=lambda pair: -pair[1])
    return [{"step": name, "ms": ms, "share": ms / total} for name, ms in longest]


# ------------------------------------------------------------------------------------------------ which model it is


def size_of(program: dict[str, Any]) -> tuple[int, int, int]:
    image = program["image"]
    return image["height"], image["width"], len(image["mean"])


def classes_of(program: dict[str, Any]) -> int:
    return program["buffers"][program["logits"]][1]


def named(program: dict[str, Any], folder: Path) -> tuple[Architecture | None, list[str]]:
    """The architecture by the file's name for it, or of the run in its folder; a note where there is neither."""
    from frugalvit.zoo.find import functions

    name = program["name"]
    if name.partition("+")[0] not in functions():
        beside = model_or_saved(str(folder), [], []) if (folder / "config.json").exists() else None
        if beside is not None and fits(program, beside):
            return beside, []
        return None, [
            f"The file calls its model '{name}'. Name a model or a run to see it in PyTorch: bench MODEL --packed FILE."
        ]
    return model_or_saved(name, [f"classes={classes_of(program)}"], []), []


def fits(program: dict[str, Any], model: Architecture) -> bool:
    """Whether it may be the packed one, by its pictures and classes."""
    image = model.image
    return (image.height, image.width, image.channels, model.classes) == (*size_of(program), classes_of(program))


def refuse_another(program: dict[str, Any], model: Architecture) -> None:
    """A model that cannot be the packed one."""
    if not fits(program, model):
        image, (height, width, channels), classes = model.image, size_of(program), classes_of(program)
        raise SpecError(
            f"the packed model takes {height} x {width} pixels of {channels} channels and knows {classes} classes; this one "
            f"{image.height} x {image.width} of {image.channels} and {model.classes}. Name the one that was packed.",
            path="MODEL",
        )


# ------------------------------------------------------------------------------------------------ what was found


def rows(times: dict[str, Times], packed: tuple[str, ...], batch: int) -> list[Row]:
    """A row a way; `over` says how many times as fast as it the packed model is, by each of the ways it was called."""
    from frugalvit.measure.turns import over

    found = []
    for name, one in times.items():
        row = {"what": name, "batch": batch, "ms": 1e3 * one.seconds, "fastest_ms": 1e3 * one.fastest}
        row |= {"rounds_ms": [1e3 * spent for spent in one.rounds], "calls": one.calls}
        row["over"] = {} if name in packed else {way: over(one, times[way]) for way in packed}
        found.append(row)
    return found


def environment() -> dict[str, Any]:
    import torch

    from frugalvit.measure.latency import device_name
    from frugalvit.measure.peers import limited
    from frugalvit.report import environment as report

    found = report.environment()
    found["packages"] |= {name: report.version(name) for name in ("onnxruntime", "openvino", "nncf")} | limited()
    return found | {"device": "cpu", "device_name": device_name(torch.device("cpu"))}
