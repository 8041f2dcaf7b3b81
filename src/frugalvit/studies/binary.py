"""What makes a binary transformer learn (Le & Li 2023, table 1): the ladder from a binary DeiT to BinaryViT, rung by rung.

The paper's figures are of ImageNet and stand beside ours for their order, not for their size.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from frugalvit.beginning import opened
from frugalvit.errors import SpecError, suggestion
from frugalvit.measure.cost import ModelCost, cost
from frugalvit.nn.architecture import Architecture
from frugalvit.report.statistics import Summary
from frugalvit.studies.distillation import about, cautions, own_accuracy, read
from frugalvit.studies.study import Claim, Study
from frugalvit.studies.trainings import Setup, trained
from frugalvit.training.recipe import Recipe, filled
from frugalvit.training.teacher import RunTeacher, TeacherSpec

TOP1, PAPER = "top-1", "the paper, ImageNet"
ROWS = {  # by the name of a rung in `binaryvit.cifar10`
    "deit": "binary DeiT",
    "mean": "+ average pooling",
    "pool": "+ pooling branches",
    "affine": "+ affine maps",
    "pyramid": "+ pyramid: BinaryViT",
    "star": "+ real merging: BinaryViT*",
}
TABLE_1 = {"deit": 48.5, "mean": 56.4, "pool": 60.2, "affine": 61.8, "pyramid": 67.7, "star": 70.6}  # top-1 of the paper


def ladder(rungs: Mapping[str, Recipe], others: Mapping[str, Recipe], setup: Setup) -> Study:
    """Table 1: two rungs or more, each with every seed, and what each gains over the one before; `others` with the first seed.

    The trainings are the names of both; `setup.only` may name some of them. Rungs stand in the order of the paper.
    """
    refuse_names(rungs, others, setup)
    ordered = {name: rungs[name] for name in ROWS if name in rungs}
    once = replace(setup, seeds=setup.seeds[:1])
    entries = trained(ordered, asked(setup, ordered)) | trained(others, asked(once, others))
    rows = {name: ROWS[name] for name in ordered} | {name: name for name in others}
    everyone = {**ordered, **others}
    steps = list(pairwise(ordered))
    study = Study(
        title="The ladder to BinaryViT (table 1)",
        about=about(setup, "A gain is over the row before, seed by seed, ± its standard error. OPs are BOPs / 64 + FLOPs."),
        rows=tuple(rows.values()),
        columns=(TOP1,),
        values={(row, TOP1): read(entries, name, "top1", setup) for name, row in rows.items()},
        claims=tuple(
            Claim(f"{ROWS[more]} above {ROWS[less]}", (ROWS[more], TOP1), (ROWS[less], TOP1), gain_of_paper(more, less))
            for less, more in steps
        ),
        notes=(*teachers(everyone, setup), *cautions(everyone, entries, setup)),
    )
    costs = {rows[name]: cost_of(recipe, setup) for name, recipe in everyone.items()}
    return replace(
        study,
        beside={
            "gain": {ROWS[more]: gain(study.difference((ROWS[more], TOP1), (ROWS[less], TOP1))) for less, more in steps},
            PAPER: {ROWS[name]: TABLE_1[name] for name in ordered},
            "its gain": {ROWS[more]: gain_of_paper(more, less) for less, more in steps},
            "parameters": {row: f"{one.parameters:,}" for row, one in costs.items()},
            "of 1 bit": {row: f"{one.bits / one.parameters:.1%}" for row, one in costs.items()},
            "OPs, M": {row: f"{one.ops / 1e6:.1f}" for row, one in costs.items()},
        },
    )


def refuse_names(rungs: Mapping[str, Recipe], others: Mapping[str, Recipe], setup: Setup) -> None:
    for name in rungs:
        if name not in ROWS:
            raise SpecError(f"no rung is called '{name}'. {suggestion(name, ROWS)}", path="rungs")
    if len(rungs) < 2:
        raise SpecError(f"{', '.join(rungs) or 'none'}. Give two and more of {', '.join(ROWS)}.", path="rungs")
    if taken := [name for name in others if name in ROWS or name in ROWS.values()]:
        raise SpecError(f"'{taken[0]}' is a rung. Give it another name.", path="others")
    for name in setup.only or ():
        if name not in (everyone := (*rungs, *others)):
            raise SpecError(f"no training is called '{name}'. {suggestion(name, everyone)}", path="only")


def asked(setup: Setup, trainings: Mapping[str, Recipe]) -> Setup:
    """The setup for some of the trainings."""
    return setup if setup.only is None else replace(setup, only=tuple(name for name in setup.only if name in trainings))


def gain(difference: Summary | None) -> str:
    if difference is None:
        return ""
    error = difference.standard_error
    return f"{difference.mean:+.2f}" + ("" if error is None else f" ± {error:.2f}")


def gain_of_paper(more: str, less: str) -> str:
    return f"{TABLE_1[more] - TABLE_1[less]:+.1f}"


def cost_of(recipe: Recipe, setup: Setup) -> ModelCost:
    return counted(filled(recipe, opened(recipe, setup.data)["train"]).model)


@functools.cache
def counted(model: Architecture) -> ModelCost:
    """Once a process: it takes seconds, and a study is made again after every piece."""
    return cost(model)


def taught_by(trainings: Mapping[str, Recipe]) -> dict[str, TeacherSpec]:
    return {name: one.teaching.teacher for name, one in trainings.items() if one.teaching is not None}


def teachers(trainings: Mapping[str, Recipe], setup: Setup) -> list[str]:
    """A line on each teacher, and on whom it taught where these are not all."""
    lines = []
    for teacher in dict.fromkeys(taught_by(trainings).values()):
        pupils = [name for name, one in taught_by(trainings).items() if one == teacher]
        own = own_accuracy(teacher, setup)
        whom = "all" if len(pupils) == len(trainings) else ", ".join(pupils)
        name = teacher.path if isinstance(teacher, RunTeacher) else "a model by name"
        lines.append(f"The teacher of {whom}: {name}{f', top-1 {own}' if own else ''}.")
    return lines or ["Nobody teaches: all learn the labels. The paper's models learn from a DeiT-S alone."]
