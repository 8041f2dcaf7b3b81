"""Verbs about data and training: train, data check."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frugalvit.cli.console import (
    AsJson,
    Device,
    Init,
    Loggers,
    OfSettings,
    OriginName,
    Overrides,
    Quiet,
    TrainingData,
    With,
    Workers,
    app,
    console,
    own_parts,
    plain,
    stderr,
)
from frugalvit.cli.resuming import (
    Extend,
    refuse_exclusive,
    refuse_folder_of_seeds,
    refuse_recipe_of_own_parts,
    refuse_recipe_of_seeds,
)
from frugalvit.cli.words import in_words
from frugalvit.errors import SpecError

if TYPE_CHECKING:
    from frugalvit.first_weights import Begun
    from frugalvit.run import Run
    from frugalvit.training.recipe import Recipe

data_app = typer.Typer(help="Look at data before training on it.", no_args_is_help=True)
app.add_typer(data_app, name="data")


def tell_what_is_where(done: Run) -> None:
    console.print(f"Written to {done.path}:", markup=False)
    console.print("  model.safetensors, config.json    the model: frugalvit.load, frugalvit predict", markup=False)
    if (done.path / "best.safetensors").exists():
        console.print("  best.safetensors                  the weights at their best validation", markup=False)
    console.print("  metrics.jsonl, summary.json       curves and results", markup=False)
    console.print("  recipe.json, environment.json     how it was made; state/ continues it (--resume)", markup=False)


@app.command(cls=OfSettings)
def train(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="RECIPE", help="See `list recipes`; or mylab.runs:night7, or a run folder.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run folder to write.")] = None,
    data: TrainingData = None,
    init: Init = "",
    origin: OriginName = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out; without a checkpoint, start.")] = False,
    extend: Extend = False,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Several, as in 0,1,2: a run each; on a GPU at once.")] = None,
    device: Device = "auto",
    workers: Workers = 0,
    log: Loggers = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Train a recipe into a run folder."""
    from frugalvit.first_weights import repeated
    from frugalvit.recipes.find import recipe
    from frugalvit.report.progress import display_for
    from frugalvit.run import train as run

    if out is None:
        raise SpecError("where to? Say --out FOLDER.", path="--out")
    refuse_exclusive(overrides or [], seeds, resume, extend, log or [])
    refuse_folder_of_seeds(context, out)
    refuse_recipe_of_seeds(name)
    refuse_recipe_of_own_parts(name)
    parts = own_parts(with_ or [])
    chosen = recipe(name, *(overrides or []), parts=parts)
    start = repeated(init, name)
    if seeds is not None:
        with in_words(name, overrides or [], parts):
            several(chosen, seeds, out, data, start, origin, resume, device, workers, quiet, as_json)
        return
    with resumable(out), in_words(name, overrides or [], parts):
        done = run(
            chosen,
            out=out,
            data=data,
            init=start,
            origin=origin,
            resume=resume,
            extend=extend,
            device=device,
            workers=workers,
            log=log or [],
            display=display_for(sys.stderr, "quiet" if quiet else "auto"),
        )
    if as_json:
        print(json.dumps({"out": str(out), **plain(done.summary)}))
        end_of_nonsense(done)
        return
    for split in ("val", "test"):
        if f"{split}_top1" in done.summary:
            console.print(f"{split}: top-1 {done.summary[f'{split}_top1']:.2f} %, loss {done.summary[f'{split}_loss']:.4f}")
    tell_cautions(done)
    for bad in done.summary["bad_pictures"][:10]:
        stderr.print(f"could not be read, and was replaced: {bad}", markup=False)
    tell_what_is_where(done)
    end_of_nonsense(done)


def tell_cautions(done: Run, who: str = "") -> None:
    if skipped := done.summary["nonfinite"]:
        of = f"{skipped} of {done.summary['step']} steps"
        stderr.print(
            f"caution: {who}{of} were skipped: their loss or gradient was no number; a lower learning rate helps", markup=False
        )
    for split in ("val", "test"):
        if missing := done.summary.get(f"{split}_unreadable"):
            which = f"{missing} {split} picture{'s' if missing > 1 else ''} cannot be read, and {split} is without"
            stderr.print(f"caution: {who}{which}; `frugalvit data check` names what is broken", markup=False)


def end_of_nonsense(*runs: Run) -> None:
    """Trainings whose models answer with no numbers have failed, whatever else is in their folders."""
    failed = [run for run in runs if any(math.isnan(run.summary.get(f"{split}_loss", 0.0)) for split in ("val", "test"))]
    for run in failed:
        said = "the trained model answers with no numbers: train again with a lower learning rate"
        stderr.print(f"{run.path}: {said}", markup=False)
    if failed:
        raise typer.Exit(1)


@contextmanager
def resumable(out: Path) -> Iterator[None]:
    """Whoever presses Ctrl-C is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        if next(out.rglob("step-*.safetensors"), None) is None:
            stderr.print("stopped before the first checkpoint: the same command with --resume begins anew", markup=False)
        else:
            stderr.print(f"stopped; the same command with --resume goes on from the newest checkpoint in {out}", markup=False)
        raise


def several(
    chosen: Recipe,
    seeds: str,
    out: Path,
    data: Path | None,
    init: str | Begun,
    origin: str,
    resume: bool,
    device: str,
    workers: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a recipe once a seed, and print mean and deviation."""
    from frugalvit.report.progress import display_for
    from frugalvit.seeds import described, earlier, summaries, train_seeds

    try:
        numbers = [int(one) for one in seeds.split(",")]
    except ValueError as error:
        raise SpecError(f"'{seeds}' is no list of seeds. Use whole numbers, as in 0,1,2.", path="--seeds") from error
    display = display_for(sys.stderr, "quiet" if quiet else "auto")
    with resumable(out):
        runs = train_seeds(
            chosen,
            numbers,
            out=out,
            data=data,
            resume=resume,
            device=device,
            workers=workers,
            init=init,
            origin=origin,
            display=display,
        )
    before = earlier(out, chosen, numbers)
    every = [*before.values(), *runs]
    found = summaries(every)
    if as_json:
        print(json.dumps({"out": str(out), "seeds": [*before, *numbers], **plain(described(every))}))
        end_of_nonsense(*runs)
        return
    for run in runs:
        tell_cautions(run, f"{run.path.name}: ")
    for name, one in found.items():
        console.print(f"{name:24s}{one.text(2 if 'loss' not in name else 4)}", markup=False)
    with_them = f", with seed {', '.join(map(str, before))} of before" if before else ""
    console.print(f"Written to {out}: a run folder a seed, and seeds.json{with_them}", markup=False)
    end_of_nonsense(*runs)


@data_app.command("check")
def check(
    path: Annotated[Path, typer.Argument(help="A folder of classes or of splits with classes, arrays, or a CSV.")],
    as_json: AsJson = False,
) -> None:
    """Find what would go wrong in training: unreadable pictures, class mismatches, leaks. Exit code 1 on errors."""
    from frugalvit.data.check import check as look

    report = look(path)
    if as_json:
        print(json.dumps(report.plain()))
    else:
        for line in report.lines():
            console.print(line, markup=False)
    if not report.usable:
        raise typer.Exit(1)
