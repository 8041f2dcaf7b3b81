"""What is measured is what trains: weights move, every picture counts, and waiting for data is seen."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.training.runs import tiny

from frugalvit.data.digits import Digits
from frugalvit.data.split import Picked
from frugalvit.measure.latency import ROUNDS
from frugalvit.nn.model import Model
from frugalvit.recipes.find import recipe
from frugalvit.training.devices import Place, place_for
from frugalvit.training.duration import Steps
from frugalvit.training.loop import Record
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import EarlyStop
from frugalvit.training.throughput import (
    NEVER,
    fed_speeds,
    long,
    measurable,
    model_speeds,
    model_step,
    noise_for,
    passes_of,
    still_speeds,
)
from frugalvit.training.waiting import Waiting
from frugalvit.zoo.deit import deit

CPU = place_for("cpu", "fp32")


def test_a_step_of_a_model_with_two_heads_and_random_depth_moves_all_its_weights() -> None:
    model = deit(dim=12, heads=3, depth=2, patch=4, image=(20, 28), classes=9, summary=("class", "distill"), drop_path=0.3)
    module = model.build(seed=0)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    step = model_step(module, 5, CPU)
    for _ in range(4):
        step()
    assert all(not torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(torch.isfinite(value).all() for value in module.state_dict().values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_trains_in_rounds(toy: Model, precision: str) -> None:
    *_, speed = model_speeds(toy, 2, Place(torch.device("cpu"), precision), calls=1)  # type: ignore[arg-type]
    assert (speed.what, speed.batch, len(speed.rounds)) == ("training", 2, ROUNDS)


class Slow(Picked):
    """Pictures that take their time."""

    def picture(self, index: int) -> Pillow.Image:
        time.sleep(0.005)
        return super().picture(index)


def prepared(*overrides: str) -> Training:
    source = Digits().open("train", None)
    return prepare(measurable(tiny(*overrides)), {"train": Slow(source, np.arange(len(source)))}, CPU)


def test_a_recipe_that_waits_for_its_data_says_so() -> None:
    training = prepared("batch=8")
    *_, still = still_speeds(training, calls=2)
    *_, fed = fed_speeds(training, 0, calls=2)
    assert (still.what, still.waiting, fed.what, fed.first) == ("synthetic", (), "with data", None)
    assert len(fed.rounds) == len(fed.waiting) == len(still.rounds) == ROUNDS
    assert all(0 <= share <= 1 for share in fed.waiting)
    assert fed.seconds > 8 * 0.005  # eight pictures
    assert fed.seconds * np.median(fed.waiting) > 8 * 0.005 * 0.9


def test_steps_are_taken_as_in_training_and_counted_from_the_beginning() -> None:
    training = prepared("batch=8")
    before = {name: value.clone() for name, value in training.state.module.state_dict().items()}
    list(still_speeds(training, calls=3))
    assert training.state.step == 1 + 2 + 3 * ROUNDS
    assert any(not torch.equal(value, before[name]) for name, value in training.state.module.state_dict().items())


def test_every_accumulated_picture_counts_and_the_number_of_steps_follows_the_time() -> None:
    training = prepared("batch=4", "accumulate=3")
    *_, still = still_speeds(training, calls=1)
    *_, fed = fed_speeds(training, 0)
    assert still.batch == fed.batch == 12
    assert 1 <= fed.calls <= 9  # half a second of steps that wait for 60 ms at least


def test_a_short_recipe_is_measured_for_as_long_as_one_looks() -> None:
    made = measurable(replace(tiny("duration=Steps(1)"), stop=EarlyStop()))
    assert made.stop is None
    training = prepare(made, noise_for(made), CPU)
    *_, fed = fed_speeds(training, 0, calls=1)
    assert len(fed.rounds) == ROUNDS


@pytest.mark.parametrize(("name", "classes"), [("small.cifar10", 10), ("small.cifar100", 100), ("vit.digits", 10)])
def test_noise_stands_in_for_data_that_are_not_there(name: str, classes: int) -> None:
    made = recipe(name, "batch=40")  # more than there are pictures
    assert long(made).duration == Steps(NEVER)
    (source,) = noise_for(made).values()
    assert len(source.classes) == classes
    image = made.model.image
    assert source.picture(len(source) - 1).size == (image.width, image.height)
    batch = prepare(made, {"train": source}, CPU).batches[0]
    assert batch.image_BCHW.shape == (40, image.channels, image.height, image.width)


def test_no_more_workers_are_advised_than_cores_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {3}, raising=False)  # as taskset -c 3 does
    training = prepared("batch=8")
    said = Waiting(training, 1).advice(Record(0, {"time_waiting": 0.5}))
    assert said == "50% of the time is spent waiting for data: use fewer augmentations or a machine with more cores."


@pytest.mark.parametrize(("tune", "passes"), [("Everything", 3), ("HeadsOnly", 1), ("HeadsAndLastNorm", 1)])
def test_frozen_features_take_one_pass(tune: str, passes: int) -> None:
    assert passes_of(recipe("vit.digits", f"tune={tune}")) == passes
