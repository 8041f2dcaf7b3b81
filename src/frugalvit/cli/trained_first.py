"""Errors about a teacher that `distill` trains itself, told with what can be done there."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frugalvit.training.recipe import Recipe

OWN = "teacher."  # how words for the teacher's recipe begin


@contextmanager
def of_one_length(teacher: Path) -> Iterator[None]:
    """Where the teacher in that folder is asked for with another length, which --extend does not give it: say which it has."""
    from frugalvit.report.record import AnotherLength, RunFolder

    try:
        yield
    except AnotherLength as error:
        length = RunFolder(teacher).recipe()["duration"]
        error.problem = (
            f"{error.found}. A teacher keeps its length; --extend changes the student's alone. Say "
            f"'{OWN}duration={length['part']}({length['count']})', or use another --out."
        )
        raise


@contextmanager
def of_our_training(teacher: str, tutor: Recipe | None, student: Recipe, folder: Path) -> Iterator[None]:
    """Where the teacher in that folder is too weak and was trained on the student's data: its classes are in their order."""
    from frugalvit.training.teacher import RunTeacher
    from frugalvit.training.teacher_check import WeakTeacher

    try:
        yield
    except WeakTeacher as error:
        as_trained = student.teaching is not None and student.teaching.teacher == RunTeacher(str(folder))
        if tutor is not None and as_trained and type(tutor.data.dataset) is type(student.data.dataset):  # at one --data
            too_little = f"and it has learned too little: train it longer, {OWN}{length_word(teacher)}=..."
            unlike = "but not on pictures framed for the student: let both take pictures of the same size"
            error.problem = (
                f"{error.found} This command trained it, {unlike if error.learned else too_little}, with another --out; or "
                f"--resume --least {math.floor(error.top1)} lets it teach as it is."
            )
        raise


def length_word(teacher: str) -> str:
    """How the teacher's recipe calls its length."""
    from frugalvit.recipes.find import function_named
    from frugalvit.zoo.find import LENGTHS

    function = None if Path(teacher).exists() else function_named(teacher)
    known = inspect.signature(function).parameters if function else ()
    return next((word for word in LENGTHS if word in known), "duration")
