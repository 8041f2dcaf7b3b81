"""The recipes that have a teacher: DeiT's as published, and our small ones."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import frugalvit
from frugalvit.errors import FrugalError
from frugalvit.nn.model import Model
from frugalvit.nn.shape import Image
from frugalvit.objective.distill import Distilled, HardLabel
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.objective import Supervised
from frugalvit.recipes import deit, few_digits
from frugalvit.recipes.find import recipe
from frugalvit.run import fit, train
from frugalvit.training.duration import Epochs
from frugalvit.training.optimizer import AdamW, Sgd, peak_lr
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Constant
from frugalvit.training.teacher import RunTeacher, Teaching, ZooTeacher
from frugalvit.training.tune import HeadsAndLastNorm
from frugalvit.zoo.change import with_distillation

HALVES = (Supervised("class", CrossEntropy(0.1), 0.5), Distilled("distill", HardLabel(), 0.5))


def changed(one: Recipe, other: Recipe) -> set[str]:
    return {name for name in Recipe.__dataclass_fields__ if getattr(one, name) != getattr(other, name)}


@pytest.mark.parametrize("size", ["tiny", "small", "base"])
def test_deit_is_distilled_as_it_is_trained_but_for_its_loss(size: str) -> None:
    name = f"deit_{size}_distilled_patch16_224"
    made = deit.imagenet_distilled(model=name)
    assert changed(made, deit.imagenet(model=name)) == {"objective", "teaching"}
    assert made.model.heads == ("class", "distill")
    assert made.objective.terms == HALVES
    assert made.teaching == Teaching(ZooTeacher("regnety_160"))
    assert (made.duration, made.batch, peak_lr(made.optimizer, made.pictures)) == (Epochs(300), 1024, pytest.approx(1e-3))


def test_a_thousand_epochs_change_nothing_else() -> None:
    made = recipe("deit.imagenet_distilled", "epochs=1000")
    assert changed(made, deit.imagenet_distilled()) == {"duration"}
    assert made.duration == Epochs(1000)


def test_a_model_without_the_token_is_given_it() -> None:
    made = deit.imagenet_distilled(model="deit_tiny_patch16_224")
    assert made.model.heads == ("class", "distill")
    assert made.objective.terms == HALVES


def test_fine_tuning_keeps_the_teacher_and_shows_it_pictures_of_the_new_size() -> None:
    made = deit.imagenet_384_distilled()
    assert changed(made, deit.imagenet_384(model="deit_base_distilled_patch16_384")) == {"objective", "teaching"}
    assert made.objective.terms == HALVES
    assert made.teaching == Teaching(ZooTeacher("regnety_160", size=(384, 384)))
    assert (made.optimizer, made.schedule) == (AdamW(5e-6, per=512, weight_decay=1e-8), Constant(Epochs(5), start=1e-6))
    run = deit.imagenet_384_distilled(teacher="runs/fixres")
    assert run.teaching == Teaching(RunTeacher("runs/fixres", size=(384, 384)))


def test_the_small_deit_learns_cifar10_from_the_convnet_that_the_docstring_names() -> None:
    plain = deit.tiny_cifar10()
    made = recipe("deit.cifar10_distilled", "teacher=runs/mine", "epochs=7")
    assert isinstance(plain.model, Model)
    assert changed(made, plain) == {"model", "data", "objective", "teaching", "duration"}
    assert made.model == with_distillation(plain.model)
    assert made.data == replace(plain.data, dataset=recipe("convnet.cifar10").data.dataset)
    assert made.teaching == Teaching(RunTeacher("runs/mine"))


def test_the_student_of_few_digits_is_the_one_that_learns_alone() -> None:
    alone, taught = few_digits.vit(), few_digits.distilled()
    assert changed(alone, taught) == {"model", "data", "objective", "teaching"}
    assert isinstance(alone.model, Model)
    assert taught.model == with_distillation(alone.model)
    assert taught.data == replace(alone.data, mix=few_digits.resnet().data.mix)
    assert alone.model == recipe("vit.digits").model


def test_a_student_of_few_digits_learns_from_a_trained_teacher(tmp_path: Path) -> None:
    train(few_digits.resnet(epochs=1), out=tmp_path / "teacher", device="cpu")
    made = few_digits.distilled(teacher=str(tmp_path / "teacher"))
    (record,) = itertools.islice(fit(replace(made, log_every=1), device="cpu"), 1)
    assert torch.tensor(record.values["loss"]).isfinite()
    assert {"supervised_class", "distilled_distill"} <= set(record.values)


def test_a_teacher_that_is_not_there_is_named_before_any_training() -> None:
    with pytest.raises(FrugalError, match="runs/nobody"):
        fit(few_digits.distilled(teacher="runs/nobody"), device="cpu")


def test_the_teacher_of_384_pixels_is_fitted_to_them_by_its_heads_and_last_norm() -> None:
    made = recipe("deit.imagenet_384_teacher")
    released = frugalvit.model("regnety_160")
    assert made.model == replace(released, image=Image(384, 384)) and made.tune == HeadsAndLastNorm()
    assert made.optimizer == Sgd(8e-3, per=512, weight_decay=1e-4)  # FixRes's release: 8 x 1e-3 x pictures / 512
    assert recipe("deit.imagenet_384_teacher", "model=resnet50", "image=320").model.image == Image(320, 320)
