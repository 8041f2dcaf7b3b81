"""A recipe with a teacher: what changes, and what does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import frugalvit
from frugalvit.errors import SpecError
from frugalvit.objective.distill import Distilled, HardLabel, LogitCrossEntropy, SoftKl
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.match import MatchedTokens
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.find import recipe
from frugalvit.recipes.teach import named_teacher, taught
from frugalvit.spec import decode, encode
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import GivenTeacher, ReadyTeacher, RunTeacher, Teaching, ZooTeacher

TEACHING = Teaching(RunTeacher("runs/teacher"), least=90.0)


def test_a_token_learns_from_the_teacher_alone() -> None:
    plain = recipe("vit.digits")
    made = taught(plain, TEACHING)
    assert made.model.heads == ("class", "distill") and plain.model.heads == ("class",)
    assert made.objective.terms == (Supervised("class", CrossEntropy(0.1), 0.5), Distilled("distill", HardLabel(), 0.5))
    assert replace(made, model=plain.model, objective=plain.objective, teaching=None) == plain


def test_hard_and_soft_read_the_class_head() -> None:
    hard, soft = (taught(recipe("vit.digits"), TEACHING, way) for way in ("hard", "soft"))  # type: ignore[arg-type]
    assert hard.model.heads == soft.model.heads == ("class",)
    assert hard.objective.terms[1] == Distilled("class", HardLabel(), 0.5)
    assert soft.objective.terms == (
        Supervised("class", CrossEntropy(0.1), 0.9),
        Distilled("class", SoftKl(3.0, "batchmean"), 0.1),
    )


def test_a_token_can_learn_probabilities_too() -> None:
    token, soft = (taught(recipe("vit.digits"), TEACHING, way) for way in ("token", "soft_token"))  # type: ignore[arg-type]
    assert soft.objective.terms == (token.objective.terms[0], Distilled("distill", SoftKl(3.0, "batchmean"), 0.5))
    assert replace(soft, objective=token.objective) == token


@pytest.mark.parametrize("folder", ["runs/teacher", "./teacher", "/data/teacher"])
def test_a_path_is_a_run_and_any_other_name_a_model(folder: str) -> None:
    assert named_teacher(folder) == RunTeacher(folder)
    assert named_teacher("regnety_160") == ZooTeacher("regnety_160")
    assert named_teacher("timm:resnet50") == ZooTeacher("timm:resnet50")


def test_a_folder_that_is_there_needs_no_slash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named_teacher("mine") == ZooTeacher("mine")
    (tmp_path / "mine").mkdir()
    assert named_teacher("mine") == RunTeacher("mine")


def test_a_distilled_model_keeps_its_token_and_the_recipe_survives_json() -> None:
    made = taught(recipe("deit.digits"), TEACHING)
    assert made.model == recipe("deit.digits").model
    assert decode(encode(made), Recipe) == made


def test_a_model_that_reads_the_mean_is_taught_by_its_class_head() -> None:
    with pytest.raises(SpecError, match=r"no class token.* hard, soft or logits \(--way hard\)"):
        taught(recipe("small.best_cifar10"), TEACHING, "token")
    assert taught(recipe("small.best_cifar10"), TEACHING, "hard").model == recipe("small.best_cifar10").model


def test_convnets_have_no_token_and_some_recipes_no_labels() -> None:
    with pytest.raises(SpecError, match=r"has no tokens, so none for a teacher\. Use hard, soft or logits"):
        taught(recipe("digits.resnet"), TEACHING)
    assert taught(recipe("digits.resnet"), TEACHING, "soft").teaching == TEACHING
    unlabeled = replace(recipe("vit.digits"), objective=Objective((Distilled("class"),)))
    with pytest.raises(SpecError, match="no term teaches the class head"):
        taught(unlabeled, TEACHING, "token")
    foreign = replace(recipe("vit.digits"), model=frugalvit.model("timm:test_vit", classes=10))
    with pytest.raises(SpecError, match=r"ForeignModel has no tokens.* ours are named without `timm:`"):
        taught(foreign, TEACHING)


def test_a_recipe_that_learns_from_a_teacher_keeps_its_terms_unless_a_way_is_said() -> None:
    matched = MatchedTokens("tokens[3]", "maps[2]", 0.1)
    own = taught(recipe("vit.digits"), way="soft_token")
    own = replace(own, objective=Objective((*own.objective.terms, matched)))
    kept = taught(own, TEACHING)
    assert kept == replace(own, teaching=TEACHING)
    assert taught(own, TEACHING, "hard").objective == taught(recipe("vit.digits"), TEACHING, "hard").objective


def test_logits_alone_weigh_as_much_as_labels_alone() -> None:
    (term,) = taught(recipe("binaryvit.digits"), TEACHING, "logits").objective.terms
    assert term == Distilled("class", LogitCrossEntropy(), 1.0)
    (released,) = recipe("binaryvit.digits", "teacher=runs/teacher").objective.terms
    assert term == released
    with pytest.raises(SpecError, match="Use token, soft_token, hard, soft, logits"):
        taught(recipe("vit.digits"), TEACHING, "feature")  # type: ignore[arg-type]


def test_without_a_name_the_teacher_is_whoever_is_given_to_the_training() -> None:
    made = taught(recipe("vit.digits"), way="soft")
    assert made == taught(recipe("vit.digits"), Teaching(GivenTeacher()), "soft") and decode(encode(made), Recipe) == made


@pytest.mark.parametrize("one", [nn.Flatten(), ReadyTeacher(nn.Flatten()), len])
def test_a_module_in_a_recipe_is_refused_with_the_way_to_give_it(one: Any) -> None:
    cure = r"taught\(recipe\), and give it to the training: train\(\.\.\., teacher=module\)"
    with pytest.raises(SpecError, match=rf"teacher: .* no part of a recipe.* {cure}"):
        Teaching(one)
    with pytest.raises(SpecError, match=rf"teaching: .* is no Teaching.* {cure}"):
        taught(recipe("vit.digits"), one)


@pytest.mark.parametrize(("one", "name"), [("vit.digits", "vit.digits"), ("runs/plain", "runs/plain"), (None, "vit.digits")])
def test_a_name_in_place_of_a_recipe_is_refused_with_the_way_to_it(one: Any, name: str) -> None:
    with pytest.raises(SpecError, match=rf"^recipe: {one!r} is no Recipe\. Say frugalvit\.recipe\('{name}'\)\.$"):
        taught(one)
