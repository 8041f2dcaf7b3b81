"""Weights that this package wrote begin another training, at another size and class count too."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import frugalvit
from frugalvit.errors import WeightsNotice
from frugalvit.recipes.find import recipe
from frugalvit.weights.fetch import fetch
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


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224+spt+lsa", "cait_xxs24_224", "resnet18"])
def test_own_names_go_both_ways_and_to_another_size(name: str) -> None:
    small = "depths=1,1,1,1" if name == "resnet18" else "depth=2"
    module = model(name, small, image=64, classes=7).build(seed=0)
    state = export_weights(module, "frugalvit")
    other = model(name, small, image=96, classes=5).build(seed=1)
    with pytest.warns(WeightsNotice, match="head 'class' is fresh"):
        load_weights(other, state, "frugalvit")
