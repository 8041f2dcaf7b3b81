"""Several seeds at the same time, here in threads on a CPU: saved, stopped and resumed as each would be alone."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.runs import Notes, PressesAt, PressesOnce, states, tiny, trace
from torch import Tensor, nn

from frugalvit import seeds as several
from frugalvit.beginning import opened
from frugalvit.data.batch import Batch
from frugalvit.data.randomness import Stream, key
from frugalvit.data.split import Picked
from frugalvit.errors import DataError, SpecError
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.find import recipe
from frugalvit.report.record import RunFolder
from frugalvit.run import train
from frugalvit.seeds import train_seeds
from frugalvit.stopping import HEARD
from frugalvit.training.loop import NonFinite
from frugalvit.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("heard")

SEEDS = (0, 1, 2)
LAST = 120
LONG = (f"duration=Steps({LAST})", f"save=Steps({LAST})", "keep=1", "evaluate=Steps(60)", "deterministic=true")


@pytest.fixture(autouse=True)
def at_once_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(several, "AT_ONCE", "cpu")
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))
    yield
    torch.use_deterministic_algorithms(False)


@dataclass(frozen=True)
class FailsIn:
    """Cross-entropy that with one seed is no number, or raises, from a call on."""

    seed: int
    call: int
    raises: bool

    def build(self, counts_C: Tensor) -> Failing:
        mine = torch.initial_seed() == key(self.seed, Stream.INIT, 1) >> 1
        return Failing(self.call if mine else 10**9, self.raises)


class Failing(nn.Module):
    def __init__(self, call: int, raises: bool):
        super().__init__()
        self.call, self.raises, self.calls = call, raises, 0

    def forward(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        self.calls += 1
        if self.raises and self.calls >= self.call:
            raise torch.OutOfMemoryError("out of memory")
        loss = nn.functional.cross_entropy(logits_BC, batch.label_B)
        return loss * math.nan if self.calls >= self.call else loss


def failing(made: Recipe, seed: int, call: int = 5, raises: bool = False) -> Recipe:
    return replace(made, objective=Objective((Supervised(loss=FailsIn(seed, call, raises)),)), nonfinite=2)  # type: ignore[arg-type]


class PressesAfterAFailure(PressesOnce):
    """And one of them has failed."""

    def ready(self) -> bool:
        return super().ready() and any("failed" in one for one in self.said)


def steps_saved(out: Path, seeds: tuple[int, ...] = SEEDS) -> list[list[int]]:
    return [[int(one.stem.removeprefix("step-")) for one in states(out / f"seed-{seed}")] for seed in seeds]


def same_as_alone(made: Recipe, out: Path, seeds: tuple[int, ...] = SEEDS) -> None:
    for seed in seeds:
        alone = out.with_name(f"alone-{seed}")
        train(replace(made, seed=seed), out=alone, device="cpu")
        assert trace(out / f"seed-{seed}") == trace(alone)


@pytest.mark.parametrize("path", ["plain", "sent", "kept"])
def test_interrupted_all_are_saved_where_they_were_and_end_with_the_bits_of_each_alone(
    tmp_path: Path, path: str, capfd: pytest.CaptureFixture[str]
) -> None:
    made, out = tiny(*LONG, f"path={path}"), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train_seeds(made, SEEDS, out=out, device="cpu", display=PressesOnce(out, SEEDS))
    assert capfd.readouterr().err.count(HEARD.decode()) == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    saved = steps_saved(out)
    assert all(len(one) == 1 and 0 < one[0] < LAST for one in saved), saved
    assert [RunFolder(out / f"seed-{seed}").metrics()[-1]["step"] for seed in SEEDS] == [one[-1] for one in saved]
    train_seeds(made, SEEDS, out=out, device="cpu", resume=True)
    assert json.loads((out / "seeds.json").read_text())["seeds"] == [*SEEDS]
    same_as_alone(made, out)


def test_all_are_saved_when_it_is_due(tmp_path: Path) -> None:
    train_seeds(tiny("save=Steps(8)", "keep=99"), SEEDS, out=tmp_path / "run", device="cpu")
    assert steps_saved(tmp_path / "run") == [[8, 16, 24]] * 3


@pytest.mark.parametrize("first", [0, 1])  # the seed that is watched, or another
def test_where_one_is_no_number_the_others_train_to_their_end_and_the_error_names_it(tmp_path: Path, first: int) -> None:
    made, out, notes = failing(tiny(), seed=first), tmp_path / "run", Notes()
    others = tuple(seed for seed in SEEDS if seed != first)
    named = rf"^seed {first}: train: 2 steps in a row .* The state is in .*seed-{first}.debug.* Without this seed: --seeds"
    with pytest.raises(NonFinite, match=rf"{named} {others[0]},{others[1]} --resume\.$"):
        train_seeds(made, SEEDS, out=out, device="cpu", display=notes)
    told = [one for one in notes.said if "failed" in one]
    assert len(told) == 1 and told[0].startswith(f"seed {first} failed, and the others go on: NonFinite: train: 2 steps")
    assert steps_saved(out, others) == [[20, 24], [20, 24]]
    runs = train_seeds(made, others, out=out, device="cpu", resume=True)
    assert [run.summary["step"] for run in runs] == [24, 24]
    same_as_alone(made, out, others)


def test_where_one_has_no_memory_left_the_others_train_to_their_end_and_the_error_names_it(tmp_path: Path) -> None:
    with pytest.raises(torch.OutOfMemoryError, match=r"^out of memory\nThis was seed 1\. ") as caught:
        train_seeds(failing(tiny(), seed=1, raises=True), SEEDS, out=tmp_path / "run", device="cpu")
    assert caught.value.__notes__ == ["This was seed 1. Without this seed: --seeds 0,2 --resume."]
    assert steps_saved(tmp_path / "run") == [[20, 24], [4], [20, 24]]


def test_where_one_fails_and_the_others_are_interrupted_they_are_saved_and_the_failure_is_told(tmp_path: Path) -> None:
    made, out = failing(tiny(*LONG), seed=1), tmp_path / "run"
    with pytest.raises(NonFinite, match=r"^seed 1: train"):
        train_seeds(made, SEEDS, out=out, device="cpu", display=PressesAfterAFailure(out, SEEDS))
    assert all(len(one) == 1 and 0 < one[0] < LAST for one in steps_saved(out, (0, 2)))
    train_seeds(made, (0, 2), out=out, device="cpu", resume=True)
    same_as_alone(made, out, (0, 2))


def test_an_error_of_the_recipe_is_of_all_seeds_and_names_none(tmp_path: Path) -> None:
    made, notes = tiny("stop=EarlyStop(Epochs(1))"), Notes()
    only = {"train": opened(made, None)["train"]}
    with pytest.raises(SpecError, match=r"^recipe\.stop: early stopping needs a validation split"):
        train_seeds(made, SEEDS, out=tmp_path / "run", data=only, device="cpu", display=notes)
    assert not notes.said


def test_one_after_the_other_an_error_names_its_seed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "AT_ONCE", "cuda")
    with pytest.raises(NonFinite, match=r"^seed 1: train: .* --seeds 0,2 --resume\.$"):
        train_seeds(failing(tiny(), seed=1), SEEDS, out=tmp_path / "run", device="cpu")
    assert steps_saved(tmp_path / "run") == [[20, 24], [4], []]


def test_one_after_the_other_an_interrupt_at_the_end_of_one_begins_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several, "AT_ONCE", "cuda")
    with pytest.raises(KeyboardInterrupt):
        train_seeds(tiny(), SEEDS, out=tmp_path / "run", device="cpu", display=PressesAt(24))
    assert steps_saved(tmp_path / "run") == [[20, 24], [], []]
    assert (tmp_path / "run" / "seed-0" / "summary.json").exists()


COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import frugalvit.seeds, frugalvit.training.loop; "
    "frugalvit.seeds.AT_ONCE = 'cpu'; frugalvit.training.loop.PATIENCE = 1e9; from frugalvit.cli import main; main()"
)


@contextmanager
def command(out: Path, file: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`train` with seeds at once, when each has written that file."""
    given = ["train", "vit.digits", "dim=16", "depth=1", "epochs=4000", "save=Epochs(4000)", *words]
    line = [sys.executable, "-c", COMMAND, *given, "--seeds", "0,1,2", "--device", "cpu", "--out", str(out)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        files, began = [out / f"seed-{seed}" / file for seed in SEEDS], time.monotonic()
        while not all(one.exists() for one in files) and time.monotonic() - began < 90:
            assert process.poll() is None
            time.sleep(0.05)
        yield process


def said(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def test_a_command_with_seeds_at_once_hears_ctrl_c_and_says_how_to_go_on(tmp_path: Path) -> None:
    with command(tmp_path / "run", "metrics.jsonl", "log_every=5") as process:
        os.killpg(process.pid, signal.SIGINT)
        text = said(process)
        assert process.wait(60) == 130
    assert text.count(HEARD.decode()) == 1 and "Traceback" not in text
    assert "the same command with --resume goes on from the newest checkpoint" in text
    assert [len(one) for one in steps_saved(tmp_path / "run")] == [1, 1, 1]


def test_a_command_with_seeds_at_once_that_hears_it_twice_ends_at_once_and_in_order(tmp_path: Path) -> None:
    with command(tmp_path / "run", "recipe.json", "evaluate=Epochs(4000)", "log_every=1000000") as process:
        time.sleep(1)  # most likely it is training then
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGINT)
        text = said(process)
        assert process.wait(60) == 130  # and not by an abort
    assert "Traceback" not in text and "terminate" not in text
    assert steps_saved(tmp_path / "run") == [[], [], []]


def test_seeds_of_several_commands_have_one_mean_and_other_trainings_are_kept_out(tmp_path: Path) -> None:
    made = recipe("vit.digits", "dim=8", "depth=1", "batch=64", "epochs=1", "schedule.warmup=Steps(1)")
    out = tmp_path / "seeds"
    first = train_seeds(made, [0], out=out, device="cpu")
    with pytest.raises(DataError, match=r"holds runs of seed 0 already\. Use --resume to continue them or to add others"):
        train_seeds(made, [2], out=out, device="cpu")
    with pytest.raises(DataError, match=r"holds seed 0 of another training: batch is 64 there, and 32 here"):
        train_seeds(replace(made, batch=32), [2], out=out, device="cpu", resume=True)
    few = {split: Picked(source, np.arange(100)) for split, source in opened(made, None).items()}
    with pytest.raises(DataError, match=r"holds seed 0 of another training: data_fingerprint\.train is"):
        train_seeds(made, [2], out=out, device="cpu", resume=True, data=few)
    with pytest.raises(DataError, match=r"holds seed 0 of another training: init is '' there, and '"):
        train_seeds(made, [2], out=out, device="cpu", resume=True, init=str(out / "seed-0"))
    assert not (out / "seed-2").exists()
    (added,) = train_seeds(made, [2], out=out, device="cpu", resume=True)
    told = json.loads((out / "seeds.json").read_text())
    assert told["seeds"] == [0, 2] and told["val_top1"]["n"] == 2
    assert told["val_top1"]["values"] == [first[0].summary["val_top1"], added.summary["val_top1"]]
    train_seeds(made, [2], out=out, device="cpu", resume=True)
    assert json.loads((out / "seeds.json").read_text()) == told
