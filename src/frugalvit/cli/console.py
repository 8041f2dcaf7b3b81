"""What all verbs share: the app, the two streams, common arguments, and refusals."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from frugalvit.errors import SpecError

app = typer.Typer(
    help="Vision transformers for people with little data, little compute and few bits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[name=value]...", help="image=384 sets a parameter; layers[2].mlp.ratio=2 edits the value."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
With = Annotated[list[str] | None, typer.Option("--with", metavar="MODULE", help="A Python module with parts of your own.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1 or mps.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes that read pictures ahead.")]
DataPath = Annotated[Path | None, typer.Option("--data", help="The data: a folder, or a CSV of paths and labels.")]
TABLE = "The data: a folder; or, with data.dataset=LabelTable, a CSV of paths and labels."
TrainingData = Annotated[Path | None, typer.Option("--data", help=TABLE)]
Split = Annotated[str, typer.Option("--split", help="train, val, test; all: of --data without splits.")]
DatasetName = Annotated[str, typer.Option("--dataset", help="Another data set than the run's: see `list datasets`.")]
WEIGHTS = "A file; the folder of a run, finished or not, of `import` or of HF; a released name; or hf-hub:owner/name."
Init = Annotated[str, typer.Option("--init", metavar="WEIGHTS", help=f"{WEIGHTS} none: fresh ones.")]
OriginName = Annotated[str, typer.Option("--origin", help="Whose names a file of weights has: see `list origins`.")]
LOGGERS = "tensorboard, wandb, mlflow or trackio; several: once for each."
Loggers = Annotated[list[str] | None, typer.Option("--log", help=LOGGERS)]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress, notes or cautions.")]


class OfSettings(TyperCommand):
    """A verb that takes name=value: whoever writes --name is told so. An option that takes one value is given once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            _, _, order = self.make_parser(ctx).parse_args(list(args))
            again = {id(one): one for place, one in enumerate(order) if one in order[:place]}
            for one in again.values():
                if one.param_type_name == "option" and not (one.multiple or one.is_flag):  # type: ignore[attr-defined]
                    raise SpecError("is given more than once. Say which one is meant.", path=max(one.opts, key=len))
            return super().parse_args(ctx, args)
        except Exception as error:  # of click, which some versions of typer have copied and others import
            if type(error).__name__ == "NoSuchOption":
                name = error.option_name.lstrip("-").replace("-", "_")  # type: ignore[attr-defined]
                error.message += f". Settings are written as name=value, without dashes: {name}=..."  # type: ignore[attr-defined]
            raise


def show_what_can_be_shown() -> None:
    """Let a stream that is not in Unicode say an escape for a character that it has not, rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def written_out() -> Iterator[None]:
    """See to it that all output is written inside, where a full disk or a closed pipe is an error that can be told."""
    try:
        yield
    finally:
        if sys.stdout is not None:  # as it is where the shell closed it
            sys.stdout.flush()


def give_up_output() -> None:
    """Nothing more goes to a stream that takes nothing; else Python would try once more when it ends, and complain."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def refuse_existing(out: Path) -> None:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise SpecError("exists already, and nothing is overwritten. Choose another, or remove it.", path=str(out))


def own_parts(modules: list[str]) -> list[type]:
    """The spec classes of the user's modules, found from the current folder as well."""
    import dataclasses
    import importlib

    found = []
    for name in modules:
        sys.path.insert(0, "")
        try:
            module = importlib.import_module(name)
        except Exception as error:  # a module of the user's may fail in any way
            raise SpecError(f"cannot be imported ({type(error).__name__}: {error}).", path=f"--with {name}") from error
        finally:
            sys.path.remove("")
        kinds = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
        found += [kind for kind in kinds if dataclasses.is_dataclass(kind) and hasattr(kind, "build")]
    return found


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """As JSON can hold it: what is not finite becomes "nan" or "inf"."""
    from frugalvit.report.files import plain as written

    return written({name: value for name, value in values.items() if not name.startswith("time_")})
