"""From a recipe and its data to something that can step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction as Ratio
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from frugalvit.data.order import steps_per_epoch
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.randomness import Stream, key
from frugalvit.data.source import Source
from frugalvit.errors import SpecError, at
from frugalvit.nn.convnet import ConvNet
from frugalvit.nn.network import Network, seeded
from frugalvit.nn.own import Wrapped, logit_heads, tried
from frugalvit.training.average import Average
from frugalvit.training.devices import Place
from frugalvit.training.duration import total_steps
from frugalvit.training.evaluate import Framed
from frugalvit.training.filed_answers import filed_answers
from frugalvit.training.graph_step import GraphStep
from frugalvit.training.loop import Cadence, cadence_of
from frugalvit.training.one_bit import place_of_bits
from frugalvit.training.optimizer import parameter_groups, peak_lr
from frugalvit.training.own import refuse_objective
from frugalvit.training.paths import Batches, Progress, stored, way_for, with_path
from frugalvit.training.recipe import Recipe, filled, preprocess_of
from frugalvit.training.schedule import Clock
from frugalvit.training.state import State
from frugalvit.training.step import Step
from frugalvit.training.teacher import Teacher
from frugalvit.training.teacher_check import check_teacher


@dataclass(frozen=True)
class Training:
    """All that a recipe became."""

    recipe: Recipe  # with the number of classes and the path filled in
    sources: Mapping[str, Source]
    preprocess: Preprocess
    place: Place
    clock: Clock
    cadence: Cadence
    state: State
    step: Step
    batches: Batches
    note: str  # on the path that was chosen
    framed: Mapping[str, Framed]  # the splits that are measured
    answering: tuple[str, ...]  # the heads that learn, and so may answer


MOST_TIMES = 64  # that a picture may be in a batch: more is a mistake, and memory runs out


def unwatched(done: int, total: int) -> None:
    """Progress that nobody looks at."""


def prepare(
    recipe: Recipe,
    sources: Mapping[str, Source],
    place: Place,
    *,
    module: Network | None = None,
    objective: nn.Module | None = None,
    teacher: Teacher | None = None,
    workers: int = 0,
    progress: Progress = unwatched,
) -> Training:
    """Build what is not given ready-made, and put it on the device.

    Where pictures are to be decoded once, `workers` processes do it, and `progress` is told how far they are.
    """
    train = sources["train"]
    if recipe.data.validate == "test":
        if "test" not in sources:
            raise SpecError("there is no test split beside the validation pictures. Use val.", path="recipe.data.validate")
        sources = {**sources, "val": sources["test"]}
    recipe = filled(recipe, train)
    if recipe.stop is not None and "val" not in sources:
        raise SpecError(
            "early stopping needs a validation split, and there is none. Hold some out, or use none.", path="recipe.stop"
        )
    if recipe.batch > MOST_TIMES * len(train):
        raise SpecError(
            f"{recipe.batch:,} pictures, and there are {len(train):,}: each would be in a batch {recipe.batch // len(train)} "
            f"times. Use {len(train)} or fewer.",
            path="recipe.batch",
        )
    per_epoch = Ratio(steps_per_epoch(recipe.data.order, train.labels, recipe.batch), recipe.accumulate)
    clock = Clock(total_steps(recipe.duration, per_epoch), per_epoch)
    taps = recipe.objective.student_taps if objective is None else ()
    module = module or recipe.model.build(taps=taps, seed=key(recipe.seed, Stream.INIT) >> 1)
    module.to(place.device).train()
    place = place_of_bits(module, place)
    if place.device.type == "cuda" and isinstance(recipe.model, ConvNet):
        module.to(memory_format=torch.channels_last)  # as its kernels read pictures; shapes and numbers are the same
    counts_C = torch.from_numpy(np.bincount(train.labels, minlength=len(train.classes)))
    heads, asked = recipe.model.heads, isinstance(module, Wrapped) or objective is not None or teacher is not None
    outputs = tried(module, recipe.model.image) if asked else {}
    module.stream = place.stream  # from here on it wants autocast around it
    if isinstance(module, Wrapped):
        heads = logit_heads(outputs, len(train.classes))
    answering = tuple(head for head in heads if objective is not None or head in recipe.objective.heads)
    if isinstance(module, Wrapped):
        module.answering = answering
    if objective is None:
        objective = built_objective(recipe, heads, outputs, counts_C, teacher)
    elif teacher is None:
        refuse_objective(objective.to(place.device), outputs, recipe.model.image, len(train.classes))
    objective = objective.to(place.device)
    groups = parameter_groups(module, recipe.optimizer, recipe.tune)
    module.train()  # a norm of others that does not learn keeps its statistics from here on
    learned = {f"objective.{name}": one for name, one in objective.named_parameters() if one.requires_grad}
    if learned:
        groups.append({"params": list(learned.values()), "names": list(learned), "scale": 1.0, "weight_decay": 0.0})
    optimizer = recipe.optimizer.build(groups, peak_lr(recipe.optimizer, recipe.pictures))
    average = Average(recipe.average.within(clock.total), module) if recipe.average else None
    scaler = torch.amp.GradScaler(place.device.type) if place.scales_loss else None
    state = State(module, objective, optimizer, average, scaler)
    preprocess = preprocess_of(recipe)
    way = way_for(recipe, train, preprocess, place, teacher, workers, progress)
    recipe = with_path(recipe, way)
    step = (
        Step(recipe, state, place, clock, preprocess, teacher)
        if way.path == "plain"
        else GraphStep(recipe, state, place, clock, preprocess, teacher, way.kept)
    )
    framed = {name: Framed(one, preprocess, place) for name, one in sources.items() if name != "train"}
    if teacher is not None and recipe.teaching is not None and recipe.teaching.file:
        if "val" in framed and not Path(recipe.teaching.file).exists():  # who may not teach is not asked about all pictures
            with at("recipe.teaching"):
                check_teacher(teacher, framed["val"], recipe.teaching.least, workers)
        store = recipe.data.store  # opened once more, for it may hold other pixels than the pictures it was made of
        seen = train if store is None else stored(store, train, preprocess.mode, place, workers, progress)
        step.filed = filed_answers(teacher, recipe, seen, preprocess, Path(recipe.teaching.file)).to(place.device)
    cadence = cadence_of(recipe, clock)
    return Training(recipe, sources, preprocess, place, clock, cadence, state, step, way.batches, way.note, framed, answering)


def built_objective(
    recipe: Recipe, heads: tuple[str, ...], outputs: Mapping[str, Tensor], counts_C: Tensor, teacher: Teacher | None
) -> nn.Module:
    """The objective; terms with parameters of their own start from the seed alone."""
    objective = recipe.objective
    with seeded(key(recipe.seed, Stream.INIT, 1) >> 1):
        if not objective.needs_teacher or teacher is None:
            return objective.build(heads, counts_C)
        shapes = {name: tuple(value.shape[1:]) for name, value in outputs.items()}
        return objective.build(heads, counts_C, shapes, teacher.shapes())
