"""What DeiT found out about distillation (Touvron et al. 2021, §5): how to learn from a teacher, from whom, and for how long.

The paper's figures are of ImageNet and stand beside ours for their order, not for their size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from frugalvit.errors import SpecError
from frugalvit.recipes.teach import Way, taught
from frugalvit.report.record import RunFolder
from frugalvit.studies.study import Claim, Study, figure
from frugalvit.studies.trainings import Entries, Setup, described, pictures, taught_by_another, trained
from frugalvit.training.duration import Epochs
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import RunTeacher, TeacherSpec, Teaching

Method = Literal["none", "soft", "hard", "token"]
METHODS: tuple[Method, ...] = ("none", "soft", "hard", "token")

TOP1, STUDENT, NO_TEACHER = "top-1", "student", "no teacher"
NONE, SOFT, HARD = "no distillation", "soft", "hard"
CLASS, DISTILL, BOTH = "token, class head", "token, distill head", "token, both heads"
READ: dict[str, tuple[Method, str]] = {  # a row of the ablation: which training, and which of its results
    NONE: ("none", "top1"),
    SOFT: ("soft", "top1"),
    HARD: ("hard", "top1"),
    CLASS: ("token", "top1_class"),
    DISTILL: ("token", "top1_distill"),
    BOTH: ("token", "top1"),
}
TABLE_3 = {  # of the paper: 300 epochs at 224 pixels
    "DeiT-Ti, ImageNet": {NONE: 72.2, SOFT: 72.2, HARD: 74.3, CLASS: 73.9, DISTILL: 74.6, BOTH: 74.5},
    "DeiT-S, ImageNet": {NONE: 79.8, SOFT: 79.8, HARD: 80.9, CLASS: 80.9, DISTILL: 81.1, BOTH: 81.2},
    "DeiT-B, ImageNet": {NONE: 81.8, SOFT: 81.8, HARD: 83.0, CLASS: 83.0, DISTILL: 83.1, BOTH: 83.4},
}
TABLE_2 = {  # of the paper: the teacher's own accuracy, and that of DeiT-B taught by it
    "none": (None, 81.8),
    "DeiT-B, a transformer": (81.8, 81.9),
    "RegNetY-4GF, a convnet": (80.0, 82.7),
    "RegNetY-8GF, a convnet": (81.7, 82.7),
    "RegNetY-12GF, a convnet": (82.4, 83.1),
    "RegNetY-16GF, a convnet": (82.9, 83.1),
}
FIGURE_3 = {  # of the paper: DeiT-B at 224 pixels, by epochs
    "DeiT-B, ImageNet, 300": {"none": 81.8, "soft": 81.8, "hard": 83.0, "token": 83.4},
    "500": {"soft": 82.2, "hard": 83.8, "token": 84.1},
    "800": {"soft": 81.6, "hard": 84.1, "token": 84.2},
    "1000": {"soft": 81.8, "hard": 84.1, "token": 84.2},
}


def ablation(
    student: Recipe,
    teacher: TeacherSpec,
    setup: Setup,
    others: Mapping[Method, TeacherSpec] | None = None,
    methods: tuple[Method, ...] = METHODS,
) -> Study:
    """Table 3: no teacher, soft and hard labels on the class head, and a token of its own, by the head that answers.

    The trainings are `methods`, all but token for students without tokens; `setup.only` may name some of them. `others` teach
    the ways that they are named by: where a teacher is gone, say, and another training of its recipe goes on.
    """
    refuse_distilled(student)
    trainings: dict[str, Recipe] = {
        method: with_teacher(student, (others or {}).get(method, teacher), method) for method in methods
    }
    entries = trained(trainings, setup)
    rows = tuple(row for row, (method, _) in READ.items() if method in methods)
    values = {(row, TOP1): read(entries, *READ[row], setup) for row in rows}
    orders = ((HARD, NONE), (HARD, SOFT), (SOFT, NONE), (BOTH, HARD), (DISTILL, CLASS), (BOTH, NONE))
    return Study(
        title="Ways of learning from a teacher (DeiT, table 3)",
        about=about(setup, "Both heads together: the mean of their logits, as in the released code; the paper adds softmaxes."),
        rows=rows,
        columns=(TOP1,),
        values=values,
        claims=tuple(
            Claim(f"{more} above {less}", (more, TOP1), (less, TOP1), differences(more, less))
            for more, less in orders
            if {more, less} <= set(rows)
        ),
        beside={model: {row: column[row] for row in rows} for model, column in TABLE_3.items()},
        notes=(*several_teachers(trainings, setup), *cautions(trainings, entries, setup)),
    )


def teachers(
    student: Recipe, convnets: Mapping[str, TeacherSpec], transformers: Mapping[str, TeacherSpec], setup: Setup
) -> Study:
    """Table 2: students with a token, taught by convolutional networks and by transformers, which are given by name.

    The trainings are none and the teachers' names.
    """
    refuse_distilled(student)
    everyone = {**convnets, **transformers}
    if len(everyone) < len(convnets) + len(transformers) or {NO_TEACHER, "none"} & set(everyone):
        raise SpecError(f"{', '.join([*convnets, *transformers])}. Give each a name of its own.", path="teachers")
    trainings = {"none": student} | {name: with_teacher(student, one, "token") for name, one in everyone.items()}
    entries = trained(trainings, setup)
    values = {(NO_TEACHER if name == "none" else name, STUDENT): read(entries, name, "top1", setup) for name in trainings}
    pairs = [(convnet, transformer, "+0.8 to +1.2") for convnet in convnets for transformer in transformers]
    pairs += [(name, NO_TEACHER, "+0.9 to +1.3") for name in convnets] + [(name, NO_TEACHER, "+0.1") for name in transformers]
    return Study(
        title="Teachers (DeiT, table 2)",
        about=about(setup, "Students have a distillation token, and both heads answer."),
        rows=(NO_TEACHER, *everyone),
        columns=(STUDENT,),
        values=values,
        claims=tuple(Claim(f"{more} above {less}", (more, STUDENT), (less, STUDENT), paper) for more, less, paper in pairs),
        beside={"teacher itself": {name: own_accuracy(one, setup) for name, one in everyone.items()}},
        paper=tuple(
            {"teacher": name, "teacher itself": figure(own), "DeiT-B as student, ImageNet": figure(top1)}
            for name, (own, top1) in TABLE_2.items()
        ),
        notes=cautions(trainings, entries, setup),
    )


def epochs(
    student: Recipe,
    teacher: TeacherSpec,
    passes: Sequence[int],
    setup: Setup,
    methods: tuple[Method, ...] = ("none", "hard", "token"),
) -> Study:
    """Figure 3: accuracy by the number of passes over the training pictures, without a teacher and with one.

    The trainings are `none 100`, `token 100` and so on.
    """
    refuse_distilled(student)
    if len(set(passes)) < 2 or len(set(passes)) < len(passes):
        raise SpecError(f"{list(passes)}. Give two different numbers and more.", path="passes")
    spots = {(method, str(count)): f"{method} {count}" for method in methods for count in passes}
    trainings = {
        spots[method, str(count)]: with_teacher(replace(student, duration=Epochs(count)), teacher, method)
        for method in methods
        for count in passes
    }
    entries = trained(trainings, setup)
    first, *_, last = sorted(passes)
    claims = [
        Claim(f"{method} above none after {count} passes", (method, str(count)), ("none", str(count)), paper)
        for method, paper in (("hard", "+1.2 at 300 epochs"), ("token", "+1.6 at 300 epochs"))
        if {method, "none"} <= set(methods)
        for count in passes
    ]
    claims += [
        Claim(f"{method} gains from {first} to {last} passes", (method, str(last)), (method, str(first)), paper)
        for method, paper in (("soft", "+0.0"), ("hard", "+1.1"), ("token", "+0.8"))
        if method in methods
    ]
    return Study(
        title="Passes (DeiT, figure 3)",
        about=about(setup, "Columns are passes over the training pictures, each a training of its own with its own schedule."),
        rows=methods,
        columns=tuple(map(str, passes)),
        values={spot: read(entries, name, "top1", setup) for spot, name in spots.items()},
        claims=tuple(claims),
        beside={f"{column} epochs": figures for column, figures in FIGURE_3.items()},
        notes=(
            *cautions(trainings, entries, setup),
            "The paper's values are read off its figure; without a teacher it says only that 400 epochs are enough (82.2).",
        ),
    )


# ------------------------------------------------------------------------------------------------ what they share


def with_teacher(student: Recipe, teacher: TeacherSpec, method: Method) -> Recipe:
    """The student's training by one of four ways."""
    if method == "none":
        return student
    way: Way = method
    return taught(student, Teaching(teacher), way)


