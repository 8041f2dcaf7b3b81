"""The verb for a first look: it trains, measures and uses a small model, and downloads nothing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from frugalvit.cli.console import AsJson, Quiet, app, console
from frugalvit.cli.training import plain, tell_what_is_where


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")] = Path("runs/demo"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train, evaluate and use a small ViT on handwritten digits: no download, a minute and a half on two cores."""
    from frugalvit.data.digits import Digits
    from frugalvit.recipes.vit import digits
    from frugalvit.report.progress import display_for
    from frugalvit.run import train

    out = free_folder(out)
    done = train(digits(), out=out, device="auto", display=display_for(sys.stderr, "quiet" if quiet else "auto"))
    held_out = Digits().open("test", None)
    assert done.classifier is not None
    pictures = range(0, len(held_out), 100)
    guesses = done.classifier.predict([held_out.picture(index) for index in pictures], top=1)
    right = [(held_out.classes[held_out.labels[index]], guess.name) for index, guess in zip(pictures, guesses, strict=True)]
    if as_json:
        print(json.dumps({"out": str(out), **plain(done.summary), "predictions": right}))
        return
    console.print(f"Held-out accuracy: {done.summary['val_top1']:.1f} % of {len(held_out)} digits.", markup=False)
    for truth, guess in right:
        console.print(f"  a {truth} was read as {guess}", markup=False)
    tell_what_is_where(done)
    console.print("Next:")
    console.print(f"  frugalvit evaluate {out}                          per class, calibration", markup=False)
    console.print("  frugalvit train vit.digits epochs=120 --out runs/longer", markup=False)
    console.print("  frugalvit data check PICTURES                      your own pictures, a folder a class", markup=False)
    console.print(
        "  frugalvit train transfer.folder --data PICTURES --init deit_tiny_patch16_224 --out runs/mine", markup=False
    )


def free_folder(out: Path) -> Path:
    """The folder, or the next of its name that is free."""
    tries = [out, *(out.with_name(f"{out.name}-{number}") for number in range(2, 1000))]
    return next(one for one in tries if not one.exists())
