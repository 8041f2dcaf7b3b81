"""The verb bench: how fast a model or a recipe runs here, and what it waits for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frugalvit.cli.bench_page import Line, table, where, write
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
from frugalvit.cli.show import is_folder, is_saved, model_or_saved
from frugalvit.cli.show import is_recipe as names_recipe
from frugalvit.errors import SpecError, suggestion

if TYPE_CHECKING:
    from frugalvit.training.devices import Place

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
    from frugalvit.cli.bench_rows import of_model, of_recipe

    if is_recipe(name):
        from frugalvit.recipes.find import recipe

        chosen = recipe(name, *(overrides or []), parts=parts)
        chosen = chosen if batch is None else replace(chosen, batch=batch)
        place = place_for(device, chosen.precision)
        with Line(quiet) as line:
            found = of_recipe(chosen, data, place, workers, steps, line)
    else:
        refuse_unknown(name)
        if data is not None:
            raise SpecError("a model is measured on noise. Name a recipe to measure the reading of data.", path="--data")
        place = place_for(device, "auto")
        model = model_or_saved(name, overrides or [], parts)
        with Line(quiet) as line:
            found = of_model(model, batch or BATCH[place.device.type], place, steps, line)
    found = {"name": name, "overrides": overrides or [], **found}
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


def refuse_unknown(name: str) -> None:
    """Raise for what is no model, no recipe and no path."""
    from frugalvit.recipes.find import functions as recipes
    from frugalvit.zoo.find import functions as models

    base = name.partition("+")[0]
    if base in models() or ":" in name or "/" in name or is_folder(name) or is_saved(name):
        return
    raise SpecError(
        f"no model is called '{base}'. {suggestion(base, models())} No recipe is called so either. "
        f"{suggestion(name, recipes())} `frugalvit list models` and `frugalvit list recipes` show all."
    )


def environment_of(place: Place) -> dict[str, Any]:
    """Where something is measured; with the threads of now, so ask while it is."""
    import torch

    from frugalvit.measure.latency import device_name
    from frugalvit.report.environment import environment

    return environment() | {
        "device": str(place.device),
        "device_name": device_name(place.device),
        "precision": place.precision,
        "threads": torch.get_num_threads(),
    }
