"""The verb that trains a student with a teacher, and the teacher first where it is a recipe."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frugalvit.cli.console import (
    AsJson,
    Device,
    Init,
    Loggers,
    OfSettings,
    OriginName,
    Overrides,
    Quiet,
    TrainingData,
    Workers,
    app,
    console,
    plain,
)
from frugalvit.cli.resuming import Extend, refuse_exclusive, refuse_folder_of_seeds, refuse_recipe_of_own_parts
from frugalvit.cli.trained_first import OWN, of_one_length, of_our_training
from frugalvit.cli.training import end_of_nonsense, resumable, several, tell_cautions
from frugalvit.errors import SpecError, WeightsError, at, whole_number

if TYPE_CHECKING:
    from frugalvit.first_weights import Begun
    from frugalvit.report.progress import Display
    from frugalvit.run import Run
    from frugalvit.training.recipe import Recipe
    from frugalvit.training.teacher import Ensemble, OnnxTeacher, RunTeacher, ZooTeacher


DATASET = "data.dataset"
TEACHER = "A run folder, a recipe (trained first), an exported .onnx file, or a model: regnety_160, timm:resnet50."
TEACHER += " Several together: once for each, trained already."
WAY = "token or soft_token (one of its own learns), hard, soft or logits (the class head does). Default: token, or the terms of"
WAY += " a student's recipe that learns from a teacher already."
ONCE = {"teaching": "--teacher", "teaching.teacher": "--teacher", "teaching.least": "--least"}  # which words say it already


@app.command(cls=OfSettings)
def distill(
    context: typer.Context,
    overrides: Overrides = None,
    teacher: Annotated[list[str] | None, typer.Option("--teacher", help=TEACHER)] = None,
    student: Annotated[str, typer.Option("--student", help="The student's recipe: see `list recipes`.")] = "",
    way: Annotated[str, typer.Option("--way", help=WAY)] = "",
    least: Annotated[float | None, typer.Option("--least", help="The teacher's top-1 in percent, below which to stop.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The folder to write: teacher/ and student/.")] = None,
    data: TrainingData = None,
    init: Init = "",
    origin: OriginName = "",
    resume: Annotated[bool, typer.Option("--resume", help="Continue what is in --out.")] = False,
    extend: Extend = False,
    seeds: Annotated[str | None, typer.Option("--seeds", help="Several students, as in 0,1,2; one teacher.")] = None,
    device: Device = "auto",
    workers: Workers = 0,
    log: Loggers = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a student that learns from a teacher; name=value sets what the student's recipe takes.

    teacher.passes=60 and the like set what the teacher's recipe takes; data.dataset=... is for both. teaching.teacher.size=384
    edits how the teacher is opened, objective.terms[1].weight=0.3 what is learned, as it stands with the teacher
    (objective.terms[+]=... adds a term); --init starts the student from weights, and --extend changes its length alone.
    """
    from frugalvit.assign import override
    from frugalvit.first_weights import repeated
    from frugalvit.recipes.find import recipe
    from frugalvit.recipes.teach import taught
    from frugalvit.report.progress import display_for
    from frugalvit.run import train
    from frugalvit.seeds import refuse_seeds
    from frugalvit.training.teacher import Teaching

    teachers = [one for one in teacher or [] if one]
    for name, given in (("--teacher", teachers), ("--student", student), ("--out", out)):
        if not given:
            raise SpecError("is needed, as in --teacher digits.resnet --student vit.digits --out runs/taught.", path=name)
    assert out is not None
    refuse_said_twice([text.partition("=")[0].strip() for text in overrides or []], least)
    about = [text for text in overrides or [] if of_taught(text)]
    own = [text for text in overrides or [] if text.strip().startswith(OWN)]
    rest = [text for text in overrides or [] if text not in (*about, *own)]
    if seeds is not None:
        refuse_seeds([whole_number(one) for one in seeds.split(",")])  # type: ignore[misc]  # what is no number too
    refuse_exclusive(rest, seeds, resume, extend, log or [])
    refuse_folder_of_seeds(context, out / "student")
    display = display_for(sys.stderr, "quiet" if quiet else "auto")
    refuse_recipe_of_own_parts(student)
    plain_student = recipe(student, *rest)
    made = taught(plain_student, Teaching(together(teachers, out), least), way or None)  # type: ignore[arg-type]
    if way and plain_student.objective.needs_teacher:
        display.note(f"--way {way} replaces the terms of the student's recipe: {', '.join(plain_student.objective.names)}")
    made = override(made, *about)
    tutor, start = teacher_recipe(teachers[0], own, rest), repeated(init, student)
    with resumable(out):
        first = None
        if tutor is not None:
            refuse_student(made, out / "student", data, start, origin, resume, device, display)
            display.note(f"the teacher first: {teachers[0]}")
            with of_one_length(out / "teacher"):
                first = train(
                    tutor,
                    out=out / "teacher",
                    data=data,
                    resume=resume,
                    device=device,
                    workers=workers,
                    log=log or [],
                    display=display,
                )
            display.note(f"then the student: {student}")
        with of_our_training(teachers[0], tutor, made, out / "teacher"):
            if seeds is not None:
                if not as_json:
                    tell_teacher(first)
                several(made, seeds, out / "student", data, start, origin, resume, device, workers, quiet, as_json)
                return
            done = train(
                made,
                out=out / "student",
                data=data,
                init=start,
                origin=origin,
                resume=resume,
                extend=extend,
                device=device,
                workers=workers,
                log=log or [],
                display=display,
            )
    if as_json:
        found: dict[str, Any] = {"out": str(out), "student": plain(done.summary)}
        print(json.dumps(found | ({"teacher": plain(first.summary)} if first is not None else {})))
        end_of_nonsense(done)
        return
    tell_teacher(first)
    for split in ("val", "test"):
        heads = {name: value for name, value in done.summary.items() if name.startswith(f"{split}_top1")}
        for name, value in heads.items():
            head = name.removeprefix(f"{split}_top1").removeprefix("_") or ("both" if len(heads) > 1 else "class")
            console.print(f"{split}: student, {head} {value:.2f} %", markup=False)
    tell_cautions(done)
    console.print(f"Written to {done.path}: the student, which needs no teacher any more", markup=False)
    end_of_nonsense(done)


