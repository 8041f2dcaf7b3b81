"""The errors a user can meet. Each says where (a path), what is wrong, and what would fit.

ValueError
└── FrugalError
    ├── SpecError      a description that cannot be built
    ├── DataError      pictures, labels or folders
    └── WeightsError   parameters on disk
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


class FrugalError(ValueError):
    """Something a user can mend: `path` says where, `problem` what and how."""

    def __init__(self, problem: str, *, path: str = ""):
        super().__init__(problem)
        self.problem = problem
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


class SpecError(FrugalError):
    """A description that cannot be read, changed or built."""


class DataError(FrugalError):
    """Pictures, labels or folders that cannot be used."""


class WeightsError(FrugalError):
    """Parameters on disk that cannot be read, or do not fit."""


class WeightsNotice(UserWarning):
    """Weights were loaded, but not as they lie in the file: resampled positions, a fresh head."""


NOTICING = threading.Lock()  # to hear or hush a notice: what warnings do is one for all threads


def join(step: str, rest: str) -> str:
    """`join("model", "layers[3]")` is `model.layers[3]`; an index needs no dot."""
    if not step or not rest:
        return step or rest
    return step + rest if rest.startswith("[") else f"{step}.{rest}"


@contextmanager
def at(step: str) -> Iterator[None]:
    """Put `step` in front of the path of any FrugalError raised inside."""
    try:
        yield
    except FrugalError as error:
        error.path = join(step, error.path)
        raise


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end what is inside, also where a library trips over it and reports that instead, as torch's imports do."""
    before = behind(sys.exception())  # an interrupt that the caller is handling is none of ours
    try:
        yield
    except Exception as error:
        if any(isinstance(one, KeyboardInterrupt) and one not in before for one in behind(error)):
            raise KeyboardInterrupt from error
        raise


def behind(error: BaseException | None) -> list[BaseException]:
    """An exception, what caused it, and what was being handled when it was raised, as far back as is known."""
    found, waiting = [], [error]
    while waiting:
        one = waiting.pop()
        if one is not None and one not in found:
            found.append(one)
            waiting += [one.__cause__, one.__context__]
    return found


def first_line(error: BaseException | str) -> str:
    """Of what it says, cut where it is long; its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:160]


def brief(error: BaseException) -> str:
    """Its kind and the first line of what it says."""
    return f"{type(error).__name__}: {first_line(error)}"


def own_line(error: BaseException) -> str:
    """Where code of the user's that we called has failed: the last line in the folder of its first file; else nothing."""
    frames = [(Path(one.filename).parent, one) for one in traceback.extract_tb(error.__traceback__)]
    own = [(folder, one) for folder, one in frames if not (one.filename.startswith("<") or is_between(folder))]
    if not own:
        return ""
    last = [one for folder, one in own if folder == own[0][0]][-1]
    return f"{last.filename}, line {last.lineno}" + (f", `{last.line}`" if last.line else "")


def is_between(folder: Path) -> bool:
    """Whether code there may call the user's: it is ours, or Python's, as imports are."""
    return folder.is_relative_to(Path(__file__).parent) or folder in (Path(os.__file__).parent, Path(importlib.__file__).parent)


def whole_number(text: str) -> int | None:
    """The number that a text is, or None."""
    try:
        return int(text)
    except ValueError:
        return None


def suggestion(word: str, known: Iterable[str]) -> str:
    """A closing sentence for an unknown word: the nearest one, or all of them where they are few."""
    names = sorted(set(known))
    longer = [name for name in names if len(word) > 2 and name.startswith(word)]
    near = longer[:3] or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f"Did you mean {' or '.join(repr(name) for name in near)}?"
    if not names:
        return "There is none."
    listed = ", ".join(names[:12])
    return f"There {'is' if len(names) == 1 else 'are'}: {listed}{', ...' if len(names) > 12 else ''}."