def refuse_distilled(student: Recipe) -> None:
    if student.teaching is not None or student.model.heads != ("class",):
        has = "a teacher" if student.teaching else f"the heads {', '.join(student.model.heads)}"
        raise SpecError(f"has {has}. Give one that learns labels with one class head; the study adds the rest.", path="student")


def read(entries: Entries, training: str, result: str, setup: Setup) -> dict[int, float]:
    """One result of a training, by seed."""
    name = f"{setup.split}_{result}"
    return {seed: entry.results[name] for seed, entry in entries.get(training, {}).items() if name in entry.results}


def about(setup: Setup, more: str) -> str:
    where = {"val": "held-out training pictures", "test": "the test pictures"}[setup.split]
    return f"Top-1 in percent on {where}, at the end of training: mean ± sample deviation over n seeds. {more}"


def chosen(setup: Setup) -> str:
    """Whether the pictures that are measured have had a say before."""
    if setup.split == "test":
        return "Nothing was chosen on the pictures that are measured."
    return "Recipes are chosen on held-out training pictures, which these are, so the figures may flatter them."


def differences(more: str, less: str) -> str:
    """By how much the rows of table 3 differ, model by model."""
    return ", ".join(f"{column[more] - column[less]:+.1f}" for column in TABLE_3.values()) + " (Ti, S, B)"


