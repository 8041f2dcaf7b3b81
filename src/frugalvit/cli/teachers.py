"""Teachers beside the classifiers that are compared: named on the command line, or whoever taught the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frugalvit.errors import SpecError, WeightsError, at

if TYPE_CHECKING:
    from frugalvit.data.preprocess import Preprocess
    from frugalvit.deploy.classifier import Classifier
    from frugalvit.training.devices import Place
    from frugalvit.training.teacher import Teacher, TeacherSpec, Teaching

TEACHER, OWN = "teacher", "own"


@dataclass(frozen=True, eq=False)
class Opened:
    """A teacher that answers in the classes of one of the classifiers, its student."""

    teacher: Teacher
    spec: TeacherSpec
    frames: Preprocess  # of the pictures that it is shown
    student: str


def refuse_recipes(asked: list[str]) -> None:
    from frugalvit.cli.distill import is_recipe

    for one in asked:
        if is_recipe(one):
            cure = f"Train it first, `frugalvit train {one} --out runs/teacher`, and give that folder."
            raise SpecError(f"is a recipe, and nothing is trained here. {cure}", path=f"--teacher {one}")
    if OWN in asked and len(asked) > 1:
        raise SpecError("goes alone. Name all teachers that are to answer together, or none.", path=f"--teacher {OWN}")


def teachers_of(
    asked: list[str], runs: Mapping[str, Path], classifiers: Mapping[str, Classifier], place: Place, parts: list[type]
) -> dict[str, Opened]:
    """Teachers by the names of their rows: the one asked for, for the last classifier; or each that taught one of the runs."""
    from frugalvit.studies.disagreement import own_frames

    if not asked:
        return {}
    own = asked == [OWN]
    found: dict[Any, Opened] = {}
    for student, teaching in (own_teachings(runs, parts) if own else named_teaching(asked, runs, parts)).items():
        refuse_repeated(teaching.teacher, runs.values())
        teacher = opened(teaching, classifiers[student], runs[student] if own else None, place, parts)
        frames = own_frames(teaching.teacher, teacher)
        found.setdefault((teaching.teacher, teaching.classes, frames), Opened(teacher, teaching.teacher, frames, student))
    return {TEACHER if len(found) == 1 else f"{TEACHER} of {one.student}": one for one in found.values()}


def opened(teaching: Teaching, student: Classifier, taught: Path | None, place: Place, parts: list[type]) -> Teacher:
    """The teacher for a student's classes; where it is said to have taught a run, the very one that did."""
    from frugalvit.report.files import read_json
    from frugalvit.studies.disagreement import refuse_another
    from frugalvit.teaching import open_teacher

    try:
        with at(f"{taught}.teaching" if taught else ""):
            teacher = open_teacher(
                teaching.teacher, student.preprocess, student.classes, place, known=teaching.classes, parts=parts
            )
            if taught:
                refuse_another(teacher, read_json(taught / "recipe.json").get("teacher_fingerprint", ""), str(taught))
    except WeightsError as error:
        error.problem += " Or name whom to compare, wherever it lies: --teacher PATH." if taught else ""
        raise
    return teacher


def named_teaching(asked: list[str], runs: Mapping[str, Path], parts: list[type]) -> dict[str, Teaching]:
    """For the last of the runs, which may know fewer classes than its teacher if it was taught so."""
    from frugalvit.cli.distill import together
    from frugalvit.training.teacher import Teaching

    student, spec = list(runs)[-1], together(asked, Path())
    taught = teaching_of(runs[student], parts)
    return {student: Teaching(spec, classes="same" if taught is None else taught.classes)}


def teaching_of(run: Path, parts: list[type]) -> Teaching | None:
    """Who taught a run, by its recipe; nobody where there is none."""
    from frugalvit.recipes.find import recipe

    return recipe(str(run), parts=parts).teaching if (run / "recipe.json").exists() else None


def own_teachings(runs: Mapping[str, Path], parts: list[type]) -> dict[str, Teaching]:
    """Of those runs that were taught."""
    from frugalvit.training.teacher import GivenTeacher

    told = {name: teaching_of(run, parts) for name, run in runs.items()}
    found = {name: teaching for name, teaching in told.items() if teaching is not None}
    for name, teaching in found.items():
        if isinstance(teaching.teacher, GivenTeacher):
            raise SpecError(
                "was taught by what its training was given, train(..., teacher=module), which lies in no file. Name a teacher "
                "instead: --teacher runs/teacher.",
                path=str(runs[name]),
            )
    if not found:
        raise SpecError(
            "nobody taught these runs, by their recipes. Name one: --teacher runs/teacher.", path=f"--teacher {OWN}"
        )
    return found


def refuse_repeated(spec: TeacherSpec, runs: Iterable[Path]) -> None:
    from frugalvit.training.teacher import RunTeacher

    if isinstance(spec, RunTeacher) and spec.size is None and Path(spec.path).resolve() in [run.resolve() for run in runs]:
        raise SpecError("is given as a classifier and as the teacher. Give it once.", path=spec.path)


def saved_paths(spec: TeacherSpec) -> Iterator[str]:
    """The runs among teachers."""
    from frugalvit.training.teacher import Ensemble, RunTeacher

    for one in spec.members if isinstance(spec, Ensemble) else (spec,):
        if isinstance(one, RunTeacher):
            yield one.path
