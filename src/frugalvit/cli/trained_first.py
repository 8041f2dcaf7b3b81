"""Errors about a teacher that `distill` trains itself, told with what can be done there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
            f"'teacher.duration={length['part']}({length['count']})', or use another --out."
        )
        raise
