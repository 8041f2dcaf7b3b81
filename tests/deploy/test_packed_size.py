"""The size of a packed file is known before there is one."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from tests.deploy.packing import MODELS
from tests.test_cli import good

from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import encoded
from frugalvit.deploy.packed_size import packed_size
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.model import Model
from frugalvit.recipes.find import recipe
from frugalvit.zoo.binaryvit import binaryvit
from frugalvit.zoo.find import model

WIDE = binaryvit(dim=65, heads=(1, 1), depths=(1, 1), ratios=(1, 1), reductions=(2, 1), patch=2, image=8, classes=3)


def real_size(spec: Model) -> int:
    image, labels = spec.image, tuple(map(str, range(spec.classes or 0)))
    preprocess = Preprocess(image.height, image.width, (0.485,) * image.channels, (0.229,) * image.channels)
    classifier = Classifier(ClassifierSpec(spec, preprocess, labels), spec.build(seed=0)).eval()
    return len(encoded(packed_model(classifier, "model").packed))


@pytest.mark.parametrize("spec", [*MODELS.values(), WIDE], ids=[*MODELS, "two words a row, eight a merge"])
def test_it_is_that_of_the_file_to_the_byte(spec: Model) -> None:
    assert packed_size(spec) == real_size(spec)


def test_recipes_and_the_command_say_it_too() -> None:
    digits = replace(recipe("binaryvit.digits").model, classes=10)
    assert isinstance(digits, Model)
    said = json.loads(good("show", "binaryvit.digits", "--json"))["costs"]
    assert said["classes"] == 10 and said["packed_bytes"] == pytest.approx(real_size(digits), rel=1e-3)
    assert f"packed about {real_size(digits) / 1e6:.3f} MB" in good("show", "binaryvit.digits")


@pytest.mark.parametrize(
    "name", ["deit_tiny_patch16_224", "deit_tiny_patch16_224+binary_linears", "reactnet_a_32", "timm:resnet18"]
)
def test_what_does_not_pack_has_none(name: str) -> None:
    spec: Architecture = model(name)
    assert packed_size(spec) is None


def test_nothing_is_said_of_a_packed_file_where_there_can_be_none() -> None:
    text = good("show", "small_vit_32+binary_linears")
    assert "BOPs / 64" in text and "in float32" in text and "packed" not in text
    assert json.loads(good("show", "small_vit_32+binary_linears", "--json"))["packed_bytes"] is None


def test_no_weights_are_made_to_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "numpy", lambda *_: pytest.fail("a tensor with data"))
    found = packed_size(model("binaryvit_small_patch4_224"))
    assert found is not None and 7.6e6 < found < 7.8e6
