"""Every recipe builds, survives being written, and is what its golden file says. FRUGALVIT_WRITE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.test_cli import good

from frugalvit.errors import SpecError
from frugalvit.nn.foreign import ForeignModel
from frugalvit.outline import flatten
from frugalvit.recipes.find import functions, recipe
from frugalvit.spec import decode, encode
from frugalvit.training.optimizer import AdamW
from frugalvit.training.recipe import Recipe, preprocess_of

GOLDEN = Path(__file__).parents[1] / "golden" / "recipes"
NAMES = sorted(functions())


def text(made: Recipe) -> str:
    return "".join(f"{path or 'recipe'} = {value}\n" for path, value in flatten(made).items())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_is_what_its_golden_file_says(name: str) -> None:
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("FRUGALVIT_WRITE_GOLDEN") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text(recipe(name)), encoding="utf-8")
    assert text(recipe(name)) == file.read_text(encoding="utf-8")


def test_no_golden_file_is_of_a_recipe_that_is_gone() -> None:
    assert sorted(file.stem for file in GOLDEN.glob("*.txt")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_builds(name: str) -> None:
    made = recipe(name)
    model = replace(made.model, classes=made.model.classes or 10)
    with torch.device("meta"):
        module = model.build()
    assert all(one.is_meta for one in module.parameters())
    heads = tuple(getattr(model.readout, "names", ("class",)))
    objective = made.objective.build(heads, torch.ones(model.classes), answers={"logits": (model.classes,)})
    assert made.objective.needs_teacher == (made.teaching is not None)
    assert len(objective.terms) == len(made.objective.terms)
    assert {term.head for term in made.objective.terms} == set(heads)
    assert preprocess_of(made).height == model.image.height


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_survives_being_written(name: str) -> None:
    made = recipe(name)
    assert decode(json.loads(json.dumps(encode(made))), Recipe) == made


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_has_the_command_that_runs_its_recipe(name: str) -> None:
    lines = (functions()[name].__doc__ or "").splitlines()
    (command,) = [line.strip() for line in lines if line.strip().startswith("frugalvit train")]
    words = command.split(" (")[0].split()
    assert words[2] == name
    recipe(name, *(word for word in words[3:] if "=" in word))
    assert "--out" in words


def test_all_recipes_are_listed() -> None:
    assert sorted(json.loads(good("list", "recipes", "--json"))) == NAMES


@pytest.mark.parametrize("name", ["timm:resnet10t", "torchvision:resnet18"])
def test_one_s_own_pictures_by_a_model_of_another_library(name: str) -> None:
    made = recipe("transfer.folder", f"model={name}", "image=64")
    assert isinstance(made.model, ForeignModel) and isinstance(made.optimizer, AdamW) and made.optimizer.layer_decay == 1.0
    with pytest.raises(SpecError, match=r"there is no parameter 'drop_path'"):
        recipe("transfer.folder", f"model={name}", "drop_path=0.2")


def test_stochastic_depth_on_one_s_own_pictures_is_a_tenth_unless_it_is_given() -> None:
    by_rate = {word: recipe("transfer.folder", *word) for word in ((), ("drop_path=0.1",), ("drop_path=0.0",))}
    assert by_rate[()] == by_rate["drop_path=0.1",] != by_rate["drop_path=0.0",]
