"""Training as it is watched: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, Protocol, TextIO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from frugalvit.stopping import leave_terminal

WAITING = 0.1
SECONDS = 10  # between two plain lines of a count


class Display(Protocol):
    """Shows records of a run that goes from step `done` to step `total`. `stop` belongs into a `finally`."""

    def start(self, total: int, done: int) -> None: ...

    def show(self, values: Mapping[str, Any]) -> None: ...

    def note(self, text: str) -> None: ...

    def count(self, what: str, done: int, total: int) -> None:
        """Before `start`: so much of something is done."""
        ...

    def stop(self) -> None: ...


def display_for(stream: TextIO, mode: Literal["auto", "quiet"], hint: Hint | NoHint | None = None) -> Display:
    """A bar where `stream` is a terminal that can move its cursor, else lines."""
    if mode == "quiet":
        return Silent()
    able = stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return (Bar if able else Lines)(cast(TextIO, Outlived(stream)) if stream.isatty() else stream, hint)


class Outlived:
    """A terminal that a training may outlive: once it is gone, what is written goes nowhere."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        with outliving():
            return self.stream.write(text)
        return len(text)

    def flush(self) -> None:
        with outliving():
            self.stream.flush()


@contextmanager
def outliving() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        leave_terminal()


class Pace:
    """The time that is left, from the steps since the first record: compiling and warming up do not count."""

    def __init__(self, total: int, done: int, clock: Callable[[], float] = time.monotonic):
        self.total, self.clock = total, clock
        self.anchor, self.records = (done, clock()), 0

    def left(self, step: int) -> timedelta | None:
        (first, began), now = self.anchor, self.clock()
        self.records += 1
        if self.records == 1:
            self.anchor = step, now
        if step <= first:
            return None
        return timedelta(seconds=round((now - began) / (step - first) * max(0, self.total - step)))


class Hint:
    """Says once that training waits for its data."""

    def __init__(self) -> None:
        self.said = False

    def of(self, values: Mapping[str, Any]) -> str | None:
        share = values.get("time_waiting")
        if self.said or not isinstance(share, (int, float)) or not share > WAITING:
            return None
        self.said = True
        return values.get("advice") or f"{share:.0%} of the time is spent waiting for data. Try more --workers."


class NoHint:
    """For a command whose user can do nothing about it."""

    def of(self, values: Mapping[str, Any]) -> None:
        return None


def words(values: Mapping[str, Any]) -> str:
    """`epoch 1.2  loss 2.303  accuracy 0.41  lr 0.0005  val top-1 41.00 %  812 images/s  3% waiting`, of what there is.

    Steps whose loss or gradient was no number are counted from the start of the run.
    """
    formats = {
        "epoch": "epoch {:.4g}",
        "loss": "loss {:.4g}",
        "accuracy": "accuracy {:.4g}",
        "lr": "lr {:.3g}",
        "val_top1": "val top-1 {:.2f} %",
        "time_images_per_second": "{:,.0f} images/s",
        "time_waiting": "{:.0%} waiting",
    }
    found = [text.format(values[key]) for key, text in formats.items() if isinstance(values.get(key), (int, float))]
    return "  ".join([*found, f"{skipped} steps skipped"] if (skipped := values.get("nonfinite")) else found)


class Bar:
    """A live bar with a line of numbers under it. Drawn when a record comes, so no thread lives beside the run."""

    def __init__(self, stream: TextIO, hint: Hint | NoHint | None = None):
        self.console = Console(file=stream, highlight=False, force_terminal=True)
        self.hint = hint or Hint()

    def start(self, total: int, done: int) -> None:
        self.pace = Pace(total, done)
        columns = (
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(None),
            TextColumn("{task.percentage:.0f}%  {task.description}"),
        )
        self.progress = Progress(*columns, console=self.console, expand=True)
        self.task = self.progress.add_task("", total=total, completed=done)
        # Where stdout goes to a file or a pipe, what is printed must go there too, not above the bar.
        self.live = Live(console=self.console, auto_refresh=False, redirect_stdout=sys.stdout.isatty())
        self.live.start()
        self.draw("")

    def show(self, values: Mapping[str, Any]) -> None:
        step = int(values["step"])
        left = self.pace.left(step)
        self.progress.update(self.task, completed=step, description="" if left is None else f"{left} left")
        self.draw(words(values))
        hint = self.hint.of(values)
        if hint:
            self.note(hint)

    def draw(self, text: str) -> None:
        self.live.update(Group(self.progress, Text(text)), refresh=True)

    def note(self, text: str) -> None:
        self.console.print(f"note: {text}", markup=False)

    def count(self, what: str, done: int, total: int) -> None:
        if not hasattr(self, "counting"):
            columns = TextColumn("{task.description}"), MofNCompleteColumn(), BarColumn(None)
            self.counting = Progress(*columns, console=self.console, expand=True, transient=True)
            self.counting.add_task(what, total=total)
            self.counting.start()
        self.counting.update(self.counting.task_ids[0], completed=done)
        if done >= total:
            self.counting.stop()
            del self.counting

    def stop(self) -> None:
        if hasattr(self, "live"):
            self.live.stop()


class Lines:
    """One plain line a record, for files and pipes."""

    def __init__(self, stream: TextIO, hint: Hint | NoHint | None = None):
        self.stream = stream
        self.hint = hint or Hint()
        self.counted = time.monotonic()

    def start(self, total: int, done: int) -> None:
        self.pace = Pace(total, done)

    def show(self, values: Mapping[str, Any]) -> None:
        step = int(values["step"])
        left = self.pace.left(step)
        parts = [f"step {step}/{self.pace.total}", words(values), "" if left is None else f"{left} left"]
        self.say("  ".join(filter(None, parts)))
        hint = self.hint.of(values)
        if hint:
            self.note(hint)

    def note(self, text: str) -> None:
        self.say(f"note: {text}")

    def count(self, what: str, done: int, total: int) -> None:
        if done >= total or time.monotonic() - self.counted > SECONDS:
            self.counted = time.monotonic()
            self.say(f"{what}: {done} of {total}")

    def say(self, text: str) -> None:
        print(text, file=self.stream, flush=True)

    def stop(self) -> None:
        pass


class Silent:
    """Shows nothing."""

    def start(self, total: int, done: int) -> None:
        pass

    def show(self, values: Mapping[str, Any]) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def count(self, what: str, done: int, total: int) -> None:
        pass

    def stop(self) -> None:
        pass
