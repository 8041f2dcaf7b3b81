"""A step on pictures that lie on the device equals the step that reads them, where neither draws; and it resumes."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from frugalvit.data.augment import Augment, PadCrop
from frugalvit.data.batches import TrainingBatches
from frugalvit.data.dataset import Digits
from frugalvit.data.mix import MixEach, Mixup, SwitchMix
from frugalvit.data.numbered import NumberedBatches
from frugalvit.data.store_device import OneSize
from frugalvit.recipes.find import recipe
from frugalvit.run import train
from frugalvit.training import loop
from frugalvit.training.devices import place_for
from frugalvit.training.graph_step import GraphStep, reason
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.state import State
from frugalvit.training.step import Step

SIZES = ("dim=16", "depth=2", "batch=32", "schedule.warmup=Steps(4)", "log_every=1", "epochs=2", "drop_path=0.0")


def still(*overrides: str) -> Recipe:
    """A recipe whose batches need no draws but their order."""
    made = recipe("vit.digits", *SIZES, *overrides)
    return replace(made, data=replace(made.data, augment=Augment((PadCrop(0),))))


def prepared(made: Recipe) -> Training:
    source = Digits().open("train", None)
    return prepare(made, {"train": source, "val": Digits().open("val", None)}, place_for("cpu", "fp32"))


def on_device(training: Training) -> tuple[GraphStep, NumberedBatches]:
    source = training.sources["train"]
    pictures = np.stack([np.asarray(source.picture(index)) for index in range(len(source))])
    kept = OneSize(torch.from_numpy(pictures)[:, None])
    step = GraphStep(training.recipe, training.state, training.place, training.clock, training.preprocess, None, kept)
    made, itself = training.recipe, np.arange(len(source))
    return step, NumberedBatches(source.labels, made.data.order, made.seed, made.batch, itself)


def weights(training: Training) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in training.state.module.state_dict().items()}


@pytest.mark.parametrize("overrides", [(), ("accumulate=2",), ("clip=0.1", "average=Ema(0.9)")], ids=str)
def test_it_takes_the_steps_of_the_plain_path(overrides: tuple[str, ...]) -> None:
    plain, resident = prepared(still(*overrides)), prepared(still(*overrides))
    assert isinstance(plain.batches, TrainingBatches)
    step, batches = on_device(resident)
    theirs = list(islice(loop.fit(plain.step, plain.batches, plain.cadence), 12))
    ours = list(islice(loop.fit(step, batches, resident.cadence), 12))
    for one, other in zip(ours, theirs, strict=True):
        for key in ("loss", "gradient_norm", "supervised_class", "lr"):
            assert one.values[key] == pytest.approx(other.values[key], rel=2e-4), (one.step, key)
    for name, value in weights(resident).items():
        if name.endswith("qkv.bias"):
            continue  # keys' biases have gradients of rounding alone, and Adam makes whole steps of them
        torch.testing.assert_close(value, weights(plain)[name], rtol=1e-3, atol=1e-4)
    if resident.state.average is not None and plain.state.average is not None:
        for name, value in resident.state.average.tensors.items():
            if name.endswith("qkv.bias"):
                continue
            torch.testing.assert_close(value, plain.state.average.tensors[name], rtol=1e-3, atol=1e-4)


def lively(*overrides: str) -> Recipe:
    """A recipe with draws of every kind: augmentation, mixing, depth."""
    made = recipe("vit.digits", *SIZES[:-1], "drop_path=0.3", "average=Ema(0.9)", *overrides)
    return replace(made, data=replace(made.data, mix=SwitchMix()))


@pytest.mark.parametrize(("mix", "shares"), [(Mixup(1.0), 1), (MixEach(Mixup(1.0)), 32)], ids=["the batch", "each picture"])
def test_a_batch_is_mixed_by_one_share_or_every_picture_by_its_own(mix: Mixup | MixEach, shares: int) -> None:
    made = replace(still(), data=replace(still().data, mix=mix))
    step, _ = on_device(prepared(made))
    label_B = torch.tensor([0, 1]).repeat_interleave(16)
    target_BC = step.prepared(torch.empty(0), torch.arange(32), label_B, torch.tensor([3, 5]))[1]
    share_B = target_BC.gather(1, label_B[:, None])[:, 0]
    assert len(set(share_B.tolist())) == shares
    torch.testing.assert_close(target_BC.sum(1), torch.ones(32))


def test_the_batches_of_a_step_have_the_draws_that_they_have_one_by_one() -> None:
    """Where nothing is learned, the loss of three accumulated batches is the mean of theirs in three steps."""
    losses = []
    for accumulate in (1, 3):
        training = prepared(lively("lr=1e-60", "schedule.warmup=Steps(0)", f"accumulate={accumulate}"))  # zero in fp32
        torch.nn.init.eye_(training.state.module.readout.heads["class"].weight)  # it starts at zero, and tells nothing
        before = weights(training)
        step, batches = on_device(training)
        losses.append([one.values["loss"] for one in islice(loop.fit(step, batches, training.cadence), 12 // accumulate)])
        assert all(torch.equal(value, before[name]) for name, value in weights(training).items())
    ones, threes = np.array(losses[0]), np.array(losses[1])
    assert len(set(ones)) == 12
    np.testing.assert_allclose(threes, ones.reshape(4, 3).mean(1), rtol=1e-5)


@pytest.mark.parametrize("path", ["plain", "sent", "kept"])
def test_a_finished_run_lets_go_of_its_memory_at_once(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not when Python next looks for cycles, which may be after the next run has asked for memory."""
    alive: list[weakref.ref[object]] = []
    build = Step.__init__

    def watched(self: Step, recipe: Recipe, state: State, *rest: Any) -> None:
        build(self, recipe, state, *rest)
        alive.extend(weakref.ref(one) for one in (self, state, state.optimizer, state.module))

    monkeypatch.setattr(Step, "__init__", watched)
    gc.collect()
    gc.disable()
    try:
        train(recipe("vit.digits", *SIZES, "epochs=1", f"path={path}"), out=tmp_path / "run", device="cpu")
        assert len(alive) == 4
        assert [type(one()).__name__ for one in alive if one() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_resumes_to_the_same_bits(tmp_path: Path, accumulate: int) -> None:
    whole, first, second = (prepared(lively(f"accumulate={accumulate}")) for _ in range(3))
    step, batches = on_device(whole)
    list(islice(loop.fit(step, batches, whole.cadence), 10))
    step, batches = on_device(first)
    list(islice(loop.fit(step, batches, first.cadence), 6))
    path = tmp_path / "step-000000006.safetensors"
    first.state.save(path)
    second.state.load(path)
    step, batches = on_device(second)
    list(islice(loop.fit(step, batches, second.cadence), 4))
    assert second.state.step == whole.state.step == 10
    ours, theirs = second.state.tensors(), whole.state.tensors()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_step_that_is_no_number_changes_nothing_and_is_counted() -> None:
    training = prepared(lively())
    step, batches = on_device(training)
    reader = loop.fit(step, batches, training.cadence)
    next(reader)
    before = weights(training)
    with torch.no_grad():
        training.state.module.readout.heads["class"].bias.fill_(float("nan"))
    record = next(reader)
    assert record.values["nonfinite"] == 1
    after = weights(training)
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("readout.heads"))


def test_what_a_step_changed_can_be_put_back() -> None:
    training = prepared(lively())
    step, batches = on_device(training)
    before, snapshot = weights(training), step.snapshot()
    list(islice(loop.fit(step, batches, training.cadence), 3))
    assert any(not torch.equal(value, before[name]) for name, value in weights(training).items())
    step.restore(snapshot)
    assert all(torch.equal(value, before[name]) for name, value in weights(training).items())
    moments = [value for moments in training.state.optimizer.state.values() for value in moments.values()]
    assert moments and all((value == 0).all() for value in moments)


def test_fp16_is_refused() -> None:
    training = prepared(still())
    training.state.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(Exception, match="Use bf16 or fp32"):
        on_device(training)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("out of memory\nat line 7", "ValueError: out of memory"),
        ("A process says:\n\nTraceback\n  ptxas: no registers\n", "ValueError: A process says: ptxas: no registers"),
        ("it ends here:", "ValueError: it ends here:"),
        ("", "ValueError: no message"),
    ],
)
def test_a_fall_back_says_what_went_wrong(message: str, told: str) -> None:
    assert reason(ValueError(message)) == told
