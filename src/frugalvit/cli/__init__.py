"""The command line: one short function a verb, which imports what it needs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from frugalvit.cli import advise, analyze, bench, demo, distill, evaluating, models, pack, show, training
from frugalvit.cli.console import app, console, give_up_output, show_what_can_be_shown, stderr, written_out
from frugalvit.errors import FrugalError

__all__ = ["advise", "analyze", "app", "bench", "demo", "distill", "evaluating", "main", "models", "pack", "show", "training"]

# OpenMP's threads would spin while they wait; where another program wants a core, that makes small models ten times slower
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        from frugalvit import __version__

        console.print(f"frugalvit {__version__}")
        raise typer.Exit


def main() -> None:
    """Errors that a user can mend end in one message and exit code 1, never in a traceback."""
    show_what_can_be_shown()
    try:
        with written_out():
            app()
    except FrugalError as error:
        stderr.print(f"[bold red]{type(error).__name__}[/bold red]: ", end="")
        stderr.print(str(error), markup=False)
        sys.exit(1)
    except BrokenPipeError:  # whoever read has enough
        give_up_output()
        sys.exit(1)
    except OSError as error:  # a disk that is full, a folder that is closed
        give_up_output()
        told = " ".join([str(error), *getattr(error, "__notes__", [])])  # such as which seed it was
        stderr.print(f"{type(error).__name__}: {told}", markup=False)
        sys.exit(1)
