"""BinaryViT's recipes are what its release says; the rungs are the zoo's; guards, stages and bits are reachable by a word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
from benchmarks.binary_ladder import TWINS

from frugalvit.beginning import opened
from frugalvit.data.augment import Augment, Flip, ResizedCrop
from frugalvit.data.mix import NoMix
from frugalvit.errors import SpecError
from frugalvit.first_weights import initialized
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_linear import CenteredSigns, FullPrecision, RealWeights, Signs
from frugalvit.nn.quantize import OneBit
from frugalvit.nn.residual import Plain
from frugalvit.objective.distill import Distilled, LogitCrossEntropy
from frugalvit.recipes.binaryvit import Rung, cifar10, cifar10_reactnet, digits, imagenet, imagenet_activations
from frugalvit.recipes.find import recipe
from frugalvit.run import train
from frugalvit.spec import swap
from frugalvit.training.devices import place_for
from frugalvit.training.duration import Epochs
from frugalvit.training.optimizer import AdamW, peak_lr
from frugalvit.training.prepare import prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Clock
from frugalvit.training.teacher import RunTeacher, Teaching, ZooTeacher
from frugalvit.zoo.find import model

ROOT = Path(__file__).parents[2]
FLAT = {"deit": "", "mean": "_mean", "pool": "_pool", "affine": "_affine"}
LOGITS = (Distilled("class", LogitCrossEntropy(), 1.0),)
TINY = ("dim=8", "epochs=1", "data.subset=SeededFraction(0.15)", "schedule.warmup=Steps(1)")


def changed(one: Recipe, other: Recipe) -> set[str]:
    return {name for name in Recipe.__dataclass_fields__ if getattr(one, name) != getattr(other, name)}


def found(spec: Architecture, *kinds: type) -> list[object]:
    """Every part of those kinds."""
    parts: list[object] = []

    def seen(one: object) -> object:
        parts.append(one)
        return one

    swap(spec, kinds, seen)
    return parts


def sizes(spec: Architecture) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: value.shape for name, value in replace(spec, classes=10).build().state_dict().items()}


def test_imagenet_is_trained_as_released() -> None:
    made = imagenet()
    assert (made.duration, made.batch, made.clip, made.average, made.accumulate) == (Epochs(300), 512, None, None, 1)
    assert isinstance(made.optimizer, AdamW)
    assert (made.optimizer.weight_decay, made.optimizer.betas, made.optimizer.eps) == (0.0, (0.9, 0.999), 1e-8)
    assert peak_lr(made.optimizer, made.pictures) == 5e-4
    assert made.data.augment == Augment((ResizedCrop((0.08, 1.0), interpolation="bilinear"), Flip(0.5)))
    assert (made.data.mix, made.data.erase, made.data.crop, made.data.interpolation) == (NoMix(), None, 0.875, "bicubic")
    assert made.objective.terms == LOGITS  # labels are not among what is learned
    assert made.teaching == Teaching(ZooTeacher("deit_small_patch16_224"))


def test_the_rate_falls_by_a_cosine_from_the_first_epoch_to_a_hundred_thousandth() -> None:
    """lr_scheduler.step(epoch) behind each epoch: the first two are trained at the peak, epoch e at the cosine of e − 1."""
    schedule, clock = imagenet().schedule, Clock(300 * 7, 7)
    rates = [schedule.lr(7 * epoch + 3, 5e-4, clock) for epoch in range(300)]
    assert rates[0] == rates[1] == 5e-4
    assert rates[151] == pytest.approx(1e-5 + 4.9e-4 / 2)
    assert rates == sorted(rates, reverse=True) and 1e-5 < rates[-1] < 1.01e-5 + 1e-7


@pytest.mark.parametrize("rung", get_args(Rung))
def test_a_rung_is_the_model_that_the_zoo_has_by_name(rung: Rung) -> None:
    star = "_star" if rung == "star" else ""
    small = f"binary_deit_small_patch16_224{FLAT[rung]}" if rung in FLAT else f"binaryvit_small_patch4_224{star}"
    tiny = f"binary_deit_tiny_patch4_32{FLAT[rung]}" if rung in FLAT else f"binaryvit_tiny_patch2_32{star}"
    assert imagenet(rung=rung).model == model(small)
    assert replace(cifar10(rung=rung, step=0.005).model, classes=10) == model(tiny)
    assert changed(imagenet(rung=rung), imagenet()) <= {"model"}
    assert changed(cifar10(rung=rung), cifar10()) <= {"model"} and changed(digits(rung=rung), digits()) <= {"model"}


def test_the_first_stage_has_real_weights_that_decay_and_differs_in_nothing_else() -> None:
    first, second = imagenet_activations(), imagenet()
    assert changed(first, second) == {"model", "optimizer"}
    assert first.optimizer == AdamW(5e-4, per=512, weight_decay=1e-5)
    assert set(found(first.model, CenteredSigns, Signs, RealWeights)) == {RealWeights()}
    assert set(found(second.model, CenteredSigns, Signs, RealWeights)) == {CenteredSigns(), Signs()}
    assert sizes(cifar10(bits="activations").model) == sizes(cifar10().model)
    one, other = cifar10_reactnet(bits="activations"), cifar10_reactnet()
    assert changed(one, other) == {"model", "optimizer"} and sizes(one.model) == sizes(other.model)


@pytest.mark.parametrize(("rung", "bits"), [("deit", "activations"), ("pyramid", "activations"), ("star", "none")])
def test_the_second_stage_begins_with_every_weight_of_the_first(rung: str, bits: str, tmp_path: Path) -> None:
    first = train(recipe("binaryvit.digits", f"rung={rung}", f"bits={bits}", *TINY), out=tmp_path / "first", device="cpu")
    second = recipe("binaryvit.digits", f"rung={rung}", *TINY)
    training = prepare(second, opened(second, None), place_for("cpu", "fp32"))
    assert initialized(training, str(tmp_path / "first"), "") == []
    assert first.classifier is not None
    ours, theirs = training.state.module.state_dict(), first.classifier.module.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert any(isinstance(one, OneBit) for one in training.state.module.modules())


def test_guards_are_a_word_away_and_off_as_in_the_paper() -> None:
    kinds = CenteredSigns, Signs
    for made in (imagenet(), cifar10(), digits(), cifar10_reactnet()):
        assert {one.damping for one in found(made.model, *kinds)} == {0.0}
    for name in ("imagenet", "cifar10", "digits", "cifar10_reactnet"):
        made = recipe(f"binaryvit.{name}", "damping=1e-3")
        assert {one.damping for one in found(made.model, *kinds)} == {1e-3}
    stepped = recipe("binaryvit.cifar10", "step=0.1")
    assert {one.step for one in found(stepped.model, BinaryAttention)} == {0.1}
    one = recipe("binaryvit.cifar10", "model.layers[2].mlp.linear.weights.damping=0.5")
    assert sorted({part.damping for part in found(one.model, *kinds)}) == [0.0, 0.5]
    with pytest.raises(SpecError, match="damping of -1"):
        recipe("binaryvit.cifar10", "damping=-1")


@pytest.mark.parametrize("name", ["digits", "cifar10", "cifar10_reactnet"])
def test_damping_is_refused_where_weights_stay_real(name: str) -> None:
    for bits in ("activations", "none") if name != "cifar10_reactnet" else ("activations",):
        with pytest.raises(SpecError, match=rf"damping: 0\.1 would .* which bits={bits} does not use.* or use bits=both"):
            recipe(f"binaryvit.{name}", f"bits={bits}", "damping=0.1")
        assert recipe(f"binaryvit.{name}", f"bits={bits}", "damping=0")


def test_the_docs_train_another_models_one_bit_form_without_what_they_say_harms_signs() -> None:
    page = (ROOT / "docs/binary.md").read_text(encoding="utf-8")
    words = page.split("$ frugalvit train transfer.folder ")[1].split(" --data")[0].replace("\\\n", " ").split()
    made, ours = recipe("transfer.folder", *words), cifar10()
    assert found(made.model, BinaryAttention)
    for one in (made, ours):
        assert isinstance(one.optimizer, AdamW)
        assert (one.optimizer.weight_decay, one.optimizer.layer_decay, one.clip, one.average) == (0.0, 1.0, None, None)
        assert {part.drop for part in found(one.model, Plain)} == {0.0}


def test_the_page_of_the_ladder_says_how_its_twins_were_rounded() -> None:
    assert "bf16 autocast" in TWINS and TWINS in (ROOT / "docs/results/binary_ladder.md").read_text(encoding="utf-8")


def test_small_models_learn_labels_or_a_teachers_probabilities_alone() -> None:
    plain, taught = cifar10(), recipe("binaryvit.cifar10", "teacher=runs/convnet")
    assert changed(plain, taught) == {"objective", "teaching"}
    assert (taught.objective.terms, taught.teaching) == (LOGITS, Teaching(RunTeacher("runs/convnet")))
    assert {term.head for term in plain.objective.terms} == {"class"} and plain.teaching is None
    assert plain.data.dataset == recipe("convnet.cifar10").data.dataset  # so that student and teacher hold out the same
    for made in (plain, cifar10_reactnet(), digits()):
        assert isinstance(made.optimizer, AdamW) and made.optimizer.weight_decay == 0.0
        assert made.average is None and made.data.mix == NoMix()


def test_the_twin_is_trained_as_its_model_and_has_no_bit() -> None:
    twin = cifar10(rung="affine", bits="none")
    assert changed(twin, cifar10(rung="affine")) == {"model"}
    assert set(found(twin.model, CenteredSigns, Signs, RealWeights, FullPrecision)) == {FullPrecision()}
    assert sizes(twin.model) == sizes(cifar10(rung="affine").model)


def test_reactnets_are_compared_on_equal_terms() -> None:
    for name in ("reactnet_a_32", "react_resnet18_32"):
        made = cifar10_reactnet(model=name)
        assert changed(made, cifar10()) == {"model"}
        assert (made.model.image.height, made.model.classes) == (32, None)
