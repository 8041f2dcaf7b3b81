"""The small-data recipes take pictures of any side from 28 to 96 pixels, on the grids that they have at 32."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, get_args

import numpy as np
import pytest
import torch

from frugalvit.data.arrays import Arrays
from frugalvit.data.augment import PadCrop
from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.nn.block import Block
from frugalvit.nn.model import Model
from frugalvit.recipes.find import recipe
from frugalvit.recipes.pyramid import grid_of
from frugalvit.recipes.small import Added, Family
from frugalvit.training.devices import place_for
from frugalvit.training.prepare import prepare

EVERY = range(28, 97)
PAPER = ("small.cifar10", "small.cifar100", "small.svhn", "small.tiny_imagenet")


def best(image: int, *words: str) -> Model:
    return replace(recipe("small.best_cifar10", f"image={image}", *words).model, classes=10)


def grids(model: Model, module: Any) -> list[int]:
    """The side of the grid in each stage."""
    shapes = [shape.height for layer, shape in zip(model.layers, module.shapes, strict=False) if isinstance(layer, Block)]
    return list(dict.fromkeys(shapes))


@cache
def forwarded(spec: Model) -> tuple[list[int], torch.Size]:
    """The grids of a model, and the shape of its logits for three pictures; of shapes alone."""
    with torch.device("meta"):
        module = spec.build().eval()
        return grids(spec, module), module(torch.zeros(3, 3, spec.image.height, spec.image.width))["class"].shape


# ------------------------------------------------------------------------------------------------ our own


@pytest.mark.parametrize("words", [(), ("late=0",)])
def test_our_own_small_recipe_costs_about_the_same_at_every_side(words: tuple[str, ...]) -> None:
    specs = {best(image, *words): image for image in EVERY}
    usual = cost(best(32, *words)).macs
    costs = {image: cost(spec).macs / usual for spec, image in specs.items()}
    least, most = (0.73, 1.35) if "late=0" in words else (1.0, 1.1)
    assert {image: round(one, 2) for image, one in costs.items() if not least <= one <= most} == {}


def test_our_own_small_recipe_fits_any_picture_of_28_to_96_pixels() -> None:
    for image in EVERY:
        spec = best(image, "dim=32", "heads=4", "depth=2")
        assert forwarded(spec) == ([16, 8, 4], (3, 10)), image
        assert abs(spec.image.height - image) <= image / 5


def test_our_own_small_recipe_at_32_pixels_is_the_one_that_was_measured() -> None:
    found = cost(best(32))
    assert best(32).image.height == 32
    assert (found.parameters, found.macs) == (9_995_840, 474_698_112)


@pytest.mark.parametrize(
    ("image", "patches_of", "grids_of", "side", "patch"),
    [
        (28, 1, 1, 28, 4),
        (31, 1, 1, 32, 4),
        (36, 1, 1, 36, 4),
        (50, 1, 1, 49, 7),
        (63, 1, 1, 63, 7),  # 9 x 9 patches of 7, not 7 x 7 of 9
        (28, 1, 2, 32, 4),
        (36, 1, 2, 40, 5),
        (36, 2, 1, 36, 4),
        (28, 2, 2, 32, 4),
        (32, 2, 2, 32, 4),
        (36, 2, 2, 32, 4),
        (39, 2, 2, 32, 4),
        (40, 2, 2, 48, 6),
        (50, 2, 2, 48, 6),
        (60, 2, 2, 64, 8),
        (72, 2, 2, 80, 10),
        (96, 2, 2, 96, 12),
    ],
)
def test_a_grid_is_near_eight_by_eight_and_can_be_halved(
    image: int, patches_of: int, grids_of: int, side: int, patch: int
) -> None:
    assert grid_of(image, patches_of, grids_of) == (side, patch)


# ------------------------------------------------------------------------------------------------ the paper's

SIDES = {
    "vit": {28: 32, 31: 32, 32: 32, 36: 40, 48: 48, 64: 64, 72: 72, 96: 96},
    "cait": {28: 32, 31: 32, 32: 32, 36: 40, 48: 48, 64: 64, 72: 72, 96: 96},
    "pit": {28: 32, 31: 32, 32: 32, 36: 32, 48: 48, 64: 64, 72: 80, 96: 96},
    "swin": {28: 32, 31: 32, 32: 32, 36: 32, 48: 48, 64: 64, 72: 80, 96: 96},
    "t2t": {28: 32, 31: 32, 32: 32, 36: 32, 48: 64, 64: 64, 72: 64, 96: 64},
}


@pytest.mark.parametrize("add", get_args(Added))
@pytest.mark.parametrize("model", get_args(Family))
def test_a_model_of_the_paper_keeps_its_grid_at_other_sides(model: str, add: str) -> None:
    for image, side in SIDES[model].items():
        if add in ("spt", "lsa") and image != 48:
            continue  # neither, and both, at every side
        spec = recipe("small.cifar10", f"model={model}", f"add={add}", f"image={image}").model
        assert (spec.image.height, spec.image.width) == (side, side)
        usual = [16, 8, 4] if model in ("pit", "swin") else [8]
        assert forwarded(spec) == (usual, (3, 10)), image


@pytest.mark.parametrize("model", get_args(Family))
def test_a_model_of_the_paper_takes_every_side(model: str) -> None:
    far = {"vit": 1 / 7, "cait": 1 / 7, "pit": 1 / 5, "swin": 1 / 5, "t2t": 1 / 3}[model]
    for image in EVERY:
        made = recipe("small.svhn", f"model={model}", "add=spt+lsa", f"image={image}")
        assert forwarded(made.model)[1] == (3, 10)
        assert abs(made.model.image.height - image) <= far * image
        assert made.data.augment.steps[1] == PadCrop(4)


@pytest.mark.parametrize(("image", "words"), [(28, ("model=vit", "add=spt+lsa")), (45, ("model=swin",))])
def test_pictures_are_resized_to_the_side_of_the_model_on_their_way(image: int, words: tuple[str, ...]) -> None:
    made = recipe("small.cifar10", *words, f"image={image}", "batch=2", "path=plain")
    pictures = np.random.default_rng(0).integers(0, 256, (4, image, image, 3), dtype=np.uint8)
    source = Arrays(pictures, np.arange(4), [f"class {n}" for n in range(10)], "toy")
    training = prepare(made, {"train": source}, place_for("cpu", "fp32"))
    training.step.take([training.batches[0]])
    taken = training.step.taken()
    assert np.isfinite(taken["loss"]) and not taken["nonfinite"]


@pytest.mark.parametrize("name", PAPER)
def test_the_side_changes_nothing_but_the_model(name: str) -> None:
    usual, other = recipe(name), recipe(name, "image=48")
    assert other.model.image.height == 48 and replace(other, model=usual.model) == usual
    assert recipe(name, f"image={usual.model.image.height}") == usual


@pytest.mark.parametrize("name", [*PAPER, "small.best_cifar10"])
@pytest.mark.parametrize("image", [27, 97])
def test_small_recipes_refuse_other_pictures(name: str, image: int) -> None:
    with pytest.raises(SpecError, match=rf"^{name}\.image: {image} pixels\. Use 28 to 96"):
        recipe(name, f"image={image}")
