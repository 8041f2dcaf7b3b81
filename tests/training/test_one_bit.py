"""Models of one bit train in full precision but for their products of signs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.training.runs import Notes

import frugalvit
from frugalvit.nn.quantize import OneBit
from frugalvit.training import compiled
from frugalvit.training.devices import Place
from frugalvit.training.one_bit import has_binary_maps, of_one_bit, place_of_bits

ROUNDED = Place(torch.device("cpu"), "bf16")


def module_of(*words: str) -> torch.nn.Module:
    return replace(frugalvit.recipe("binaryvit.digits", *words).model, classes=10).build(seed=0)


@pytest.mark.parametrize("rung", ["deit", "pyramid", "star"])
def test_a_model_of_one_bit_is_measured_as_in_full_precision(rung: str) -> None:
    module = module_of(f"rung={rung}").eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for one in module.parameters():
            one.add_(torch.randn(one.shape, generator=generator), alpha=0.05)
    image_BCHW = torch.randn(16, module.spec.image.channels, 16, 16, generator=generator)
    with torch.no_grad():
        exact = module(image_BCHW)["class"]
        with ROUNDED.autocast():
            rounded = module(image_BCHW)["class"].float()
        place = place_of_bits(module, ROUNDED)
        with place.autocast():
            ours = module(image_BCHW)["class"]
    assert {one.factors for one in module.modules() if isinstance(one, OneBit)} == {torch.bfloat16}
    assert torch.equal(ours, exact) and not torch.equal(rounded, exact)


@pytest.mark.parametrize("words", [("bits=activations",), ("bits=none",)])
def test_a_model_with_many_real_products_is_not_of_one_bit(words: tuple[str, ...]) -> None:
    module = module_of(*words)
    assert not of_one_bit(module) and place_of_bits(module, ROUNDED) == ROUNDED


def test_real_attention_keeps_its_precision() -> None:
    module = frugalvit.model("deit_tiny_patch16_224+binary_linears", image=32).build(seed=0)
    assert not of_one_bit(module) and place_of_bits(module, ROUNDED) == ROUNDED


def test_full_precision_stays_what_it_is() -> None:
    module, place = module_of(), replace(ROUNDED, precision="fp32")
    assert of_one_bit(module) and place_of_bits(module, place) == place
    assert {one.factors for one in module.modules() if isinstance(one, OneBit)} == {None}


@pytest.mark.parametrize(
    ("name", "binary"),
    [
        ("binaryvit_tiny_patch2_32", True),
        ("react_resnet18_32", True),
        ("bireal_resnet18", True),
        ("small_vit_32+binary_linears", True),
        ("small_vit_32", False),
        ("resnet18", False),
    ],
)
def test_models_of_binary_maps_are_known(name: str, binary: bool) -> None:
    with torch.device("meta"):
        assert has_binary_maps(frugalvit.model(name).build()) is binary


def test_their_twins_have_as_many_operations() -> None:
    assert all(has_binary_maps(module_of(f"bits={bits}")) for bits in ("activations", "none"))


def test_layers_are_compiled_by_themselves_and_can_be_left_as_they_were() -> None:
    module = module_of()
    compiled.compile_layers(module, {})
    assert all(layer._compiled_call_impl is not None for layer in module.layers)
    compiled.uncompile_layers(module)
    assert all(layer._compiled_call_impl is None for layer in module.layers)


def test_what_is_computed_how_and_what_should_not_be_averaged_is_said(tmp_path: Path) -> None:
    notes = Notes()
    words = ("dim=8", "batch=256", "epochs=1", "precision=bf16", "average=EmaOver(0.5)")
    frugalvit.train(frugalvit.recipe("binaryvit.digits", *words), out=tmp_path / "run", device="cpu", display=notes)
    assert notes.said[0].endswith("cpu, fp32, products of signs in bf16")
    assert any("the signs of averaged weights are not those that the norms have seen" in text for text in notes.said)
