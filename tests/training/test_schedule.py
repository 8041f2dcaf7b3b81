from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction as Ratio

import pytest

from frugalvit.errors import SpecError
from frugalvit.recipes.find import recipe
from frugalvit.training.duration import Epochs, Fraction, Steps, total_steps
from frugalvit.training.loop import cadence_of
from frugalvit.training.schedule import Clock, Constant, Cosine, EpochCosine

CLOCK = Clock(total=1000, per_epoch=10)


def test_durations_are_resolved_to_steps() -> None:
    assert [one.steps(10, 1000) for one in (Steps(7), Epochs(2.5), Fraction(0.25))] == [7, 25, 250]
    assert total_steps(Epochs(3), 10) == 30
    with pytest.raises(SpecError, match=r"recipe\.duration: a fraction of what"):
        total_steps(Fraction(0.5), 10)
    with pytest.raises(SpecError, match=r"no step at all"):
        total_steps(Epochs(0.01), 10)
    with pytest.raises(SpecError, match=r"0\.1 epochs: no step at all, with 2\.5 steps an epoch"):
        total_steps(Epochs(0.1), Ratio(5, 2))
    assert [Epochs(count).steps(Ratio(1, 4), 0) for count in (0, 0.5, 1, 4, 6.1)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("none", [Steps(0), Epochs(0), Fraction(0)], ids=str)
def test_what_is_due_after_no_time_is_due_at_the_end_alone(none: Steps | Epochs | Fraction) -> None:
    made = replace(recipe("vit.digits", "log_every=400"), evaluate=none, save=none)
    cadence = cadence_of(made, CLOCK)
    for due in (cadence.evaluates, cadence.saves):
        assert [step for step in range(1, 1001) if due(step)] == [1000]
    assert [step for step in range(1, 1001) if cadence.records(step)] == [400, 800, 1000]


def test_what_is_due_after_less_than_a_step_is_due_after_each() -> None:
    made = replace(recipe("vit.digits"), evaluate=Epochs(0.01), save=Fraction(0.1))
    cadence = cadence_of(made, CLOCK)
    assert all(cadence.evaluates(step) for step in range(1, 1001))
    assert [step for step in range(1, 1001) if cadence.saves(step)] == list(range(100, 1001, 100))


def test_early_stopping_needs_patience() -> None:
    with pytest.raises(SpecError, match=r"patience: no patience at all would stop at the first validation\. Use Epochs\(10\)"):
        recipe("vit.digits", "stop=EarlyStop(Epochs(0))")


def test_cosine_warms_up_in_a_line_and_ends_at_its_end() -> None:
    schedule = Cosine(Steps(100), start=1e-6, end=1e-5)
    assert schedule.lr(0, 1e-3, CLOCK) == 1e-6
    assert schedule.lr(50, 1e-3, CLOCK) == pytest.approx((1e-6 + 1e-3) / 2)
    assert schedule.lr(100, 1e-3, CLOCK) == pytest.approx(1e-3)
    assert schedule.lr(550, 1e-3, CLOCK) == pytest.approx((1e-3 + 1e-5) / 2)
    assert schedule.lr(1000, 1e-3, CLOCK) == pytest.approx(1e-5)


def test_deits_schedule_is_constant_inside_an_epoch_and_one_epoch_late() -> None:
    schedule = EpochCosine(Epochs(5), start=1e-6, end=1e-5)
    by_epoch = [schedule.lr(epoch * 10, 1e-3, CLOCK) for epoch in range(100)]
    assert all(schedule.lr(epoch * 10 + 9, 1e-3, CLOCK) == by_epoch[epoch] for epoch in range(100))
    assert by_epoch[0] == by_epoch[1] == 1e-6
    assert by_epoch[3] == pytest.approx(1e-6 + 2 * (1e-3 - 1e-6) / 5)
    for epoch in (6, 50, 99):  # the cosine is not shifted by the warm-up
        expected = 1e-5 + 0.5 * (1e-3 - 1e-5) * (1 + math.cos(math.pi * (epoch - 1) / 100))
        assert by_epoch[epoch] == pytest.approx(expected)


def test_deits_schedule_keeps_its_epochs_where_they_are_no_whole_steps() -> None:
    """Seven batches an epoch and three a step: step s begins in epoch 3 s // 7."""
    clock, schedule = Clock(total=70, per_epoch=Ratio(7, 3)), EpochCosine(Epochs(5), start=0.0, end=0.0)
    whole = Clock(total=30 * 7, per_epoch=7)
    for step in range(70):
        assert schedule.lr(step, 1.0, clock) == pytest.approx(schedule.lr(3 * step // 7 * 7, 1.0, whole)), step


def test_constant_stays_at_the_peak() -> None:
    assert [Constant(Steps(2), 0.0).lr(step, 0.5, CLOCK) for step in (0, 1, 2, 999)] == [0.0, 0.25, 0.5, 0.5]


def test_cosine_is_the_schedule_of_lee_et_al_in_passes() -> None:
    """Their 10 of 100 epochs of warm-up, each of three passes, are 30 of 300: linear 1e-6 to the peak, cosine to 1e-6."""
    clock, schedule, peak = Clock(total=300 * 390, per_epoch=390), Cosine(Epochs(30), start=1e-6, end=1e-6), 3e-3
    warm = 30 * 390
    for step in (0, 1, 5000, warm - 1):
        assert schedule.lr(step, peak, clock) == pytest.approx(1e-6 + (peak - 1e-6) * step / warm)
    for step in (warm, 60_000, clock.total):
        share = (step - warm) / (clock.total - warm)
        assert schedule.lr(step, peak, clock) == pytest.approx(1e-6 + 0.5 * (peak - 1e-6) * (1 + math.cos(math.pi * share)))
    assert schedule.lr(clock.total, peak, clock) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("save=2", r"save: '2' does not fit here.* Write Steps\(2\) or Epochs\(2\)\."),
        ("optimizer=0.1", r"optimizer: '0.1' does not fit here.* Write AdamW\(0.1\) or Sgd\(0.1\)\."),
        ("seed=-1", r"seed: -1\. Use 0 and more\."),
    ],
)
def test_what_a_recipe_cannot_be_says_how_to_write_it(word: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        recipe("vit.digits", word)
