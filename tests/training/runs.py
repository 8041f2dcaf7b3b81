"""A small training, and all that must be equal between two of them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from frugalvit.recipes.find import recipe
from frugalvit.report.progress import Silent
from frugalvit.report.record import RunFolder
from frugalvit.training.recipe import Recipe

TINY = (
    "dim=16",
    "depth=1",
    "epochs=3",
    "batch=32",
    "lr=0.004",
    "schedule.warmup=Steps(4)",
    "average=Ema(0.9)",
    "save=Steps(4)",
    "evaluate=Steps(8)",
    "log_every=3",
    "data.subset=SeededFraction(0.2)",
)


def tiny(*overrides: str) -> Recipe:
    """Digits, 24 steps in three epochs."""
    return recipe("vit.digits", *TINY, *overrides)


def trace(folder: Path) -> dict[str, Any]:
    """What a finished run leaves, byte by byte, but for its timings."""
    newest = states(folder)[-1]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "names": sorted(one.name for one in folder.rglob("*") if not one.name.startswith("environment")),
        "state": newest.read_bytes(),
        "weights": (folder / "model.safetensors").read_bytes(),
        "summary": (folder / "summary.json").read_bytes(),
        "recipe": (folder / "recipe.json").read_bytes(),
        "metrics": [{key: value for key, value in row.items() if not key.startswith("time_")} for row in rows],
    }


def states(folder: Path) -> list[Path]:
    return sorted((folder / "state").glob("step-*.safetensors"))


def column(folder: Path, name: str) -> list[Any]:
    return [row[name] for row in RunFolder(folder).metrics() if name in row]


class Stopped(Exception):
    """The training was ended from outside."""


class StopAt(Silent):
    """Ends a training when it shows that step: after its line is in the log, and before its checkpoint is written."""

    def __init__(self, step: int):
        self.step = step

    def show(self, values: Mapping[str, Any]) -> None:
        if values["step"] >= self.step:
            raise Stopped


class Notes(Silent):
    """Keeps what a run says."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


class PressesAt(Silent):
    """Presses Ctrl-C, or sends another signal, so many times when a record of that step is shown."""

    def __init__(self, step: int, times: int = 1, number: signal.Signals = signal.SIGINT):
        self.step = step
        self.times = times
        self.number = number

    def show(self, values: Mapping[str, Any]) -> None:
        if values["step"] == self.step:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)


class PressesOnce(Notes):
    """Presses Ctrl-C at a record of the first seed, once the others have one too."""

    def __init__(self, out: Path, seeds: Sequence[int]):
        super().__init__()
        self.logs = [out / f"seed-{seed}" / "metrics.jsonl" for seed in seeds[1:]]
        self.pressed = False

    def show(self, values: Mapping[str, Any]) -> None:
        began = time.monotonic()
        while not self.pressed and not self.ready() and time.monotonic() - began < 60:
            time.sleep(0.001)
        if not self.pressed:
            self.pressed = True
            os.kill(os.getpid(), signal.SIGINT)

    def ready(self) -> bool:
        return all(log.exists() and log.read_bytes() for log in self.logs)
