"""From a training to the same with a teacher: the ways of DeiT (Touvron et al. 2021, §4), of its release, of BinaryViT."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from frugalvit.errors import SpecError
from frugalvit.nn.foreign import ForeignModel
from frugalvit.nn.layers import Join
from frugalvit.nn.model import Model
from frugalvit.objective.distill import Distilled, HardLabel, LogitCrossEntropy, SoftKl
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.spec import shown
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import GIVE_IT, OnnxTeacher, RunTeacher, Teaching, ZooTeacher
from frugalvit.zoo.change import with_distillation

Way = Literal["token", "soft_token", "hard", "soft", "logits"]
SHARE, TEMPERATURE = 0.1, 3.0  # of soft distillation: the paper's λ and τ


def taught(recipe: Recipe, teaching: Teaching = Teaching(), way: Way | None = None) -> Recipe:
    """The recipe with a teacher. What it minimizes on the class head, smoothing included, stays; its other terms make room.

    Without a teacher's name it is for whoever is given to the training: `train(taught(recipe), teacher=module)`. Without a way
    a recipe that learns from a teacher already keeps all of its terms; any other takes token.
    token: ½ CE(class, y) + ½ CE(distill, argmax z_t), the distillation token learning from the teacher alone (eq. 3, §4);
    soft_token: ½ CE(class, y) + ½ τ² KL(softmax(z_t/τ) ‖ softmax(distill/τ)), what the release calls soft;
    hard: ½ CE(class, y) + ½ CE(class, argmax z_t);
    soft: (1 − λ) CE(class, y) + λ τ² KL(softmax(z_t/τ) ‖ softmax(class/τ)), λ = 0.1 and τ = 3 (eq. 2), mean over the batch;
    logits: CE(class, softmax(z_t)), no labels at all (BinaryViT's release).
    Deviation: the released code divides KL by the number of classes too (`SoftKl(..., "released")`), and its τ is 1.
    """
    if not isinstance(recipe, Recipe):
        name = recipe if isinstance(recipe, str) else "vit.digits"
        raise SpecError(f"{shown(recipe)} is no Recipe. Say frugalvit.recipe({name!r}).", path="recipe")
    if not isinstance(teaching, Teaching):
        named = "For a teacher by name say Teaching(RunTeacher('runs/teacher'))."
        raise SpecError(f"{shown(teaching)} is no Teaching. {named} One of your own: {GIVE_IT}", path="teaching")
    if way is None and recipe.objective.needs_teacher:
        return replace(recipe, teaching=teaching)
    way = way or "token"
    if way == "logits":
        return replace(recipe, objective=Objective((Distilled("class", LogitCrossEntropy(), 1.0),)), teaching=teaching)
    labels = class_loss(recipe)
    match way:
        case "token" | "soft_token":
            how = HardLabel() if way == "token" else SoftKl(TEMPERATURE, "batchmean")
            terms = (replace(labels, weight=0.5), Distilled("distill", how, 0.5))
            return replace(recipe, model=two_headed(recipe), objective=Objective(terms), teaching=teaching)
        case "hard":
            terms = (replace(labels, weight=0.5), Distilled("class", HardLabel(), 0.5))
        case "soft":
            soft = Distilled("class", SoftKl(TEMPERATURE, "batchmean"), SHARE)
            terms = (replace(labels, weight=1 - SHARE), soft)
        case _:
            raise SpecError(f"'{way}' is no way to learn from a teacher. Use {', '.join(get_args(Way))}.", path="way")
    return replace(recipe, objective=Objective(terms), teaching=teaching)


def named_teacher(name: str) -> RunTeacher | OnnxTeacher | ZooTeacher:
    """A run's folder, which is there or has a slash in it (`runs/teacher`), a file that ends in .onnx, or a model by name."""
    if Path(name).suffix == ".onnx":
        return OnnxTeacher(name)
    return ZooTeacher(name) if Path(name).name == name and not Path(name).is_dir() else RunTeacher(name)


def class_loss(recipe: Recipe) -> Supervised:
    """The term of the class head."""
    for term in recipe.objective.terms:
        if isinstance(term, Supervised) and term.head == "class":
            return term
    cure = "Add Supervised('class'), or learn from the teacher alone: logits (--way logits)."
    raise SpecError(f"no term teaches the class head the true labels. {cure}", path="recipe.objective")


def two_headed(recipe: Recipe) -> Model:
    model = recipe.model
    if "distill" in model.heads:
        assert isinstance(model, Model)
        return model
    if not isinstance(model, Model):
        ours = ""
        if isinstance(model, ForeignModel):
            ours = " Models of timm and torchvision cannot be changed; ours are named without `timm:` (`list models`)."
        raise SpecError(
            f"{type(model).__name__} has no tokens, so none for a teacher. Use hard, soft or logits.{ours}", path="recipe.model"
        )
    if not any(isinstance(layer, Join) and "class" in layer.names for layer in model.layers):
        raise SpecError(
            "the model has no class token, beside which a distillation token would join. Learn by its class head instead: "
            "hard, soft or logits (--way hard). Or give it one by with_class_attention.",
            path="recipe.model",
        )
    return with_distillation(model)
