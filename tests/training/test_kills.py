"""A training killed with SIGKILL and resumed ends with the bits of one that never was."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.training.runs import states, trace

RECIPE = (
    "vit.digits",
    "dim=16",
    "depth=2",
    "batch=32",
    "lr=0.004",
    "average=Ema(0.9)",
    "save=Steps(7)",
    "evaluate=Steps(28)",
    "log_every=5",
)
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def driven(folder: Path, duration: int, plans: list[tuple[int, int]], writes: list[int], seed: int) -> list[dict]:
    recipe = [*RECIPE, f"duration=Steps({duration})"]
    task = {"recipe": recipe, "folder": str(folder), "plans": plans, "writes": writes, "seed": seed, "last": duration}
    command = [sys.executable, str(Path(__file__).with_name("driver.py")), json.dumps(task)]
    told, complained = folder / "told.txt", folder / "complained.txt"  # no pipes, which a process left behind would hold open
    with told.open("w") as out, complained.open("w") as err:
        done = subprocess.run(command, stdout=out, stderr=err, timeout=540, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, complained.read_text()
    return [json.loads(line) for line in told.read_text().splitlines()]


def same(one: Path, other: Path) -> None:
    left, right = trace(one), trace(other)
    assert left.keys() == right.keys()
    for key in left:
        assert left[key] == right[key], key


def test_killed_at_twenty_random_moments_it_ends_with_the_same_bits_whatever_the_workers(tmp_path: Path) -> None:
    plans = [(0, 20), (1, 4), (3, 4)]
    found = driven(tmp_path, 210, plans, [], seed=1)
    for (workers, kills), row in zip(plans, found, strict=True):
        assert row["workers"] == workers
        assert len(row["steps"]) == kills
        same(tmp_path / "whole", tmp_path / f"workers{workers}")
    assert len(set(found[0]["steps"])) >= 5, "the kills should be spread over the training"
    state = safetensors.torch.load_file(states(tmp_path / "workers0")[-1])
    weights = safetensors.torch.load_file(tmp_path / "workers0" / "model.safetensors")
    assert all(torch.equal(state[f"average.{name}"], value) for name, value in weights.items())
    assert not all(torch.equal(state[f"model.{name}"], value) for name, value in weights.items())


def test_killed_at_every_kind_of_write_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    """In turn before each fsync and each move into place: recipe, log, checkpoints, weights and summary."""
    found = driven(tmp_path, 28, [], [*range(1, 13), *range(1, 9)], seed=0)
    assert sum(row["killed"] for row in found) >= 15
    assert [found[index]["step"] for index in (0, -1)] == [0, 28]
    same(tmp_path / "whole", tmp_path / "writes")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_fresh_processes_killed_twenty_times_end_with_the_same_bits(tmp_path: Path, workers: int) -> None:
    command = [sys.executable, "-m", "frugalvit", "train", *RECIPE, "duration=Steps(840)", "--resume", "--device", "cpu"]
    subprocess.run([*command, "--out", str(tmp_path / "whole")], check=True, env=ENVIRONMENT, capture_output=True)
    draw, kills, place = random.Random(workers), 0, tmp_path / "killed"
    command += ["--workers", str(workers), "--out", str(place)]
    for _ in range(60):
        before = len(states(place))
        process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while process.poll() is None and not before and not states(place) and time.monotonic() - began < 60:
            time.sleep(0.01)  # the first one gets as far as a checkpoint
        try:
            assert process.wait(draw.uniform(1.0, 8.0)) == 0
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
        if kills == 20:
            break
    assert kills == 20
    subprocess.run(command, check=True, env=ENVIRONMENT, capture_output=True)
    same(tmp_path / "whole", place)