def of_taught(override: str) -> bool:
    """Whether it edits the recipe with a teacher, not the plain one."""
    path = override.partition("=")[0].strip()
    return path == "objective" or path.startswith(("teaching.", "objective."))


def refuse_said_twice(paths: list[str], least: float | None) -> None:
    """What an option says, no setting may say otherwise."""
    for path in paths:
        if path in ONCE and (path != "teaching.least" or least is not None):
            cure = "Edit how the teacher is opened, as by teaching.teacher.size=384, or teaching.classes=included"
            raise SpecError(f"is what {ONCE[path]} says. {cure}.", path=path)


def tell_teacher(first: Run | None) -> None:
    for split in ("val", "test"):
        if first is not None and f"{split}_top1" in first.summary:
            console.print(f"{split}: teacher {first.summary[f'{split}_top1']:.2f} % of pictures framed for it", markup=False)


def is_recipe(teacher: str) -> bool:
    """One of ours, a saved one (mine.json), or one of the user's (mylab.runs:mine); timm:resnet50 is a model."""
    from frugalvit.nn.foreign import LIBRARIES
    from frugalvit.recipes.find import functions

    if Path(teacher).suffix == ".json" and Path(teacher).is_file():
        return True
    library, colon, _ = teacher.partition(":")
    own = bool(colon) and library not in (*LIBRARIES, "hf-hub") and not Path(teacher).exists()
    return teacher in functions() or own


