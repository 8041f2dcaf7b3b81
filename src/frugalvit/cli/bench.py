"""The verb bench: how fast a model or a recipe runs here, and what it waits for."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frugalvit.cli.bench_page import Line, row, table, where, write
from frugalvit.cli.console import (
    AsJson,
    Device,
    Overrides,
    Quiet,
    TrainingData,
    With,
    Workers,
    app,
    console,
    own_parts,
    refuse_existing,
)
from frugalvit.cli.show import is_recipe as names_recipe
from frugalvit.cli.show import is_saved, model_or_saved
from frugalvit.errors import DataError, SpecError

if TYPE_CHECKING:
    from frugalvit.data.source import Source
    from frugalvit.measure.latency import Speed
    from frugalvit.nn.architecture import Architecture
    from frugalvit.training.devices import Place
    from frugalvit.training.recipe import Recipe

BATCH = {"cpu": 4, "mps": 32, "cuda": 256}  # of a model; a recipe has its own
ENDINGS = (".json", ".md")


@app.command()
def bench(
    name: Annotated[
        str | None, typer.Argument(metavar="RECIPE|MODEL", help="See `list recipes` and `list models`; or a run folder.")
    ] = None,
    overrides: Overrides = None,
    data: TrainingData = None,
    device: Device = "auto",
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="Pictures in a batch. Default: the recipe's.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps in a round. Default: half a second's.")] = None,
    workers: Workers = 0,
    packed: Annotated[
        Path | None, typer.Option("--packed", metavar="FILE", help="A packed model, beside PyTorch and other runtimes.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="With --packed. Default: FRUGALVIT_THREADS, or all cores.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A file to write: .json or .md.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Measure how fast a model or a recipe runs here: images/s, memory, the share of the device's peak, waiting for data."""
    from frugalvit.training.devices import place_for

    if out is not None:
        if out.suffix not in ENDINGS:
            raise SpecError(f"'{out.suffix}' is no ending of a report. Use {' or '.join(ENDINGS)}.", path=f"--out {out}")
        refuse_existing(out)
    parts = own_parts(with_ or [])
    if packed is not None:
        from frugalvit.cli.bench_packed import bench_packed

        if data is not None or workers or device not in ("auto", "cpu"):
            raise SpecError("a packed model is measured on noise and on the CPU. Leave --data, --workers and --device out.")
        if name is not None and names_recipe(name):
            raise SpecError("is a recipe. With --packed FILE, name the model or the run that was packed, or none.", path=name)
        own = None if name is None else model_or_saved(name, overrides or [], parts)
        bench_packed(packed, own, threads, batch or 1, steps, out, quiet, as_json)
        return
    if threads is not None:
        raise SpecError("goes with --packed FILE. Elsewhere OMP_NUM_THREADS sets them.", path="--threads")
    if name is None:
        raise SpecError("what is to be measured? Name a recipe or a model, or say --packed FILE.")
    if is_recipe(name):
        from frugalvit.recipes.find import recipe

        chosen = recipe(name, *(overrides or []), parts=parts)
        chosen = chosen if batch is None else replace(chosen, batch=batch)
        place = place_for(device, chosen.precision)
        with Line(quiet) as line:
            found = of_recipe(chosen, data, place, workers, steps, line)
    else:
        if data is not None:
            raise SpecError("a model is measured on noise. Name a recipe to measure the reading of data.", path="--data")
        place = place_for(device, "auto")
        model = model_or_saved(name, overrides or [], parts)
        with Line(quiet) as line:
            found = of_model(model, batch or BATCH[place.device.type], place, steps, line)
    found = {"name": name, "overrides": overrides or [], **found, "environment": environment_of(place)}
    if out is not None:
        write(out, found)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console.print(f"[bold]{name}[/bold]  {where(found)}")
    console.print(table(found["rows"]))
    for note in found["notes"]:
        console.print(note, markup=False)


def is_recipe(name: str) -> bool:
    """By its name; where no model has it either, a point or a colon makes it one, so that the message fits."""
    from frugalvit.zoo.find import functions

    if names_recipe(name) or (Path(name) / "recipe.json").is_file():
        return True
    base = name.partition("+")[0]
    if base in functions() or base.startswith(("timm:", "torchvision:")) or is_saved(name):
        return False
    return "." in name or ":" in name


# ------------------------------------------------------------------------------------------------ what is measured