def own_accuracy(teacher: TeacherSpec, setup: Setup) -> str:
    """Of a teacher that is a finished run, on its own pictures of the split that is measured."""
    if not isinstance(teacher, RunTeacher):
        return ""
    folder, made = Path(teacher.path), setup.ledger.made_in(Path(teacher.path))
    there = RunFolder(folder).results() if (folder / "recipe.json").exists() else made.results if made else {}
    found = there.get(f"{setup.split}_top1")
    return "" if found is None else f"{found:.2f}"


def several_teachers(trainings: Mapping[str, Recipe], setup: Setup) -> tuple[str, ...]:
    """A line on who taught whom, where not all had the same teacher."""
    pupils: dict[TeacherSpec, list[str]] = {}
    for name, one in trainings.items():
        if one.teaching is not None:
            pupils.setdefault(one.teaching.teacher, []).append(name)
    if len(pupils) < 2:
        return ()
    said = []
    for teacher, names in pupils.items():
        own = own_accuracy(teacher, setup)
        path = teacher.path if isinstance(teacher, RunTeacher) else "a model by name"
        said.append(f"{path} taught {', '.join(names)}{f' (its own top-1: {own})' if own else ''}")
    return (f"Not all had the same teacher: {'; '.join(said)}.",)


def cautions(trainings: Mapping[str, Recipe], entries: Entries, setup: Setup) -> tuple[str, ...]:
    """What would spoil the comparison: a teacher that may know the pictures, or that is another than it was."""
    taught_by = {name: one.teaching.teacher for name, one in trainings.items() if one.teaching is not None}
    sources = pictures(next(iter(trainings.values())), setup)
    found, ours = [], sources["train"].fingerprint()
    for teacher in dict.fromkeys(taught_by.values()):
        theirs = described(Path(teacher.path)).get("data_fingerprint") if isinstance(teacher, RunTeacher) else None
        name = teacher.path if isinstance(teacher, RunTeacher) else "the teacher"
        if theirs and theirs["train"] != ours:
            found.append(
                f"Caution: {name} learned from other pictures than its students; some that are measured may be among them."
            )
        pupils = [pupil for pupil, one in taught_by.items() if one == teacher]
        if len({entry.teacher for pupil in pupils for entry in entries[pupil].values()}) > 1:
            found.append(f"Caution: {name} changed between some of these trainings.")
        if gone := [pupil for pupil in pupils if taught_by_another(trainings[pupil], sources, entries[pupil], setup)]:
            found.append(f"Caution: {name} is another network than taught {', '.join(gone)}; what that gave is left out.")
    return tuple(found)
