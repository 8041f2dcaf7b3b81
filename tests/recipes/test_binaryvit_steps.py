"""Steps of a binary model: traced whole, captured or plain to the same numbers, resumed, of several seeds, and taught."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from tests.training.runs import StopAt, Stopped, column, trace
from torch import nn

from frugalvit.beginning import opened
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_block import BinaryBlock
from frugalvit.nn.binary_linear import Binary, BinaryMlp, CenteredSigns
from frugalvit.nn.binary_merge import BinaryMerge
from frugalvit.nn.quantize import floored, thresholded
from frugalvit.nn.shape import Shape
from frugalvit.recipes.find import recipe
from frugalvit.run import fit, train
from frugalvit.seeds import train_seeds
from frugalvit.training import loop
from frugalvit.training.devices import place_for
from frugalvit.training.graph_step import GraphStep
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.step import Step
from frugalvit.weights.files import read_file
from frugalvit.zoo.binaryvit import CROSS

SIZES = ("dim=8", "batch=32", "epochs=1", "data.subset=SeededFraction(0.2)", "schedule.warmup=Steps(2)", "log_every=1")
KEPT = ("average=Ema(0.9)", "save=Steps(3)", "evaluate=Steps(6)")


def tiny(*overrides: str) -> Recipe:
    """Eight steps in an epoch."""
    return recipe("binaryvit.digits", *SIZES, *overrides)


def prepared(made: Recipe) -> Training:
    return prepare(made, opened(made, None), place_for("cpu", "fp32"))


SHAPE, LINEAR = Shape(8, 4, 4), Binary(CenteredSigns(0.01))
BLOCK = BinaryBlock(BinaryAttention(2, 2, LINEAR), BinaryMlp(2, LINEAR), branches=CROSS[:1])


class Quantizers(nn.Module):
    """A probability's threshold, and a map of one bit behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Parameter(torch.tensor(-0.1))
        self.map = LINEAR.build(SHAPE.dim, SHAPE.dim)

    def forward(self, x_BND: torch.Tensor) -> torch.Tensor:
        step = floored(self.step) + 0.3
        return self.map(thresholded(x_BND.softmax(-1), step) * step + x_BND)


@pytest.mark.parametrize("whole", [Quantizers, pytest.param(lambda: BLOCK.build(SHAPE)[0], marks=pytest.mark.slow)])
def test_parts_are_one_graph_forward_and_backward_to_the_same_numbers(whole: Callable[[], nn.Module]) -> None:
    """fullgraph: a quantizer, a norm or a floor that broke the graph would be an error. Statistics move inside, too."""
    eager = nn.Sequential(whole(), BinaryMerge().build(SHAPE)[0]).double().train()
    fresh, traced = copy.deepcopy(eager), copy.deepcopy(eager)
    x_BND = torch.randn(6, SHAPE.length, SHAPE.dim, dtype=torch.float64)

    def loss(module: nn.Module, x_BND: torch.Tensor) -> torch.Tensor:
        return module(x_BND).square().mean()

    compiled = torch.compile(loss, fullgraph=True, dynamic=False, backend="aot_eager")
    for _ in range(2):  # the second finds what the first has left
        ours, theirs = compiled(traced, x_BND), loss(eager, x_BND)
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)
        ours.backward()
        theirs.backward()
    for (name, one), other in zip(traced.named_parameters(), eager.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        torch.testing.assert_close(one.grad, other.grad, atol=1e-9, rtol=1e-9, msg=name)
    for (name, one), other, before in zip(traced.named_buffers(), eager.buffers(), fresh.buffers(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-10, rtol=1e-10, msg=name)
        assert not torch.equal(one, before), name


@pytest.mark.parametrize("rung", ["deit", "pyramid"])
def test_a_captured_step_is_the_plain_one_with_its_statistics_and_their_average(rung: str) -> None:
    """On the CPU the functions of a captured step run one by one; nothing in them asks the host."""
    plain, sent = (prepared(tiny(f"rung={rung}", f"path={path}", "average=Ema(0.9)")) for path in ("plain", "sent"))
    assert type(plain.step) is Step and isinstance(sent.step, GraphStep)
    records = [list(islice(loop.fit(one.step, one.batches, one.cadence), 4)) for one in (plain, sent)]
    for one, other in zip(*records, strict=True):
        assert one.values["loss"] == pytest.approx(other.values["loss"], rel=1e-4)
    assert plain.state.average is not None and sent.state.average is not None
    moved = 0
    for name, value in plain.state.module.state_dict().items():
        if "running" in name:
            torch.testing.assert_close(sent.state.module.state_dict()[name], value, atol=1e-3, rtol=1e-3, msg=name)
            averaged = plain.state.average.tensors[name], sent.state.average.tensors[name]
            torch.testing.assert_close(*averaged, atol=1e-3, rtol=1e-3, msg=name)
            moved += not torch.equal(averaged[0], value)
    assert moved > 10


def test_a_step_that_is_no_number_leaves_the_statistics_as_they_were() -> None:
    training = prepared(tiny("path=sent"))
    reader = loop.fit(training.step, training.batches, training.cadence)
    next(reader)
    before = {name: value.clone() for name, value in training.state.module.state_dict().items()}
    with torch.no_grad():
        training.state.module.readout.heads["class"].bias.fill_(float("nan"))
    assert next(reader).values["nonfinite"] == 1
    after = training.state.module.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if not name.startswith("readout.heads"))


def test_an_interrupted_training_ends_as_a_whole_one(tmp_path: Path) -> None:
    made = tiny(*KEPT, "damping=0.001")
    train(made, out=tmp_path / "whole", device="cpu")
    with pytest.raises(Stopped):
        train(made, out=tmp_path / "parts", device="cpu", display=StopAt(5))
    train(made, out=tmp_path / "parts", device="cpu", resume=True)
    assert trace(tmp_path / "parts") == trace(tmp_path / "whole")


def test_seeds_have_statistics_of_their_own(tmp_path: Path) -> None:
    made = tiny()
    train_seeds(made, (0, 1), out=tmp_path / "both", device="cpu")
    train(replace(made, seed=1), out=tmp_path / "alone", device="cpu")
    zero, one, alone = (
        read_file(tmp_path / folder / "model.safetensors") for folder in ("both/seed-0", "both/seed-1", "alone")
    )
    statistics = [name for name in alone if "running" in name]
    assert len(statistics) > 10 and all(torch.equal(one[name], alone[name]) for name in alone)
    assert not any(torch.equal(zero[name], one[name]) for name in statistics)


def test_a_binary_student_learns_a_teachers_probabilities_whatever_the_labels(tmp_path: Path) -> None:
    quick = ("epochs=4", "channels=4", "batch=16", "lr=0.01", *SIZES[3:5])
    train(recipe("digits.resnet", *quick), out=tmp_path / "teacher", device="cpu")
    made = tiny(f"teacher={tmp_path / 'teacher'}")
    right = opened(made, None)
    wrong = copy.copy(right["train"])
    wrong.labels = (wrong.labels + 3) % 10
    records = [list(islice(fit(made, data=right | {"train": one}, device="cpu"), 4)) for one in (right["train"], wrong)]
    assert {name for name in records[0][0].values if name.startswith(("supervised", "distilled"))} == {"distilled_class"}
    losses = [[record.values["loss"] for record in one] for one in records]
    assert losses[0] == losses[1] and len(set(losses[0])) == 4
    run = train(made, out=tmp_path / "student", device="cpu")
    assert column(tmp_path / "student", "loss")[:4] == losses[0]
    assert run.classifier is not None and run.summary["nonfinite"] == 0
