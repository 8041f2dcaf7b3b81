"""The teacher that a study trains for itself, once, and the check that it is the one that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from frugalvit.beginning import as_saved, same_path
from frugalvit.data.source import Source
from frugalvit.errors import DataError
from frugalvit.report.files import differences, plain
from frugalvit.spec import encode, shown
from frugalvit.studies.identity import key_for
from frugalvit.studies.trainings import Setup, described, folder_name, measured, pictures, unmeasured
from frugalvit.training.recipe import Recipe, filled


def teacher_folder(name: str, setup: Setup, seed: int = 0) -> Path:
    """Where the teacher of that name is trained with that seed."""
    return setup.out / folder_name(name) / f"seed-{seed}"


def teach(name: str, recipe: Recipe, asked: Mapping[str, Recipe], setup: Setup, seed: int = 0) -> None:
    """Train the teacher that is not there, if it is among the trainings that are asked for, or one of these lacks a seed.

    A teacher of another recipe is refused, and so are its results where it is gone and nothing is to be trained.
    """
    folder, sources = teacher_folder(name, setup, seed), pictures(recipe, setup)
    if (folder / "summary.json").exists():
        refuse_another_run(folder, replace(recipe, seed=seed), sources)
        return
    before = setup.ledger.made_in(folder)
    same = before is None or before.key == key_for(recipe, sources, setup.ledger)
    if asked and (name in asked or not same or unmeasured(asked, setup)):
        setup.ledger.add(measured(name, recipe, sources, [seed], setup))
    elif not same:
        problem = f"its students learned from a run of another recipe in {folder}. Ask for that one, or name another file."
        raise DataError(problem, path=str(setup.ledger.path))


def refuse_another_run(folder: Path, recipe: Recipe, sources: Mapping[str, Source]) -> None:
    """Raise unless the run in a folder is of that recipe and of those pictures."""
    whole = same_path(filled(recipe, sources["train"]), folder)
    wanted = encode(whole) | {"data_fingerprint": {split: one.fingerprint() for split, one in sources.items()}}
    found = list(differences(described(folder), plain(as_saved(folder, wanted))))
    if found:
        first = "; ".join(f"{path} is {shown(old)}, asked for is {shown(new)}" for path, old, new in found[:3])
        more = f" (+{len(found) - 3} more)" if len(found) > 3 else ""
        raise DataError(
            f"holds a run of another recipe: {first}{more}. Ask for the one it is of, or name another folder.", path=str(folder)
        )
