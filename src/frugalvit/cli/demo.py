"""The verb for a first look: a convnet teaches a small ViT, which teaches its one-bit twin; nothing is downloaded."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frugalvit.cli.console import AsJson, Quiet, app, console, plain, stderr
from frugalvit.cli.training import tell_what_is_where

if TYPE_CHECKING:
    import numpy as np

    from frugalvit.data.source import Source
    from frugalvit.report.progress import Display
    from frugalvit.run import Run
    from frugalvit.training.recipe import Recipe


FIVE = "Over five seeds the ViT alone reaches 95.2 ± 0.9, distilled 96.4 ± 0.4: docs/results/distilled_digits.md"


@dataclass(frozen=True)
class Timed:
    """A finished training and how long it took."""

    run: Run
    seconds: float


@dataclass(frozen=True)
class Row:
    """What one reading of a model is worth on the held-out digits, in percent."""

    model: str
    parameters: int
    top1: float
    agreement: float  # with the teacher
    seconds: float  # of training


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder to write: a run for each model.")] = Path("runs/demo"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Teach a small ViT 300 handwritten digits, alone and with a convnet as its teacher, then in one bit: no download.

    It takes two to four minutes on two cores.
    """
    from frugalvit.cli.demo_packed import packed_twin, tell_packed
    from frugalvit.data.digits import Digits
    from frugalvit.recipes import few_digits
    from frugalvit.report.progress import NoHint, display_for

    asked, out = out, free_folder(out)
    display = display_for(sys.stderr, "quiet" if quiet else "auto", NoHint())  # it has no flag that would help
    if out != asked:
        display.note(f"there is a {asked} already, which stays as it is; this demo writes to {out}")
    with ending_early(out):
        teacher = timed(few_digits.resnet(), out / "teacher", "1 of 4: the teacher, a small convnet", display)
        alone = timed(few_digits.vit(), out / "alone", "2 of 4: a ViT alone", display)
        taught = few_digits.distilled(teacher=str(out / "teacher"))
        distilled = timed(taught, out / "distilled", "3 of 4: the same ViT, taught by the convnet through its token", display)
        twin = few_digits.binary(teacher=str(out / "distilled"))
        binary = timed(twin, out / "binary", "4 of 4: its twin with weights and activations of one bit, taught by it", display)
    held_out = Digits().open("test", None)
    rows = compared(teacher, alone, distilled, binary, held_out)
    small = packed_twin(distilled.run, binary.run, held_out)
    examples = read_digits(distilled.run, held_out)
    if as_json:
        runs = {"teacher": teacher, "alone": alone, "distilled": distilled, "binary": binary}
        summaries = {name: plain(one.run.summary) for name, one in runs.items()}
        tables = {"table": [asdict(row) for row in rows], "packed": asdict(small)}
        print(json.dumps({"out": str(out), **tables, "predictions": examples, **summaries}))
        return
    tell_results(rows, len(held_out))
    tell_packed(small)
    for truth, guess in examples:
        console.print(f"  a {truth} was read as {guess}", markup=False)
    tell_what_is_where(distilled.run)
    console.print("Next:")
    console.print(f"  frugalvit evaluate {distilled.run.path}                per class, calibration", markup=False)
    console.print(f"  frugalvit predict {small.file} DIGIT.png      the packed twin", markup=False)
    console.print("  frugalvit distill --teacher digits.resnet --student vit.digits --out runs/taught", markup=False)
    console.print("  frugalvit data check PICTURES                      your own pictures, a folder a class", markup=False)
    console.print(
        "  frugalvit train transfer.folder --data PICTURES --init deit_tiny_patch16_224 --out runs/mine", markup=False
    )


@contextmanager
def ending_early(out: Path) -> Iterator[None]:
    """Whoever presses Ctrl-C is told that a demo does not go on where it was."""
    try:
        yield
    except KeyboardInterrupt:
        stderr.print(f"stopped; the demo begins anew next time, in another folder than {out}", markup=False)
        raise


def free_folder(out: Path) -> Path:
    """The folder, or the next of its name that is free: what an interrupted demo left stays as it is."""
    tries = [out, *(out.with_name(f"{out.name}-{number}") for number in range(2, 1000))]
    return next(one for one in tries if not one.exists())


def timed(recipe: Recipe, out: Path, title: str, display: Display) -> Timed:
    from frugalvit.run import train

    display.note(title)
    start = time.monotonic()
    return Timed(train(recipe, out=out, device="auto", display=display), time.monotonic() - start)


def compared(teacher: Timed, alone: Timed, distilled: Timed, binary: Timed, held_out: Source) -> list[Row]:
    """A row for each model, and for each reading of the distilled one; of its twin, as it is packed, both heads together."""
    told_N = guesses(teacher.run, held_out)["class"]
    rows = []
    named = {"teacher, a convnet": teacher, "ViT alone": alone, "ViT distilled": distilled, "one-bit twin": binary}
    for name, one in named.items():
        assert one.run.classifier is not None
        parameters = sum(parameter.numel() for parameter in one.run.classifier.parameters())
        found = guesses(one.run, held_out)
        if one is binary:
            found = {"both": found["both"]}
        for reading, guess_N in found.items():
            top1, agreement = (100 * float((guess_N == other_N).mean()) for other_N in (held_out.labels, told_N))
            words = f"{name}, read from {reading}" if len(found) > 1 else name
            rows.append(Row(words, parameters, top1, agreement, one.seconds))
    return rows


def guesses(run: Run, held_out: Source) -> dict[str, np.ndarray]:
    """The class of every digit by each head, and by both together where there are two."""
    from frugalvit.nn.readout import MeanLogits, fuse
    from frugalvit.training.devices import place_for
    from frugalvit.training.evaluate import Framed, heads_and_labels

    assert run.classifier is not None
    framed = Framed(held_out, run.classifier.preprocess, place_for("cpu", "fp32"))
    heads, _ = heads_and_labels(run.classifier.module, framed)
    both = {"both": fuse(heads, MeanLogits())} if len(heads) > 1 else {}
    return {name: logits_NC.argmax(-1).numpy() for name, logits_NC in (heads | both).items()}


def read_digits(run: Run, held_out: Source) -> list[tuple[str, str]]:
    """A few digits: what they are, and what the model takes them for."""
    assert run.classifier is not None
    pictures = range(0, len(held_out), 100)
    found = run.classifier.predict([held_out.picture(index) for index in pictures], top=1)
    return [(held_out.classes[held_out.labels[index]], one.name) for index, one in zip(pictures, found, strict=True)]


def tell_results(rows: list[Row], pictures: int) -> None:
    from rich.table import Table

    table = Table(title=f"{pictures} held-out digits, 300 to learn from, one seed", title_justify="left")
    table.add_column("model")
    for heading in ("parameters", "accuracy", "agrees with the teacher", "seconds"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row.model, f"{row.parameters:,}", f"{row.top1:.1f} %", f"{row.agreement:.1f} %", f"{row.seconds:.0f}")
    console.print(table)
    console.print(f"One seed is an example, no measurement. {FIVE}", soft_wrap=True)