def of_model(model: Architecture, batch: int, place: Place, steps: int | None, line: Line) -> dict[str, Any]:
    """Prediction with one picture and with a batch, and a training step."""
    from frugalvit.measure.cost import cost
    from frugalvit.measure.latency import FORWARD, TRAINING, inference_speeds, matrix_peak, memory_for, share_of_peak
    from frugalvit.training.throughput import model_speeds

    costs, precision = cost(model), product_type(place)
    line.say("the device's matrix products")
    peak = matrix_peak(place.device, precision)
    found: list[tuple[Speed, int]] = []
    for size in dict.fromkeys((1, batch)):
        with memory_for(size, place.device):
            speed = line.follow("inference", inference_speeds(model.build(seed=0), size, place.device, precision, calls=steps))
        found.append((speed, FORWARD))
    with memory_for(batch, place.device):
        speed = line.follow("training", model_speeds(model, batch, place, calls=steps))
    found.append((speed, TRAINING))
    peak = max(peak, matrix_peak(place.device, precision))  # once more: others may have used the machine
    rows = [row(speed) | {"share_of_peak": share_of_peak(speed, costs.macs, passes, peak)} for speed, passes in found]
    notes = [
        f"{costs.parameters:,} parameters, {costs.macs / 1e6:,.1f} M MACs a picture. Peak: {peak / 1e12:,.3g} TFLOP/s, "
        f"a matrix product in {place.precision} measured in this run; training counts three forward passes."
    ]
    notes += note_on_bits(model)
    return {
        "kind": "model",
        "batch": batch,
        "compiled": place.device.type == "cuda",
        "parameters": costs.parameters,
        "macs": costs.macs,
        "peak_flops": peak,
        "rows": rows,
        "notes": notes,
    }


def of_recipe(recipe: Recipe, data: Path | None, place: Place, workers: int, steps: int | None, line: Line) -> dict[str, Any]:
    """Its training step on a batch that lies on the device, and its loop with the data read."""
    from frugalvit.measure.latency import memory_for
    from frugalvit.report.progress import Hint
    from frugalvit.training.prepare import prepare
    from frugalvit.training.switches import few_threads, settled
    from frugalvit.training.throughput import fed_speeds, long, measurable, noise_for, still_speeds

    recipe, notes = measurable(recipe), []
    sources = sources_of(recipe, data)
    if not sources:
        recipe = long(recipe)
        notes.append("No data: its step was measured on noise alone. Say --data PATH to measure the reading too.")
    with memory_for(recipe.batch, place.device), settled(recipe), ExitStack() as switches:
        line.say("preparing")
        training = prepare(recipe, sources or noise_for(recipe), place)
        switches.enter_context(few_threads(training))
        notes += [training.note] if training.note else []
        still = line.follow("synthetic", still_speeds(training, calls=steps))
        rows = [row(still)]
        if sources:
            fed = line.follow("with data", fed_speeds(training, workers, calls=steps))
            rows.append(row(fed))
            notes.append(f"With data it runs at {fed.images_per_second / still.images_per_second:.0%} of the synthetic speed.")
            hint = Hint().of({"time_waiting": rows[-1]["waiting"]})
            notes += [hint] if hint else []
    notes += [*training.step.notes, *note_on_bits(training.recipe.model)]
    return {
        "kind": "recipe",
        "batch": recipe.batch,
        "accumulate": recipe.accumulate,
        "workers": workers,
        "path": training.recipe.path,
        "rows": rows,
        "notes": notes,
    }


def note_on_bits(model: Architecture) -> list[str]:
    """A line where what was measured is not what will run."""
    import torch

    from frugalvit.nn.quantize import OneBit

    with torch.device("meta"):
        simulated = any(isinstance(one, OneBit) for one in model.build().modules())
    said = "Its parts of one bit are simulated in floats here. `frugalvit pack RUN` writes what runs them as bits, and "
    return [f"{said}`frugalvit bench --packed FILE` measures that."] if simulated else []


def sources_of(recipe: Recipe, data: Path | None) -> dict[str, Source]:
    """The recipe's data; nothing where they lie on a disk and nobody said where."""
    from frugalvit.beginning import opened

    try:
        return opened(recipe, data)
    except DataError as error:
        if data is not None or error.path != "--data":
            raise
        return {}


def product_type(place: Place) -> Any:
    import torch

    return {"fp32": torch.float32, "fp16": torch.float16}.get(place.precision, torch.bfloat16)


def environment_of(place: Place) -> dict[str, Any]:
    import torch

    from frugalvit.measure.latency import device_name
    from frugalvit.report.environment import environment

    return environment() | {
        "device": str(place.device),
        "device_name": device_name(place.device),
        "precision": place.precision,
        "threads": torch.get_num_threads(),
    }
