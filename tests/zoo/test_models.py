from __future__ import annotations

import re
from functools import partial

import pytest
import torch

import frugalvit
from frugalvit.errors import SpecError
from frugalvit.nn.layers import Join
from frugalvit.nn.readout import Tokens
from frugalvit.nn.score import HideSelf, LearnedScale
from frugalvit.zoo import deit, vit
from frugalvit.zoo.change import (
    resized,
    with_classes,
    with_distillation,
    with_gpsa,
    with_lsa,
    with_mean_readout,
    with_spt,
    with_windows,
)
from frugalvit.zoo.find import functions, model, models

PARAMETERS = {
    "deit_tiny_patch16_224": 5_717_416,
    "deit_small_patch16_224": 22_050_664,
    "deit_base_patch16_224": 86_567_656,
    "deit_base_patch16_384": 86_859_496,
    "deit_tiny_distilled_patch16_224": 5_910_800,
    "deit_small_distilled_patch16_224": 22_436_432,
    "deit_base_distilled_patch16_224": 87_338_192,
    "deit_base_distilled_patch16_384": 87_630_032,
}
MILLIONS = {
    "vit_tiny_patch16_224": 5.72,
    "vit_small_patch32_224": 22.88,
    "vit_small_patch16_224": 22.05,
    "vit_base_patch32_224": 88.22,
    "vit_base_patch16_224": 86.57,
    "vit_base_patch8_224": 86.58,
    "vit_large_patch16_224": 304.33,
}


def count(name: str) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in model(name).build().parameters())


@pytest.mark.parametrize("name", PARAMETERS)
def test_deit_has_the_papers_parameters_to_the_last_digit(name: str) -> None:
    assert count(name) == PARAMETERS[name]


@pytest.mark.parametrize("name", MILLIONS)
def test_vit_has_the_papers_parameters_to_the_printed_digits(name: str) -> None:
    assert round(count(name) / 1e6, 2) == MILLIONS[name]


def test_every_named_size_is_listed_and_only_those() -> None:
    assert models() == sorted(models())
    assert set(PARAMETERS) | set(MILLIONS) <= set(models())
    assert all(isinstance(functions()[name], partial) for name in models())
    assert {"deit", "vit"} <= set(functions()) - set(models())
    assert frugalvit.models() == models()


def test_keywords_reach_the_model() -> None:
    spec = model("deit_tiny_patch16_224", classes=7, image=(64, 96), channels=1, patch=8, drop_path=0.2)
    assert (spec.classes, spec.image.height, spec.image.width, spec.image.channels) == (7, 64, 96, 1)
    assert spec.tokenizer.patch == 8
    assert spec.layers[-1].residual.drop == pytest.approx(0.2)
    assert spec == deit.deit_tiny_patch16_224(classes=7, image=(64, 96), channels=1, patch=8, drop_path=0.2)


def test_overrides_set_parameters_and_edit_the_spec() -> None:
    spec = model("vit_tiny_patch16_224", "depth=3", "image=32x48", "layers[2].attention.heads=6", "model.layers[3].mlp.ratio=2")
    assert len(spec.layers) == 5
    assert (spec.image.height, spec.image.width) == (32, 48)
    assert spec.layers[2].attention.heads == 6
    assert spec.layers[3].mlp.ratio == 2


