"""Speeds are measured by steps of the real thing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.advise.test_rules import DOCS, facts
from tests.measure.test_processor import busy_cores

from frugalvit.advise import speed as speed_module
from frugalvit.advise.answer import reading
from frugalvit.advise.speed import (
    DEVICE_BATCH,
    Synthetic,
    estimated,
    is_kept,
    machine,
    measured,
    read_rate,
    timed_batch,
    uncompiled,
)
from frugalvit.data.dataset import Digits
from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.measure.processor import usable_cores, waited
from frugalvit.recipes.find import recipe
from frugalvit.training import compiled
from frugalvit.training.devices import place_for
from frugalvit.training.recipe import Recipe

DIGITS = facts(1297, known="digits", dataset="Digits", place="", side=8, longest=8, sizes=1, gray=200)


def digits(*overrides: str) -> Recipe:
    made = recipe("vit.digits", "dim=16", "depth=1", *overrides)
    return replace(made, model=replace(made.model, classes=10))


def test_a_recipe_is_measured_as_it_would_train() -> None:
    threads = torch.get_num_threads()
    speed = measured(digits(), DIGITS, 5000.0, "cpu")
    costs = cost(digits().model)
    assert (speed.parameters, speed.macs, speed.activations) == (costs.parameters, costs.macs, costs.activations)
    assert 100 < speed.images_per_second < 1e6
    assert speed.reads_per_second == 5000.0
    assert speed.how.startswith("measured: 5 steps of 64 synthetic pictures after a first one, fp32, 1 thread")
    assert not speed.kept
    assert torch.get_num_threads() == threads


def test_a_recipe_that_mixes_erases_and_adds_up_is_measured_too() -> None:
    made = recipe("small.cifar10", "batch=4", "accumulate=3")
    assert measured(made, DIGITS, 1.0, "cpu").images_per_second > 1


@pytest.mark.skipif(not waited(), reason="the system does not tell how long threads wait")
@pytest.mark.parametrize("threads", [1, 2])
def test_other_programs_are_told_whatever_the_number_of_threads(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if threads > usable_cores():
        pytest.skip("more threads than cores wait for each other")
    monkeypatch.setattr(speed_module, "CPU_MACS", 1.0)  # two pictures a step
    monkeypatch.setattr(speed_module, "SECONDS", 0.5)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    made = recipe("small.cifar10", "model=vit", "batch=32")  # large enough for more than one thread
    speed_module.cost_of(made.model)  # counted once, and slowly beside others
    try:
        with busy_cores():
            how = measured(made, DIGITS, 1.0, "cpu").how
    finally:
        torch.set_num_threads(before)
    assert f"fp32, {threads} thread" in how
    assert ", while other programs or a CPU limit held it up " in how


def test_what_was_not_measured_is_estimated_by_its_products() -> None:
    like = measured(digits(), DIGITS, 5000.0, "cpu")
    twice = estimated(digits("dim=32"), DIGITS, 4000.0, "cpu", like, "the small one")
    assert twice.images_per_second * twice.macs == pytest.approx(like.images_per_second * like.macs)
    assert twice.how == "estimated from the small one, by multiply-accumulates"
    assert twice.reads_per_second == 4000.0


def test_the_timed_batch_is_even_quickly_done_and_never_above_the_recipe_s() -> None:
    place = place_for("cpu", "fp32")
    assert timed_batch(digits(), cost(digits().model), place) == 64
    assert timed_batch(digits("batch=7"), cost(digits().model), place) == 4
    assert timed_batch(digits("batch=1"), cost(digits().model), place) == 2
    large = recipe("transfer.folder", "model=vit_base_patch16_224", "model.classes=10")
    assert timed_batch(large, cost(large.model), place) == 2


def test_a_recipe_that_training_compiles_is_timed_as_it_is() -> None:
    """Such as AugReg's transfer to ImageNet, of 20,000 steps."""
    timed = uncompiled(digits("duration=Steps(20000)", "schedule.warmup=Steps(10000)"), 2, place_for("cpu", "fp32"))
    assert timed.clock.total >= compiled.FROM > timed.step.clock.total
    timed.step.take([timed.batches[0]])


def test_the_page_says_what_is_timed_on_cuda() -> None:
    page = " ".join((DOCS / "advise.md").read_text(encoding="utf-8").split())
    assert f"They are of {DEVICE_BATCH} pictures at most" in page
    assert f"never compiled, and a training of {compiled.FROM:,} steps or more is" in page
    kept = replace(measured(digits(), DIGITS, 1.0, "cpu"), kept=True)
    assert reading(kept) == "pictures kept on the device, their augmentation there not timed"


def test_reading_is_measured_on_the_pictures_themselves() -> None:
    assert 100 < read_rate(digits(), Digits().open("train", None)) < 1e7


def test_synthetic_pictures_are_of_two_sizes_and_of_every_class() -> None:
    source = Synthetic(digits())
    assert len(source) == 64
    assert set(source.labels) == set(range(10))
    assert [source.picture(index).size for index in (0, 1, 63)] == [(9, 8), (8, 8), (8, 8)]
    assert source.picture(0).mode == "L"


def test_pictures_are_kept_on_cuda_alone() -> None:
    assert not is_kept(digits(), DIGITS, place_for("cpu", "fp32"))


def test_a_machine_is_described() -> None:
    here = machine("cpu")
    assert (here.device, here.precision, here.is_cpu) == ("cpu", "fp32", True)
    assert here.cores >= 1
    assert here.memory > 2**28
    with pytest.raises(SpecError, match="--device: 'abacus' is no device"):
        machine("abacus")


@pytest.mark.gpu
def test_on_a_card_the_captured_step_is_measured_and_small_pictures_are_kept() -> None:
    assert machine("cuda").memory > 2**30
    speed = measured(digits(), DIGITS, 5000.0, "cuda")
    assert speed.kept
    assert speed.images_per_second > 1000
    assert speed.how == "measured: 5 steps of 64 synthetic pictures after 3 first ones, bf16, not compiled"
    many = replace(DIGITS, sizes=2)
    assert not measured(digits("precision=fp32"), many, 5000.0, "cuda").kept
