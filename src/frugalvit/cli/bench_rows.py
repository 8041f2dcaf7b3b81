"""What `bench` measures of a model and of a recipe: its rows, its notes, and where that was."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from frugalvit.beginning import opened, opened_teacher
from frugalvit.cli.bench import environment_of
from frugalvit.cli.bench_page import Line, Row, row
from frugalvit.errors import DataError
from frugalvit.measure.cost import ModelCost, cost
from frugalvit.measure.latency import FORWARD, TRAINING, Speed, inference_speeds, matrix_peak, memory_for, share_of_peak
from frugalvit.nn.quantize import OneBit
from frugalvit.training.loop import Record
from frugalvit.training.one_bit import precision_of
from frugalvit.training.prepare import prepare
from frugalvit.training.switches import few_threads, settled
from frugalvit.training.throughput import (
    fed_speeds,
    long,
    measurable,
    model_speeds,
    noise_for,
    passes_of,
    predicting_speeds,
    product_type,
    still_speeds,
)
from frugalvit.training.waiting import Waiting

if TYPE_CHECKING:
    from frugalvit.data.source import Source
    from frugalvit.nn.architecture import Architecture
    from frugalvit.training.devices import Place
    from frugalvit.training.prepare import Training
    from frugalvit.training.recipe import Recipe

PASSES = {FORWARD: "one forward pass", TRAINING: "three forward passes"}
BESIDE = "The teacher answers in every step; its products are not in the share of peak."
NO_DATA = "No data: its step was measured on noise alone. Say --data PATH to measure the reading too."


def of_model(model: Architecture, batch: int, place: Place, steps: int | None, line: Line) -> dict[str, Any]:
    """Prediction with one picture and with a batch, and a training step."""
    costs, precision = cost(model), product_type(place)
    peak = peak_now(place, line)
    found: list[tuple[Speed, int]] = []
    for size in dict.fromkeys((1, batch)):
        with memory_for(size, place.device):
            speed = line.follow("inference", inference_speeds(model.build(seed=0), size, place.device, precision, calls=steps))
        found.append((speed, FORWARD))
    with memory_for(batch, place.device):
        speed = line.follow("training", model_speeds(model, batch, place, calls=steps))
    found.append((speed, TRAINING))
    peak = max(peak, peak_now(place, line))
    return {
        "kind": "model",
        "batch": batch,
        "compiled": place.device.type == "cuda",
        **(counted := shares(found, costs, peak)),
        "notes": [note_on_peak(costs, peak, place, TRAINING), *notes_above(counted["rows"]), *note_on_bits(model)],
        "environment": environment_of(place),
    }


def of_recipe(recipe: Recipe, data: Path | None, place: Place, workers: int, steps: int | None, line: Line) -> dict[str, Any]:
    """Its training step on a batch that lies on the device, its loop with the data read, and prediction with its model."""
    recipe = measurable(recipe)
    sources = sources_of(recipe, data)
    if recipe.path == "decoded" and not sources:
        raise DataError("files that are decoded on the way are measured on files. Say --data PATH.", path="--data")
    if recipe.teaching is not None and not sources:
        raise DataError("who learns from a teacher is measured on its own pictures. Say --data PATH.", path="--data")
    recipe, notes = (recipe, []) if sources else (long(recipe), [NO_DATA])
    notes += [BESIDE] if recipe.teaching is not None else []
    with memory_for(recipe.batch, place.device), settled(recipe), ExitStack() as switches:
        line.say("preparing")
        pictures = sources or noise_for(recipe)
        training = prepare(recipe, pictures, place, teacher=opened_teacher(recipe, pictures, place))
        switches.enter_context(few_threads(training))
        recipe, costs, where = training.recipe, cost(training.recipe.model), where_it_trains(training)
        peak = peak_now(place, line)  # not of training.place: there the few products of a one-bit model that are not of signs
        trained = [line.follow("synthetic", still_speeds(training, calls=steps))]
        notes += [training.note] if training.note else []
        if sources:
            fed = line.follow("with data", fed_speeds(training, workers, calls=steps))
            notes += notes_on_data(trained[0], fed, Waiting(training, workers))
            trained.append(fed)
        notes += training.step.notes
        del training  # what it holds of the device is no memory of predicting
        predicting = line.follow("inference", predicting_speeds(recipe, place, calls=steps))
        peak = max(peak, peak_now(place, line))
    passes = passes_of(recipe)
    counted = shares([*((speed, passes) for speed in trained), (predicting, FORWARD)], costs, peak)
    notes += [note_on_peak(costs, peak, place, passes), *notes_above(counted["rows"])]
    return {
        "kind": "recipe",
        "batch": recipe.batch,
        "accumulate": recipe.accumulate,
        "workers": workers,
        "path": recipe.path,
        **counted,
        "notes": [*notes, *note_on_bits(recipe.model)],
        "environment": where,
    }


def where_it_trains(training: Training) -> dict[str, Any]:
    return environment_of(training.place) | {"precision": precision_of(training.state.module, training.place)}


def sources_of(recipe: Recipe, data: Path | None) -> dict[str, Source]:
    """The recipe's data; nothing where they lie on a disk and nobody said where."""
    try:
        return opened(recipe, data)
    except DataError as error:
        if data is not None or error.path != "--data":
            raise
        return {}


# ------------------------------------------------------------------------------------------------ of the peak


def peak_now(place: Place, line: Line) -> float:
    """Measured before and after all else, for others may use the machine."""
    line.say("the device's matrix products")
    return matrix_peak(place.device, product_type(place))


def shares(found: list[tuple[Speed, int]], costs: ModelCost, peak: float) -> dict[str, Any]:
    """A row for each measurement, of which it is said how many passes a picture takes; and what its share is counted by."""
    rows: list[Row] = [
        row(speed) | {"share_of_peak": share_of_peak(speed, costs.macs, passes, peak)} for speed, passes in found
    ]
    return {"parameters": costs.parameters, "macs": costs.macs, "peak_flops": peak, "rows": rows}


# ------------------------------------------------------------------------------------------------ notes


def note_on_peak(costs: ModelCost, peak: float, place: Place, passes: int) -> str:
    return (
        f"{costs.parameters:,} parameters, {costs.macs / 1e6:,.1f} M MACs a picture. Peak: {peak / 1e12:,.3g} TFLOP/s, "
        f"a matrix product in {place.precision} measured in this run; training counts {PASSES[passes]}."
    )


def notes_above(rows: list[Row]) -> list[str]:
    """A line where the peak is none."""
    above = any(one["share_of_peak"] > 1 for one in rows)
    return ["More than the peak: here convolutions are faster than the matrix product that it is measured by."] if above else []


def notes_on_data(still: Speed, fed: Speed, waiting: Waiting) -> list[str]:
    """What reading costs, and where it is much what to do about it, as `train` says it."""
    spent = row(fed)["waiting"]
    share = fed.images_per_second / still.images_per_second
    waited = waiting.advice(Record(0, {"time_waiting": spent})) or f"{spent:.0%} of the time is spent waiting for data."
    return [f"With data it runs at {share:.0%} of the synthetic speed.", waited]


def note_on_bits(model: Architecture) -> list[str]:
    """A line where what was measured is not what will run."""
    with torch.device("meta"):
        simulated = any(isinstance(one, OneBit) for one in model.build().modules())
    said = "Its parts of one bit are simulated in floats here. `frugalvit pack RUN` writes what runs them as bits, and "
    return [f"{said}`frugalvit bench --packed FILE` measures that."] if simulated else []