def test_a_family_can_be_called_by_name_too() -> None:
    assert model("vit", "dim=12", "heads=3", "depth=1", "patch=4", "image=8") == vit.vit(
        dim=12, heads=3, depth=1, patch=4, image=8
    )


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("deit_tny_patch16_224", "", "no model is called 'deit_tny_patch16_224'. Did you mean 'deit_tiny_patch16_224'?"),
        ("deit_tiny", "", "Did you mean 'deit_tiny_distilled_patch16_224' or 'deit_tiny_patch16_224'?"),
        ("os", "", "no model is called 'os'"),
        ("deit_tiny_patch16_224", "clases=3", "deit_tiny_patch16_224: there is no parameter 'clases'. Did you mean 'classes'?"),
        ("deit_tiny_patch16_224", "classes=many", "deit_tiny_patch16_224.classes: 'many' does not fit here"),
        ("deit_tiny_patch16_224", "image=2x3x4", "deit_tiny_patch16_224.image: '2x3x4' does not fit here"),
        ("deit_tiny_patch16_224", "classes", "'classes' is not of the form name=value"),
        ("deit_tiny_patch16_224", "layers[2].x=1", "deit_tiny_patch16_224.layers[2]: Block has no field 'x'"),
        ("vit", "dim=12", "vit: heads, depth, patch must be given"),
    ],
)
def test_a_wrong_name_or_value_is_refused_with_the_nearest(name: str, override: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        model(name, *([override] if override else []))
    assert message in str(error.value)


def test_distillation_adds_a_token_and_a_head_behind_the_class_token() -> None:
    plain = deit.deit_tiny_patch16_224()
    distilled = with_distillation(plain)
    assert distilled == deit.deit_tiny_distilled_patch16_224()
    assert distilled.layers[0] == Join(("class", "distill"))
    assert distilled.readout == Tokens(("class", "distill"))
    with pytest.raises(SpecError, match="has a distillation token already"):
        with_distillation(distilled)


def test_lsa_changes_every_attention_once() -> None:
    plain = deit.deit_tiny_patch16_224()
    local = with_lsa(plain)
    assert {(block.attention.scale, block.attention.before) for block in local.layers[2:]} == {(LearnedScale(), (HideSelf(),))}
    assert with_lsa(local) == local
    assert with_lsa(with_distillation(plain)) == with_distillation(local)


def test_size_and_classes_can_be_changed_afterwards() -> None:
    spec = with_classes(resized(deit.deit_tiny_patch16_224(), (64, 96)), 7)
    assert spec == deit.deit_tiny_patch16_224(image=(64, 96), classes=7)


def test_a_name_can_end_in_changes() -> None:
    base = model("deit_tiny_patch16_224", classes=10)
    assert model("deit_tiny_patch16_224+spt+lsa", classes=10) == with_lsa(with_spt(base))
    assert model("deit_tiny_patch16_224+mean_readout+windows(7)", classes=10) == with_windows(with_mean_readout(base), 7)
    assert model("deit_tiny_patch16_224+gpsa(8, strength=0.5)", classes=10) == with_gpsa(base, 8, 0.5)
    assert len(model("deit_tiny_patch16_224+class_attention(1)", "depth=3").layers) == 1 + 3 + 1 + 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deit_tiny_patch16_224+lsb", "Did you mean 'lsa'"),
        ("deit_tiny_patch16_224+windows", "side must be given"),
        ("deit_tiny_patch16_224+windows(seven)", "a whole number"),
        ("deit_tiny_patch16_224+windows(7, 8)", "There is: side"),
        ("deit_tiny_patch16_224+lsa(3)", "It takes nothing"),
        ("resnet50+lsa", "this is ConvNet"),
        ("deit_tiny_patch16_22+lsa", "Did you mean 'deit_tiny_patch16_224'"),
    ],
)
def test_a_name_with_a_wrong_change_says_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        model(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cait_xxs24_224+class_attention(3)", "class attention already"),
        ("cait_xxs24_224+layer_scale(0.5)", "LayerScale already"),
        ("convit_tiny+gpsa(3)", "GPSA already"),
        ("swin_tiny_patch4_window7_224+windows(2)", "no grid without windows"),
        ("deit_tiny_patch16_224+class_attention(0)", "Use 1 and more"),
        ("deit_tiny_patch16_224+windows(7", "no closing bracket"),
        ("deit_tiny_patch16_224+windows(7, side=2)", "given twice"),
    ],
)
def test_an_argument_that_would_change_nothing_is_refused(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        model(name)


@pytest.mark.parametrize(
    ("name", "override", "message"),
    [
        ("cait_xxs24_224", "class_depth=0", "Use 1 and more"),
        ("swin_tiny_patch4_window7_224", "window=0", "Use 1 and more"),
        ("swin_tiny_patch4_window7_224", "depths=-1,2,2,2", "1 block and more"),
        ("small_swin_32", "heads=3", "one number a stage"),
        ("small_pit_32", "heads=2,4", "one number a stage"),
    ],
)
def test_odd_sizes_are_refused(name: str, override: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        model(name, override)
