"""What a training is: its recipe, its pictures, and the weights of its teacher, wherever that lies."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from frugalvit.data.source import Source
from frugalvit.deploy.classifier import CONFIG, weights_file
from frugalvit.errors import WeightsError
from frugalvit.spec import encode, swap
from frugalvit.studies.ledger import Ledger, key_of
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import OneTeacher, OnnxTeacher, RunTeacher, ZooTeacher
from frugalvit.training.teacher_networks import with_weights


def key_for(recipe: Recipe, sources: Mapping[str, Source], ledger: Ledger) -> str:
    """Of the recipe but for its seed, of its teacher's weights, and of the pictures.

    Of a run that is gone the ledger may know the weights; a WeightsError where nobody does.
    """
    teaching = swap(recipe.teaching, (RunTeacher, ZooTeacher, OnnxTeacher), lambda one: by_weights(one, ledger))
    return key_by_path(replace(recipe, teaching=teaching), sources)


def key_by_path(recipe: Recipe, sources: Mapping[str, Source]) -> str:
    """The same with the path of a teacher instead of its weights."""
    return key_of(encode(replace(recipe, seed=0)), {split: one.fingerprint() for split, one in sources.items()})


def by_weights(teacher: OneTeacher, ledger: Ledger) -> OneTeacher:
    """A teacher with a digest where its path was."""
    match teacher:
        case RunTeacher():
            return replace(teacher, path=run_digest(Path(teacher.path), ledger))
        case OnnxTeacher():
            if not Path(teacher.path).is_file():
                raise WeightsError("there is no such file.", path=teacher.path)
            return replace(teacher, path=digest(with_weights(Path(teacher.path))))
        case _:
            file = Path(teacher.weights)
            return replace(teacher, weights=digest([file])) if teacher.weights and file.is_file() else teacher


def run_digest(path: Path, ledger: Ledger) -> str:
    try:
        return saved_digest(path)
    except WeightsError:
        made = ledger.made_in(path)
        if made is None or not made.weights:
            raise
        return made.weights


def saved_digest(path: Path) -> str:
    """Of what a classifier is loaded from."""
    weights = weights_file(path)
    return digest([weights, weights.parent / CONFIG])


def digest(files: Sequence[Path]) -> str:
    """Of what stands in those that exist."""
    known = [(one, one.stat()) for one in files if one.is_file()]
    return key_of(*(content_digest(one, now.st_mtime_ns, now.st_size) for one, now in known))


@functools.cache
def content_digest(path: Path, written: int, size: int) -> str:
    """Once a process, unless the file was written again: a study asks for it before every training."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
