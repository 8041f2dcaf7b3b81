"""Timings of things whose time is known, and what is said where memory runs out."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from frugalvit.errors import SpecError
from frugalvit.measure.latency import (
    MOST,
    ROUNDS,
    TRAINING,
    Speed,
    calls_in_a_round,
    device_name,
    inference_speeds,
    matrix_peak,
    memory_for,
    seconds,
    share_of_peak,
    speeds,
)
from frugalvit.nn.model import Model

CPU = torch.device("cpu")


def test_a_call_takes_the_time_that_it_takes() -> None:
    assert 0.002 <= seconds(lambda: time.sleep(0.002), 3, CPU) < 1.0


def test_every_round_adds_to_what_was_found_and_the_first_call_stands_apart() -> None:
    slow_first = iter([0.3])
    found = list(speeds("sleep", lambda: time.sleep(next(slow_first, 0.001)), 7, CPU, calls=2))
    assert [len(one.rounds) for one in found] == list(range(1, ROUNDS + 1))
    last = found[-1]
    assert last.rounds[:-1] == found[-2].rounds
    assert last.first is not None and last.first >= 0.3 > max(last.rounds)
    assert (last.what, last.batch, last.calls, last.waiting) == ("sleep", 7, 2, ())


def test_the_result_is_the_median_and_its_spread() -> None:
    speed = Speed("step", 6, 1, None, (0.5, 0.1, 0.3, 0.2, 0.4))
    assert speed.seconds == pytest.approx(0.3)
    assert speed.images_per_second == pytest.approx(20)
    assert (speed.quantile(0.1), speed.quantile(0.9)) == (pytest.approx(0.14), pytest.approx(0.46))


@pytest.mark.parametrize(("once", "calls"), [(10.0, 1), (0.1, 5), (1e-6, MOST), (0.0, MOST)])
def test_a_round_has_as_many_calls_as_it_has_time_for(once: float, calls: int) -> None:
    assert calls_in_a_round(once) == calls


def test_a_model_predicts_in_rounds(toy: Model) -> None:
    module = toy.build(seed=0)
    *_, speed = inference_speeds(module, 3, CPU, torch.float32, calls=1)
    assert (speed.what, speed.batch, len(speed.rounds)) == ("inference", 3, ROUNDS)
    assert not module.training
    assert speed.images_per_second == pytest.approx(3 / speed.seconds)
    *_, half = inference_speeds(module, 1, CPU, torch.bfloat16, calls=1)
    assert half.batch == 1


def test_the_share_of_the_peak_counts_two_operations_a_product_and_three_passes_of_training() -> None:
    speed = Speed("training", 8, 1, None, (2.0,))  # 4 images/s
    assert share_of_peak(speed, 10**9, TRAINING, 96e9) == pytest.approx(4 * 1e9 * 3 * 2 / 96e9)


def test_a_device_has_a_peak_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules["frugalvit.measure.latency"].SIDE, "cpu", 256)
    monkeypatch.setattr("frugalvit.measure.latency.ROUND", 0.01)
    assert 1e8 < matrix_peak(CPU, torch.float32) < 1e14
    assert device_name(CPU)


PEAKS = """
import torch
from frugalvit.measure.latency import forget_peak, peak_memory
cpu = torch.device("cpu")
held = torch.ones(2**26)
before = peak_memory(cpu)
del held
forget_peak(cpu)
after = peak_memory(cpu)
torch.ones(2**26)
print(before, after, peak_memory(cpu))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's peak")
def test_the_peak_of_memory_is_counted_from_where_it_was_forgotten() -> None:
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)  # what others held counts
    before, after, again = map(int, done.stdout.split())
    assert after < before - 2**27 and again > after + 2**27  # 256 MiB were held, let go, and held again


@pytest.mark.parametrize(("batch", "cure"), [(10**9, "Try --batch 500000000"), (1, "Use a smaller model")])
def test_memory_that_runs_out_says_what_to_try(batch: int, cure: str) -> None:
    message = rf"--batch: a batch of {batch} does not fit into the memory of cpu. {cure}"
    with pytest.raises(SpecError, match=message), memory_for(batch, CPU):
        torch.empty(10**15)


def test_other_errors_are_not_mistaken_for_it() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), memory_for(2, CPU):
        torch.ones(2, 3) @ torch.ones(2, 3)
