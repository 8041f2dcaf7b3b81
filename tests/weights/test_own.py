"""Weights that this package wrote begin another training, at another size and class count too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import frugalvit
from frugalvit.errors import WeightsError, WeightsNotice
from frugalvit.recipes.find import recipe
from frugalvit.report.progress import Silent
from frugalvit.weights.fetch import fetch
from frugalvit.weights.files import read_metadata, write_safetensors
from frugalvit.weights.load import export_weights, load_weights
from frugalvit.zoo.find import model

TINY = ("dim=16", "depth=2", "duration=Steps(2)", "batch=16")


def test_a_run_begins_from_the_weights_of_another(tmp_path: Path) -> None:
    first = frugalvit.train(recipe("vit.digits", *TINY), out=tmp_path / "first")
    fetched = fetch(str(first.path))
    assert fetched.origin == "frugalvit"
    module = recipe("vit.digits", *TINY, "model.classes=10").model.build(seed=9)
    load_weights(module, fetched.path, fetched.origin)
    assert first.classifier is not None
    wanted = first.classifier.module.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in module.state_dict().items())
    frugalvit.train(recipe("vit.digits", *TINY, "seed=1"), out=tmp_path / "second", init=str(first.path))


class Stop(Exception):
    """The training was ended from outside."""


class StopAt(Silent):
    def __init__(self, step: int):
        self.step = step

    def show(self, values: Mapping[str, Any]) -> None:
        if values["step"] >= self.step:
            raise Stop


def stopped(out: Path, *words: str) -> dict[str, Any]:
    """The newest checkpoint of a run that ended at its eighth step, right before it was saved."""
    plan = recipe("vit.digits", *TINY[:2], "batch=16", "duration=Steps(12)", *words, "save=Steps(2)", "log_every=1")
    with pytest.raises(Stop):
        frugalvit.train(plan, out=out, device="cpu", display=StopAt(8))
    return safetensors.torch.load_file(out / "state" / "step-000000006.safetensors")


@pytest.mark.parametrize(
    ("words", "part", "said"),
    [
        (("average=none",), "model", "the run's weights, of step 6, are taken"),
        (("average=Ema(0.9)",), "average", "the run's averaged weights, of step 6, are taken"),
        (("average=Ema(0.9)", "stop=EarlyStop", "evaluate=Steps(2)"), "best", r"the run's best weights, of step [246], are"),
    ],
)
def test_a_run_that_was_stopped_gives_what_it_would_have_ended_with(
    tmp_path: Path, words: tuple[str, ...], part: str, said: str
) -> None:
    state = stopped(tmp_path / "run", *words)
    fetched = fetch(str(tmp_path / "run"))
    module = recipe("vit.digits", *TINY, "model.classes=10").model.build(seed=9)
    with pytest.warns(WeightsNotice, match=rf"step-000000006\.safetensors as frugalvit: a checkpoint: {said}"):
        load_weights(module, fetched.path, fetched.origin)
    assert all(torch.equal(value, state[f"{part}.{name}"]) for name, value in module.state_dict().items())


def test_a_run_begins_from_one_that_was_stopped_and_says_so(tmp_path: Path) -> None:
    stopped(tmp_path / "first")
    notes: list[str] = []

    class Heard(Silent):
        def note(self, text: str) -> None:
            notes.append(text)

    frugalvit.train(recipe("vit.digits", *TINY), out=tmp_path / "second", init=str(tmp_path / "first"), display=Heard())
    assert any("a checkpoint: the run's" in text for text in notes)


def test_a_checkpoint_whose_weights_are_no_numbers_is_refused(tmp_path: Path) -> None:
    stopped(tmp_path / "run", "average=none")
    file = tmp_path / "run" / "state" / "step-000000006.safetensors"
    state, header = safetensors.torch.load_file(file), read_metadata(file)
    state["model.tokenizer.weight"].fill_(torch.nan)
    write_safetensors(file, state, header)
    module = recipe("vit.digits", *TINY, "model.classes=10").model.build(seed=9)
    with pytest.raises(WeightsError, match=r"step-000000006\.safetensors: a checkpoint whose weights are no numbers\. Give"):
        load_weights(module, fetch(str(tmp_path / "run")).path, "frugalvit")


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224+spt+lsa", "cait_xxs24_224", "resnet18"])
def test_own_names_go_both_ways_and_to_another_size(name: str) -> None:
    small = "depths=1,1,1,1" if name == "resnet18" else "depth=2"
    module = model(name, small, image=64, classes=7).build(seed=0)
    state = export_weights(module, "frugalvit")
    other = model(name, small, image=96, classes=5).build(seed=1)
    with pytest.warns(WeightsNotice, match="head 'class' is fresh"):
        load_weights(other, state, "frugalvit")
