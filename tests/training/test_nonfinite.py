from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.training.runs import StopAt, Stopped, column, states, tiny, trace
from torch import Tensor, nn

from frugalvit.data.batch import Batch
from frugalvit.run import train
from frugalvit.training.loop import NonFinite


class Failing(nn.Module):
    """Cross-entropy that is no number at some of its calls, which it counts in a buffer."""

    calls: Tensor

    def __init__(self, *bad: int):
        super().__init__()
        self.bad = bad
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        self.calls += 1
        scale = math.nan if int(self.calls) in self.bad else 1.0
        return {"own": scale * nn.functional.cross_entropy(outputs["class"], batch.label_B)}


def test_steps_that_are_no_number_are_skipped_counted_and_shown(tmp_path: Path) -> None:
    done = train(tiny("log_every=1"), out=tmp_path / "run", objective=Failing(5, 6, 13), device="cpu")
    lines = {row["step"]: row for row in map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())}
    assert [step for step, row in lines.items() if row["loss"] == "nan"] == [5, 6, 13]
    assert [lines[step]["nonfinite"] for step in (4, 5, 6, 12, 13, 24)] == [0, 1, 2, 2, 3, 3]
    assert done.summary["nonfinite"] == 3
    assert all(torch.isfinite(value).all() for value in safetensors.torch.load_file(states(tmp_path / "run")[-1]).values())


def test_a_mean_over_several_steps_does_not_hide_the_one_that_is_no_number(tmp_path: Path) -> None:
    train(
        tiny("log_every=24", "save=Steps(24)", "evaluate=Steps(24)"), out=tmp_path / "run", objective=Failing(5), device="cpu"
    )
    assert column(tmp_path / "run", "nonfinite") == [1]
    assert math.isnan(column(tmp_path / "run", "loss")[0])


def test_a_skipped_step_changes_neither_weights_nor_moments(tmp_path: Path) -> None:
    train(tiny("log_every=1", "save=Steps(1)", "keep=99"), out=tmp_path / "run", objective=Failing(6), device="cpu")
    before, after = (safetensors.torch.load_file(tmp_path / "run" / "state" / f"step-{s:09d}.safetensors") for s in (5, 6))
    kept = [name for name in before if name.startswith(("model.", "optimizer."))]
    assert len(kept) > 50
    assert all(torch.equal(before[name], after[name]) for name in kept)


@pytest.mark.parametrize("path", ["plain", "sent", "kept"])
def test_a_skipped_step_leaves_the_statistics_of_batch_norms_as_they_were(tmp_path: Path, path: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10))
    made = tiny("log_every=1", "save=Steps(1)", "keep=99", f"path={path}")
    train(made, out=tmp_path / "run", model=module, objective=Failing(6), device="cpu")
    before, after, later = (
        safetensors.torch.load_file(tmp_path / "run" / "state" / f"step-{s:09d}.safetensors") for s in (5, 6, 7)
    )
    kept = [name for name in before if name.startswith(("model.", "average."))]
    counted = [name for name in kept if name.startswith("model.") and ".running_" in name]
    assert len(counted) == 4
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert not any(torch.equal(after[name], later[name]) for name in counted)


def test_too_many_in_a_row_end_the_training_with_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(
        NonFinite, match=r"train: 4 steps in a row .* Lower the learning rate.* The state is in .*debug"
    ) as caught:
        train(tiny("log_every=1", "nonfinite=4"), out=tmp_path / "run", objective=Failing(2, 3, 4, *range(9, 99)), device="cpu")
    assert "until step 12" in str(caught.value)
    (bundle,) = (tmp_path / "run" / "debug").glob("step-*12/state.safetensors")
    assert "model.tokenizer.weight" in safetensors.torch.load_file(bundle)
    assert column(tmp_path / "run", "nonfinite")[-1] == 7
    assert not (tmp_path / "run" / "summary.json").exists()


def test_what_went_wrong_before_a_stop_still_counts_after_it(tmp_path: Path) -> None:
    bad = (2, 7, 8, 9, 10)
    short = tiny("log_every=2", "nonfinite=5", "save=Steps(2)")
    train(short, out=tmp_path / "whole", objective=Failing(*bad), device="cpu")
    with pytest.raises(Stopped):
        train(short, out=tmp_path / "run", objective=Failing(*bad), device="cpu", display=StopAt(10))
    train(short, out=tmp_path / "run", objective=Failing(*bad), device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")
    with pytest.raises(Stopped):
        train(short, out=tmp_path / "ends", objective=Failing(*range(7, 99)), device="cpu", display=StopAt(10))
    with pytest.raises(NonFinite, match="until step 12"):
        train(short, out=tmp_path / "ends", objective=Failing(*range(7, 99)), device="cpu", resume=True)


@pytest.mark.parametrize(
    "bad",
    [
        range(21, 25),  # to the end
        range(19, 23),  # and good again before the last record
    ],
    ids=str,
)
def test_a_run_that_ended_so_at_its_last_step_does_not_end_well_when_it_is_resumed(tmp_path: Path, bad: range) -> None:
    made = tiny("log_every=24", "nonfinite=4", "save=Steps(24)", "evaluate=Steps(24)")
    for resume in (False, True, True):
        with pytest.raises(NonFinite, match=r"4 steps in a row .*until step 24.* The state is in .*debug"):
            train(made, out=tmp_path / "run", objective=Failing(*bad), device="cpu", resume=resume)
        assert not (tmp_path / "run" / "summary.json").exists()


def test_a_learning_rate_that_explodes_ends_in_the_same_way(tmp_path: Path) -> None:
    wild = tiny("optimizer.lr=1e30", "schedule.warmup=Steps(0)", "nonfinite=3", "log_every=1", "evaluate=Steps(99)")
    with pytest.raises(NonFinite, match="3 steps in a row"):
        train(wild, out=tmp_path / "run", device="cpu")
    assert column(tmp_path / "run", "nonfinite")[-1] == 3