def together(teachers: list[str], out: Path) -> RunTeacher | ZooTeacher | OnnxTeacher | Ensemble:
    """The one who teaches, or all of them: the mean of their logits."""
    from frugalvit.training.teacher import Ensemble

    if len(teachers) == 1:
        return named(teachers[0], out)
    for one in teachers:
        if is_recipe(one):
            cure = f"Train it first, `frugalvit train {one} --out runs/teacher`, and give that folder."
            raise SpecError(f"a recipe is not trained for several teachers. {cure}", path=f"--teacher {one}")
    return Ensemble(tuple(named(one, out) for one in teachers))


def named(teacher: str, out: Path) -> RunTeacher | ZooTeacher | OnnxTeacher:
    """Who teaches: a folder, the recipe's run below `out`, an ONNX file, or a model by name."""
    from frugalvit.recipes.find import refuse_misspelled
    from frugalvit.training.teacher import RunTeacher, ZooTeacher

    if is_recipe(teacher):
        return RunTeacher(str(out / "teacher"))
    refuse_misspelled(teacher, "--teacher")
    if Path(teacher).suffix in (".json", ".onnx") and not Path(teacher).exists():
        raise WeightsError("there is no such file.", path=f"--teacher {teacher}")
    if Path(teacher).suffix == ".onnx" and Path(teacher).is_file():
        return exported(Path(teacher))
    if teacher.startswith("hf-hub:"):
        folder = f"frugalvit import MODEL --init {teacher} --out models/teacher"
        raise SpecError(f"the hub does not say which model of ours it is. Import it first: {folder}", path="--teacher")
    return RunTeacher(teacher) if Path(teacher).exists() else ZooTeacher(teacher)


def exported(file: Path) -> OnnxTeacher:
    """The teacher in a file: one that we wrote says how its pictures are made, and normalizes them itself."""
    from frugalvit.deploy.export import read_description
    from frugalvit.teaching import described
    from frugalvit.training.teacher import OnnxTeacher

    teacher = OnnxTeacher(str(file))
    return teacher if read_description(file) is None else described(teacher)


def refuse_student(
    made: Recipe, out: Path, data: Path | None, init: str | Begun, origin: str, resume: bool, device: str, display: Display
) -> None:
    """All that speaks against the student's training and is known without its teacher, before that is trained for hours."""
    from frugalvit.beginning import opened
    from frugalvit.first_weights import initialized, start_of
    from frugalvit.judging import refuse_unmeasurable
    from frugalvit.objective.objective import Objective
    from frugalvit.report.record import RunFolder
    from frugalvit.training.devices import place_for
    from frugalvit.training.filed_answers import refuse_draws
    from frugalvit.training.prepare import prepare

    if out.exists() and not resume:
        RunFolder(out).refuse_contents()
    if made.teaching is not None and made.teaching.file:
        refuse_draws(made)
    with at("recipe.objective"):
        made.objective.refuse_other_heads(made.model.heads)
    place, alone = place_for(device, made.precision), replace(made, objective=Objective(), teaching=None)
    sources = opened(alone, data)
    if "val" not in sources:
        refuse_unmeasurable(made.teaching)
    training = prepare(
        alone,
        sources,
        place,
        progress=lambda done, total: display.count("decoding pictures, once", done, total),
    )
    start = start_of(init, origin, out, resume)
    initialized(training, start.init, start.origin)


def teacher_recipe(teacher: str, own: list[str], students: list[str]) -> Recipe | None:
    """The teacher's own training, where it is a recipe: by its own words, and on the student's data set if that is told."""
    from frugalvit.recipes.find import recipe

    words = [text.strip().removeprefix(OWN) for text in own]
    if not is_recipe(teacher):
        if own:
            cure = "Leave that out, or give a recipe. teaching.teacher.size=384 and the like edit how it is opened."
            raise SpecError(f"{teacher} is no recipe: it is trained already. {cure}", path=own[0])
        return None
    told = any(text.startswith(DATASET) for text in words)
    shared = [] if told else [text for text in students if text.strip().startswith(DATASET)]
    with at("--teacher"):
        return recipe(teacher, *shared, *words)
