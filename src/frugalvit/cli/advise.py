"""The verb that advises: what to train on these pictures, on this machine, in this time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frugalvit.cli.console import AsJson, DataPath, Device, Quiet, app, console, stderr
from frugalvit.errors import SpecError

if TYPE_CHECKING:
    from frugalvit.advise.advise import Advice


@app.command()
def advise(
    data: DataPath = None,
    dataset: Annotated[
        str, typer.Option("--dataset", help="A data set by name (`list datasets`): Digits needs no --data.")
    ] = "",
    hours: Annotated[float | None, typer.Option("--hours", help="What it may take on this machine.")] = None,
    init: Annotated[
        str, typer.Option("--init", metavar="WEIGHTS", help="auto, none (from scratch), or a released name.")
    ] = "auto",
    device: Device = "auto",
    write: Annotated[Path | None, typer.Option("--write", metavar="FILE", help="A .json file for the recipe.")] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Choose a recipe for your pictures, machine and hours: the command, why, and what it will cost."""
    if write is not None:
        refuse_unwritable(write)
    from frugalvit.advise.advise import advise as found
    from frugalvit.advise.answer import lines, plain

    advice = found(data, dataset=dataset, hours=hours, init=init, device=device, tell=silent if quiet else told)
    if write is not None:
        written(advice, write)
    if as_json:
        print(json.dumps(plain(advice) | ({"written": str(write)} if write else {})))
        return
    for line in lines(advice, min(console.width, 118), write):
        console.print(line, markup=False)
    if write is not None:
        console.print(f"\nThe recipe is in {write}.", markup=False)


def told(text: str) -> None:
    stderr.print(f"{text} ...", markup=False, style="dim")


def silent(text: str) -> None:
    """For --quiet."""


def refuse_unwritable(file: Path) -> None:
    """Before anything is measured."""
    if file.suffix != ".json":
        raise SpecError("`train` knows a recipe file by its ending. Call it FILE.json.", path=f"--write {file}")
    if file.exists():
        raise SpecError("exists already, and nothing is overwritten. Choose another, or remove it.", path=f"--write {file}")
    if not file.parent.is_dir():
        raise SpecError("there is no such folder. Make it first.", path=f"--write {file.parent}")


def written(advice: Advice, file: Path) -> None:
    from frugalvit.report.files import write_json
    from frugalvit.spec import encode

    write_json(file, encode(advice.recipe))
