"""Every recipe builds, survives being written, and is what its golden file says. FRUGALVIT_WRITE_GOLDEN=1 rewrites them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.test_cli import good

from frugalvit.outline import flatten
from frugalvit.recipes.find import functions, recipe
from frugalvit.spec import decode, encode
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
