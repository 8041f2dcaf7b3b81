"""Runs side by side: a row for those that differ in their seed alone, with mean, deviation and n."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frugalvit.errors import DataError
from frugalvit.report.table import Row, grouped, run_rows

SEED = "recipe.seed"
FEW = 3  # differences that a message names


def rows(
    runs: Sequence[Path],
    by: tuple[str, ...],
    over: tuple[str, ...] = ("summary.val_top1",),
    apart: tuple[str, ...] = (SEED,),
) -> list[Row]:
    """Runs that agree in `by` as one row, in the order of `by`: its values, the seeds, and a Summary of each result in `over`.

    `rows(runs, ("recipe.duration.count",))` is accuracy by epochs. Runs of one row must have equal recipes but for what
    `apart` names, so that no mean is taken over two different trainings. `as_markdown` and its siblings print the rows.
    """
    found = recipes_and_results(runs, (*by, *over))
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in found:
        groups.setdefault(tuple(row.get(name) for name in by), []).append(row)
    for members in groups.values():
        for other in members[1:]:
            refuse_another_training(members[0], other, apart)
        refuse_repeats(members)
        seeds = ", ".join(str(row.get(SEED)) for row in members)
        for row in members:
            row["seeds"] = seeds
    return sorted(grouped(found, (*by, "seeds"), over), key=lambda row: [rank(row[name]) for name in by])


def recipes_and_results(runs: Sequence[Path], columns: tuple[str, ...]) -> list[Row]:
    """Every leaf of every run, which is called by its whole path: seeds of several trainings lie in folders of one name."""
    twice = [str(path) for path in runs if list(runs).count(path) > 1]
    if twice:
        raise DataError("the run is given twice. Give each once.", path=twice[0])
    run_rows(runs, columns)  # refuses a column that no run has
    return [row | {"run": str(path)} for path, row in zip(runs, run_rows(runs), strict=True)]


def recipe_differences(one: Row, other: Row) -> list[str]:
    return [name for name in one if name.startswith("recipe.") and one[name] != other[name]]


def refuse_another_training(one: Row, other: Row, apart: tuple[str, ...]) -> None:
    found = [name for name in recipe_differences(one, other) if name not in apart]
    if found:
        first = "; ".join(f"{name} is {one[name]} and {other[name]}" for name in found[:FEW])
        more = f" (+{len(found) - FEW} more)" if len(found) > FEW else ""
        raise DataError(
            f"would share a row with {one['run']}, whose training was another: {first}{more}. Name it in by, or in apart.",
            path=other["run"],
        )


def refuse_repeats(members: list[Row]) -> None:
    """The same recipe with the same seed is one observation, however often it ran."""
    for place, other in enumerate(members):
        for one in members[:place]:
            if not recipe_differences(one, other):
                raise DataError(f"is the same training as {one['run']}, seed included. Give one of them.", path=other["run"])


def rank(value: Any) -> tuple[int, Any]:
    """Nothing first, then numbers by size, then words."""
    if value is None:
        return 0, 0
    return (1, value) if isinstance(value, (int, float)) else (2, str(value))
