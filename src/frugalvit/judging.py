"""What a teacher is worth, before its student begins: measured, said, and kept with the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from frugalvit.errors import SpecError, at
from frugalvit.report.record import RunFolder
from frugalvit.training.prepare import Training
from frugalvit.training.teacher import Ensemble, RunTeacher, Teaching
from frugalvit.training.teacher_check import check_teacher

BLIND = 5.0  # percent that a teacher may lose by another size without a word


@dataclass(frozen=True)
class Judged:
    """What is to be said of a teacher, and what it got right, in percent, where it could be measured."""

    notes: tuple[str, ...]
    top1: float | None = None
    pictures: int = 0


def checked_teacher(training: Training, workers: int) -> Judged:
    """A training's teacher, once it has shown what it is worth; nothing where there is none."""
    teacher, teaching = training.step.teacher, training.recipe.teaching
    if teacher is None:
        return Judged(())
    if "val" not in training.framed:
        refuse_unmeasurable(teaching)
        return Judged((*teacher.notes, f"the teacher, {teacher.name}, is not measured: there is no validation split"))
    with at("recipe.teaching"):
        found = check_teacher(teacher, training.framed["val"], None if teaching is None else teaching.least, workers)
    held = training.sources["val"].fingerprint()
    other = [path for path in run_folders(teaching) if held_out_by(path) not in (held, "")]
    flattered = "held out other pictures; if it learned from some of these, that flatters it"
    notes = *teacher.notes, found.note, *(f"caution: {path} {flattered}" for path in other), *worse_at(teaching, found.top1)
    return Judged(notes, found.top1, found.pictures)


def worse_at(teaching: Teaching | None, top1: float) -> Iterator[str]:
    """A word on a run that knows much less of pictures of another size than it did of its own."""
    who = None if teaching is None else teaching.teacher
    if isinstance(who, RunTeacher) and who.size is not None:
        own = RunFolder(Path(who.path)).results().get("val_top1")
        if own is not None and top1 < own - BLIND:
            cure = "leave teaching.teacher.size out, or fit it to the size first"
            yield f"caution: at its own size {who.path} had {own:.1f} % right; {cure}"


def refuse_unmeasurable(teaching: Teaching | None) -> None:
    """A teacher that must be worth something, where no pictures are held out to see it by."""
    if teaching is not None and teaching.least:
        cure = "Hold some out, as by data.dataset.holdout=0.1, or ask for nothing (no --least)."
        raise SpecError(f"{teaching.least:g} % are asked for, and there is no validation split. {cure}", path="teaching.least")


def run_folders(teaching: Teaching | None) -> list[str]:
    """Those of the teachers that are runs."""
    who = None if teaching is None else teaching.teacher
    every = who.members if isinstance(who, Ensemble) else (who,)
    return [one.path for one in every if isinstance(one, RunTeacher)]


def held_out_by(path: str) -> str:
    """The fingerprint of the pictures that a run was validated on, "none" if on none; nothing where the folder is no run."""
    if not (Path(path) / "recipe.json").exists():
        return ""
    return str(RunFolder(Path(path)).recipe().get("data_fingerprint", {}).get("val", "none"))
