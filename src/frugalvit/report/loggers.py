"""Loggers of others, beside metrics.jsonl: TensorBoard, Weights & Biases, MLflow, Trackio. Imported when asked for."""

from __future__ import annotations

import importlib
import json
import numbers
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from frugalvit.errors import SpecError, suggestion
from frugalvit.report.files import plain, write_whole, writing

PROJECT = "frugalvit"
CURES = {
    "tensorboard": "pip install 'frugalvit[logging]'",
    "trackio": "pip install 'frugalvit[logging]'",
    "wandb": "pip install wandb",
    "mlflow": "pip install mlflow",
}


class Logger(Protocol):
    """Takes a run's records. A resumed run goes on in the same place."""

    def log(self, step: int, values: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


def logger_named(name: str, run: Path, recipe: Mapping[str, Any]) -> Logger:
    """The logger for the run in that folder; an error says how to install one that is missing."""
    kinds: dict[str, Callable[[Path, Mapping[str, Any]], Logger]] = {
        "tensorboard": TensorBoard,
        "wandb": Wandb,
        "mlflow": Mlflow,
        "trackio": Trackio,
    }
    check_logger(name)
    return kinds[name](run, recipe)


def check_logger(name: str) -> None:
    """Raise for a logger that does not exist or is not installed: before a run folder is made."""
    if name not in CURES:
        raise SpecError(f"no logger is called '{name}'. {suggestion(name, CURES)}", path="logger")
    installed(name)


def installed(name: str) -> Any:
    """A package by its module's name. A folder of that name in the working directory is not the package."""
    package = name.partition(".")[0]
    try:
        found = importlib.import_module(name)
    except ImportError as error:
        problem = f"{package} cannot be imported ({error}). Run: {CURES[package]}"
        raise SpecError(problem, path="logger") from error
    if getattr(found, "__file__", None) is None:
        raise SpecError(f"{package} is not installed. Run: {CURES[package]}", path="logger")
    return found


def only_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one for name, one in values.items() if isinstance(one, numbers.Real) and name != "step"}


def remembered(path: Path, fresh: Callable[[], str]) -> str:
    """The name under which a logger knows this run: made once, kept in the folder for when it is resumed."""
    if path.exists():
        return path.read_text(encoding="utf-8").strip()
    made = fresh()
    write_whole(path, f"{made}\n".encode())
    return made


class TensorBoard:
    """An event file in the run folder, written without torch, without a thread, and without the host's name in it."""

    def __init__(self, run: Path, recipe: Mapping[str, Any]):
        self.event = installed("tensorboard.compat.proto.event_pb2")
        self.proto = installed("tensorboard.compat.proto.summary_pb2")
        records = installed("tensorboard.summary.writer.record_writer")
        self.path = run / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        with writing(self.path):
            self.records = records.RecordWriter(self.path.open("xb"))
        self.purged = False
        self.write(0, file_version="brain.Event:2")
        self.write(0, summary=self.text("recipe", json.dumps(plain(recipe), indent=2)))

    def text(self, tag: str, words: str) -> Any:
        tensors = installed("tensorboard.compat.proto.tensor_pb2")
        types = installed("tensorboard.compat.proto.types_pb2")
        kind = installed("tensorboard.plugins.text.metadata").create_summary_metadata(tag, "")
        shape = installed("tensorboard.compat.proto.tensor_shape_pb2").TensorShapeProto(dim=[{"size": 1}])
        markdown = f"```json\n{words}\n```".encode()
        tensor = tensors.TensorProto(dtype=types.DT_STRING, string_val=[markdown], tensor_shape=shape)
        return self.proto.Summary(value=[self.proto.Summary.Value(tag=tag, metadata=kind, tensor=tensor)])

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        if not self.purged:  # hides what an interrupted run logged from here on
            self.write(step, session_log=self.event.SessionLog(status=self.event.SessionLog.START))
            self.purged = True
        points = [self.proto.Summary.Value(tag=tag, simple_value=one) for tag, one in only_numbers(values).items()]
        self.write(step, summary=self.proto.Summary(value=points))

    def write(self, step: int, *, file_version: str | None = None, session_log: Any = None, summary: Any = None) -> None:
        event = self.event.Event(
            wall_time=time.time(), step=step, file_version=file_version, session_log=session_log, summary=summary
        )
        with writing(self.path):
            self.records.write(event.SerializeToString())
            self.records.flush()

    def close(self) -> None:
        with writing(self.path):
            self.records.close()


class Wandb:
    """A Weights & Biases run; WANDB_PROJECT and WANDB_MODE hold. It ignores steps again that a resumed run repeats."""

    def __init__(self, run: Path, recipe: Mapping[str, Any]):
        wandb = installed("wandb")
        known = remembered(run / "wandb.id", lambda: secrets.token_hex(8))
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        self.run = wandb.init(project=project, name=run.name, id=known, resume="allow", dir=str(run), config=plain(recipe))

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self.run.log(only_numbers(values), step=step)

    def close(self) -> None:
        self.run.finish()


class Mlflow:
    """An MLflow run, where MLFLOW_TRACKING_URI says; the recipe is its artifact recipe.json."""

    def __init__(self, run: Path, recipe: Mapping[str, Any]):
        self.mlflow = installed("mlflow")
        if not {"MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"} & os.environ.keys():
            self.mlflow.set_experiment(PROJECT)
        known = run / "mlflow.id"
        earlier = remembered(known, str) if known.exists() else None
        started = self.mlflow.start_run(run_id=earlier, run_name=None if earlier else run.name)
        remembered(known, lambda: started.info.run_id)
        self.mlflow.log_dict(plain(recipe), "recipe.json")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self.mlflow.log_metrics(only_numbers(values), step=step)

    def close(self) -> None:
        self.mlflow.end_run()


class Trackio:
    """A Trackio run on this machine."""

    def __init__(self, run: Path, recipe: Mapping[str, Any]):
        trackio = installed("trackio")
        name = remembered(run / "trackio.id", lambda: f"{run.name}-{secrets.token_hex(4)}")
        self.run = trackio.init(project=PROJECT, name=name, config=plain(recipe), resume="allow")

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        self.run.log(only_numbers(values), step=step)

    def close(self) -> None:
        self.run.finish()
