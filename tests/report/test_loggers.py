from __future__ import annotations

import math
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from frugalvit.errors import DataError, SpecError
from frugalvit.report.loggers import logger_named

RECIPE = {"seed": 3, "layers": [{"heads": 3}]}
VALUES = {"step": 10, "loss": 2.5, "split": "train", "accuracy": None, "norm": math.inf}


class Calls(ModuleType):
    """A stand-in that writes down every call; what it returns does so too."""

    def __init__(self, name: str):
        super().__init__(name)
        self.__file__ = f"{name}.py"
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.info = SimpleNamespace(run_id="mlflow-gave-this")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **named: Any) -> Calls:
            self.calls.append((name, args, named))
            return self

        return call

    def named(self, name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return [(args, named) for one, args, named in self.calls if one == name]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(name: str) -> Calls:
        module = Calls(name)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID", raising=False)
    return put


def test_an_unknown_logger_brings_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"logger: no logger is called 'tensorbord'\. Did you mean 'tensorboard'\?"):
        logger_named("tensorbord", tmp_path, RECIPE)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("tensorboard", r"pip install 'frugalvit\[logging\]'"),
        ("trackio", r"pip install 'frugalvit\[logging\]'"),
        ("wandb", "pip install wandb"),
        ("mlflow", "pip install mlflow"),
    ],
)
def test_a_missing_package_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, cure: str
) -> None:
    for module in [one for one in sys.modules if one.partition(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SpecError, match=rf"logger: {name} cannot be imported .*Run: {cure}$"):
        logger_named(name, tmp_path, RECIPE)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_wandb_left_behind_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", ModuleType("wandb"))
    with pytest.raises(SpecError, match="wandb is not installed"):
        logger_named("wandb", tmp_path, RECIPE)


def test_wandb_gets_numbers_and_a_resumed_run_is_the_same_one(tmp_path: Path, stand_in: Any) -> None:
    wandb = stand_in("wandb")
    for _ in range(2):
        logger = logger_named("wandb", tmp_path, RECIPE)
        logger.log(10, VALUES)
        logger.close()
    (_, first), (_, second) = wandb.named("init")
    assert first == second
    assert first["config"] == RECIPE and first["resume"] == "allow" and first["project"] == "frugalvit"
    assert wandb.named("log")[0] == (({"loss": 2.5, "norm": math.inf},), {"step": 10})
    assert len(wandb.named("finish")) == 2


def test_mlflow_gets_numbers_and_a_resumed_run_is_the_same_one(tmp_path: Path, stand_in: Any) -> None:
    mlflow = stand_in("mlflow")
    for _ in range(2):
        logger = logger_named("mlflow", tmp_path, RECIPE)
        logger.log(10, VALUES)
        logger.close()
    assert [named["run_id"] for _, named in mlflow.named("start_run")] == [None, "mlflow-gave-this"]
    assert mlflow.named("log_metrics")[0] == (({"loss": 2.5, "norm": math.inf},), {"step": 10})
    assert mlflow.named("log_dict")[0][0] == (RECIPE, "recipe.json")
    assert len(mlflow.named("end_run")) == 2


def test_trackio_gets_numbers_and_a_resumed_run_is_the_same_one(tmp_path: Path, stand_in: Any) -> None:
    trackio = stand_in("trackio")
    for _ in range(2):
        logger = logger_named("trackio", tmp_path, RECIPE)
        logger.log(10, VALUES)
        logger.close()
    (_, first), (_, second) = trackio.named("init")
    assert first == second and first["name"].startswith(tmp_path.name)
    assert trackio.named("log")[0] == (({"loss": 2.5, "norm": math.inf},), {"step": 10})
    assert len(trackio.named("finish")) == 2


def test_tensorboard_reads_the_events_and_hides_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    for first, loss in ((0, 1.0), (20, 2.0)):
        logger = logger_named("tensorboard", tmp_path, RECIPE)
        for step in range(first, first + 40, 10):
            logger.log(step, VALUES | {"step": step, "loss": loss})
        logger.close()
    found = EventAccumulator(str(tmp_path), purge_orphaned_data=True)
    found.Reload()
    assert [(one.step, one.value) for one in found.Scalars("loss")] == [
        (0, 1.0), (10, 1.0), (20, 2.0), (30, 2.0), (40, 2.0), (50, 2.0),
    ]  # fmt: skip
    assert found.Scalars("norm")[0].value == math.inf
    assert '"heads": 3' in found.Tensors("recipe")[0].tensor_proto.string_val[0].decode()
    assert set(found.Tags()["scalars"]) == {"loss", "norm"}


def test_tensorboard_events_are_on_disk_when_log_returns(tmp_path: Path) -> None:
    logger = logger_named("tensorboard", tmp_path, RECIPE)
    logger.log(1, {"loss": 0.125})
    (file,) = tmp_path.iterdir()
    assert struct.pack("<f", 0.125) in file.read_bytes()
    logger.close()


def test_tensorboard_says_that_the_run_folder_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"events\.out\.tfevents.*cannot be written \(No such file or directory\)"):
        logger_named("tensorboard", tmp_path / "nowhere", RECIPE)


def test_tensorboard_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from frugalvit.report.loggers import logger_named; "
        "logger_named('tensorboard', Path(sys.argv[1]), {}).close(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0
