from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tests.training.runs import Notes, StopAt, Stopped, column, states, tiny, trace

import frugalvit
from frugalvit.errors import DataError, WeightsError
from frugalvit.report.record import RunFolder
from frugalvit.run import train
from frugalvit.training.state import State


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its second checkpoint."""
    out = tmp_path_factory.mktemp("half") / "run"
    with pytest.raises(Stopped):
        train(tiny(), out=out, device="cpu", display=StopAt(12))
    return out


def copied(folder: Path, out: Path) -> Path:
    for file in folder.rglob("*"):
        if file.is_file():
            (out / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
            (out / file.relative_to(folder)).write_bytes(file.read_bytes())
    return out


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_crash_at_any_byte_of_a_checkpoint_leaves_the_one_before(tmp_path: Path, half: Path, share: float) -> None:
    run = copied(half, tmp_path / "run")
    newest = states(run)[-1].read_bytes()
    part = run / "state" / ".step-000000012.safetensors.abc.part"
    part.write_bytes(newest[: int(share * len(newest))])
    train(tiny(), out=run, resume=True, device="cpu")
    train(tiny(), out=tmp_path / "whole", device="cpu")
    assert not part.exists()
    assert trace(run) == trace(tmp_path / "whole")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_a_half_written_checkpoint_is_named(tmp_path: Path, half: Path, share: float) -> None:
    run = copied(half, tmp_path / "run")
    newest = states(run)[-1]
    newest.write_bytes(newest.read_bytes()[: int(share * newest.stat().st_size)])
    with pytest.raises(WeightsError, match="truncated, or of another kind") as caught:
        train(tiny(), out=run, resume=True, device="cpu")
    assert str(newest) in str(caught.value)
    newest.unlink()
    train(tiny(), out=run, resume=True, device="cpu")


def test_of_equally_good_validations_the_first_is_the_best(tmp_path: Path) -> None:
    still = tiny("optimizer.lr=1e-60", "schedule.warmup=Steps(0)")  # zero in fp32
    done = train(still, out=tmp_path / "run", device="cpu")
    assert len(set(column(tmp_path / "run", "val_top1"))) == 1
    assert (done.summary["best_step"], done.summary["step"]) == (8, 24)


class ChanceAt(Notes):
    """Keeps the steps that were shown before it was said that nothing is learned."""

    step = 0

    def show(self, values: Mapping[str, Any]) -> None:
        self.step = values["step"]

    def note(self, text: str) -> None:
        if "validation is at chance" in text:
            self.said.append(str(self.step))


def test_that_nothing_is_learned_is_told_once_and_not_while_the_learning_rate_rises(tmp_path: Path) -> None:
    still = ("optimizer.lr=1e-60", "schedule.warmup=Steps(0)", "evaluate=Epochs(1)", "seed=1")
    when = {}
    for epochs in (1, 40):
        notes = ChanceAt()
        done = train(tiny(*still, f"epochs={epochs}"), out=tmp_path / f"run-{epochs}", device="cpu", display=notes)
        assert done.summary["val_top1"] <= 12
        when[epochs] = notes.said
    assert when == {1: ["6"], 40: ["15"]}  # shown before: an epoch has 8 steps, and two are a twentieth of 40
    notes, slow = ChanceAt(), [word for word in still if "warmup" not in word]
    recipe = tiny(*slow, "schedule.start=0.0", "schedule.warmup=Epochs(5)", "epochs=40")
    train(recipe, out=tmp_path / "run-warm", device="cpu", display=notes)
    assert notes.said == ["39"]


def test_a_file_of_weights_is_no_checkpoint(tmp_path: Path, half: Path) -> None:
    run = copied(half, tmp_path / "run")
    safetensors.torch.save_file({"a": torch.zeros(2)}, run / "state" / "step-000000009.safetensors")
    with pytest.raises(WeightsError, match=r"step-000000009\.safetensors: this is no saved training state"):
        train(tiny(), out=run, resume=True, device="cpu")


@pytest.mark.parametrize(("keep", "left"), [(1, [24]), (3, [16, 20, 24]), (99, [4, 8, 12, 16, 20, 24])])
def test_the_last_checkpoints_are_kept(tmp_path: Path, keep: int, left: list[int]) -> None:
    train(tiny(f"keep={keep}"), out=tmp_path / "run", device="cpu")
    assert [int(one.stem[5:]) for one in states(tmp_path / "run")] == left


STOPPING = ("epochs=40", "evaluate=Steps(4)", "save=Steps(4)", "stop=EarlyStop", "stop.patience=Steps(12)", "keep=99")
STOPPING += ("optimizer.lr=0.03", "schedule=Constant", "average=none")


def test_early_stopping_returns_the_best_weights_and_ends_once(tmp_path: Path) -> None:
    done = train(tiny(*STOPPING), out=tmp_path / "run", device="cpu")
    last, best = done.summary["step"], done.summary["best_step"]
    assert last < 320
    assert last - best == 12
    assert done.summary["val_top1"] == done.summary["best_val_top1"] == max(column(tmp_path / "run", "val_top1"))
    state = safetensors.torch.load_file(tmp_path / "run" / "state" / f"step-{best:09d}.safetensors")
    weights = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(state[f"model.{name}"], value) for name, value in weights.items())
    before, notes = trace(tmp_path / "run"), Notes()
    train(tiny(*STOPPING), out=tmp_path / "run", resume=True, device="cpu", display=notes)
    assert trace(tmp_path / "run") == before
    assert notes.said[-1] == f"stopped at step {last}: no better since step {best} (stop.patience)"
    recipe_before = (tmp_path / "run" / "recipe.json").read_bytes()
    with pytest.raises(DataError, match=rf"run: stopped early at step {last} of 320, .* with a longer stop\.patience"):
        train(tiny(*STOPPING, "epochs=50"), out=tmp_path / "run", resume=True, extend=True, device="cpu")
    assert (tmp_path / "run" / "recipe.json").read_bytes() == recipe_before
    with pytest.raises(Stopped):
        train(tiny(*STOPPING), out=tmp_path / "killed", device="cpu", display=StopAt(best + 4))
    train(tiny(*STOPPING), out=tmp_path / "killed", resume=True, device="cpu")
    assert trace(tmp_path / "killed") == before


def test_the_averaged_weights_are_the_result(tmp_path: Path) -> None:
    done = train(tiny(), out=tmp_path / "run", device="cpu")
    state = safetensors.torch.load_file(states(tmp_path / "run")[-1])
    loaded = frugalvit.load(tmp_path / "run").module.state_dict()
    assert done.classifier is not None
    for name, value in done.classifier.module.state_dict().items():
        assert torch.equal(value, state[f"average.{name}"])
        assert torch.equal(value, loaded[name])
    assert any(not torch.equal(state[f"average.{name}"], state[f"model.{name}"]) for name in loaded)
    assert RunFolder(tmp_path / "run").metrics()[-1]["val_loss"] == done.summary["val_loss"]


def test_moments_come_back_in_the_layout_of_their_parameter(tmp_path: Path) -> None:
    def fresh() -> State:
        torch.manual_seed(0)
        module = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        groups = [{"params": list(module.parameters()), "names": ["weight", "bias"]}]
        return State(module, torch.nn.Identity(), torch.optim.SGD(groups, 0.1, momentum=0.9), None, None)  # type: ignore[arg-type]

    def step(state: State) -> None:
        state.optimizer.zero_grad()
        state.module(torch.arange(75.0).reshape(1, 3, 5, 5)).sum().backward()
        state.optimizer.step()

    state, again = fresh(), fresh()
    step(state)
    state.save(tmp_path / "state.safetensors")
    again.load(tmp_path / "state.safetensors")
    for one in (state, again):
        step(one)
    weight = again.module.weight
    assert again.optimizer.state[weight]["momentum_buffer"].stride() == weight.stride() != weight.contiguous().stride()
    assert torch.equal(weight, state.module.weight)
