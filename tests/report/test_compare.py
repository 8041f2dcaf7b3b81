from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from frugalvit.errors import DataError
from frugalvit.report.compare import rows
from frugalvit.report.record import RunFolder
from frugalvit.report.table import as_markdown

TOP1 = "summary.val_top1"
EPOCHS = "recipe.duration.count"


def made(folder: Path, epochs: int, seed: int, top1: float | None, teacher: str | None = None, lr: float = 0.1) -> Path:
    described: dict[str, Any] = {"duration": {"part": "Epochs", "count": epochs}, "optimizer": {"lr": lr}, "seed": seed}
    described |= {} if teacher is None else {"teacher": {"path": teacher}}
    path = folder / f"{epochs}-{teacher}-{lr}" / f"seed-{seed}"
    with RunFolder.create(path, described, {"commit": "f00"}) as run:
        if top1 is not None:
            run.summary({"val_top1": top1, "val_loss": 1 - top1 / 100})
    return path


def test_runs_that_differ_in_their_seed_are_one_row_in_order_of_epochs(tmp_path: Path) -> None:
    runs = [made(tmp_path, epochs, seed, 60 + epochs / 100 + seed) for epochs in (1000, 300) for seed in (0, 1, 2)]
    assert as_markdown(rows([*runs, made(tmp_path, 50, 7, 60.5)], (EPOCHS,))) == (
        "| recipe.duration.count | seeds | summary.val_top1 |\n"
        "| --- | --- | --- |\n"
        "| 50 | 7 | 60.5 (n = 1) |\n"
        "| 300 | 0, 1, 2 | 64.0 ± 1.0 (n = 3) |\n"
        "| 1000 | 0, 1, 2 | 71.0 ± 1.0 (n = 3) |\n"
    )


def test_teachers_are_compared_with_those_who_had_none(tmp_path: Path) -> None:
    runs = [made(tmp_path, 10, seed, 70 + seed + bool(teacher), teacher) for teacher in ("vit", None, "cnn") for seed in (0, 1)]
    found = rows(runs, ("recipe.teacher.path",), (TOP1, "summary.val_loss"))
    assert [row["recipe.teacher.path"] for row in found] == [None, "cnn", "vit"]
    assert [row[TOP1].mean for row in found] == [70.5, 71.5, 71.5]
    assert all(row["summary.val_loss"].n == 2 for row in found)


def test_no_mean_is_taken_over_two_trainings(tmp_path: Path) -> None:
    runs = [made(tmp_path, 10, 0, 70.0), made(tmp_path, 10, 1, 71.0, lr=0.2)]
    with pytest.raises(DataError, match=r"seed-1: would share a row with .*seed-0.*: recipe\.optimizer\.lr is 0\.1 and 0\.2"):
        rows(runs, (EPOCHS,))
    assert len(rows(runs, (EPOCHS, "recipe.optimizer.lr"))) == 2
    (both,) = rows(runs, (EPOCHS,), apart=("recipe.seed", "recipe.optimizer.lr"))
    assert both[TOP1].n == 2


def test_one_training_counts_once(tmp_path: Path) -> None:
    one = made(tmp_path / "a", 10, 0, 70.0)
    with pytest.raises(DataError, match="given twice"):
        rows([one, one], (EPOCHS,))
    with pytest.raises(DataError, match=r"is the same training as .*, seed included"):
        rows([one, made(tmp_path / "b", 10, 0, 70.1)], (EPOCHS,))


def test_unknown_columns_and_unfinished_runs_are_refused(tmp_path: Path) -> None:
    runs = [made(tmp_path, 10, 0, 70.0), made(tmp_path, 10, 1, None)]
    with pytest.raises(DataError, match=r"no run has 'recipe\.duration\.cout'"):
        rows(runs, ("recipe.duration.cout",))
    with pytest.raises(DataError, match=r"10-None-0\.1/seed-1: there is no 'summary\.val_top1' to average"):
        rows(runs, (EPOCHS,))


def test_it_runs_without_torch() -> None:
    code = "import sys, frugalvit.report.compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
