"""A study: what was measured by row, column and seed, the paper's figures beside it, and which of its orderings hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from frugalvit.errors import SpecError, at, suggestion
from frugalvit.report.statistics import Summary, summarize
from frugalvit.report.table import Row, as_markdown

Spot = tuple[str, str]  # a row and a column
SURE = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # Student's t for 95 %, two-sided, with 1, 2, ... 9 free values


@dataclass(frozen=True)
class Claim:
    """An ordering that a paper found: what stands at `more` is larger than what stands at `less`."""

    text: str
    more: Spot
    less: Spot
    paper: str = ""  # by how much, in the paper


@dataclass(frozen=True)
class Verdict:
    """How a claim fares here: the differences over the seeds that both sides have, or None where there is no such seed."""

    claim: Claim
    difference: Summary | None

    @property
    def word(self) -> Literal["holds", "does not hold", "undecided", "not measured"]:
        """Undecided: with one seed, or where the 95 % interval of the mean difference has 0 in it (Student's t)."""
        if self.difference is None:
            return "not measured"
        error, free = self.difference.standard_error, self.difference.n - 1
        if error is None or not abs(self.difference.mean) > SURE[min(free, len(SURE)) - 1] * error:
            return "undecided"
        return "holds" if self.difference.mean > 0 else "does not hold"

    def text(self, digits: int) -> str:
        """`hard above soft: holds, +1.30 ± 0.21 (standard error, n = 3); the paper +2.1`"""
        paper = f"; the paper {self.claim.paper}" if self.claim.paper else ""
        if self.difference is None:
            return f"{self.claim.text}: {self.word}{paper}"
        error = self.difference.standard_error
        spread = "" if error is None else f" ± {error:.{digits}f}"
        what = "" if error is None else "standard error, "
        return (
            f"{self.claim.text}: {self.word}, {self.difference.mean:+.{digits}f}{spread} ({what}n = {self.difference.n}){paper}"
        )


@dataclass(frozen=True)
class Study:
    """A table of a paper, measured again. `values` are by row and column, then by seed; what is not there is not measured."""

    title: str
    about: str  # what the numbers are, in a sentence or two
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Mapping[Spot, Mapping[int, float]]
    claims: tuple[Claim, ...] = ()
    beside: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # more columns, by row: the paper's figures
    paper: tuple[Row, ...] = ()  # the paper's own table, where its columns are not these
    notes: tuple[str, ...] = ()
    digits: int = 2

    def __post_init__(self) -> None:
        for claim in self.claims:
            with at(claim.text):
                for row, column in (claim.more, claim.less):
                    refuse_unknown(row, self.rows, "row")
                    refuse_unknown(column, self.columns, "column")

    def summary(self, row: str, column: str) -> Summary | None:
        """Mean, deviation and n over the seeds of a cell."""
        found = self.values.get((row, column), {})
        return summarize(list(found.values())) if found else None

    def difference(self, more: Spot, less: Spot) -> Summary | None:
        """Of two cells, seed by seed: equal seeds have equal batches, and one training may stand in both."""
        ours, theirs = self.values.get(more, {}), self.values.get(less, {})
        found = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        return summarize(found) if found else None

    def verdicts(self) -> list[Verdict]:
        return [Verdict(claim, self.difference(claim.more, claim.less)) for claim in self.claims]

    def table(self) -> list[Row]:
        """A row each, as `report.table` prints it; n in every cell unless all have the same."""
        found = {(row, column): self.summary(row, column) for row in self.rows for column in self.columns}
        shown = {spot: "" if one is None else one.text(self.digits) for spot, one in found.items()}
        if self.n is not None:
            shown = {spot: text.removesuffix(f" (n = {self.n})") for spot, text in shown.items()}
        ours = {row: {column: shown[row, column] for column in self.columns} for row in self.rows}
        theirs = {row: {name: figure(given.get(row)) for name, given in self.beside.items()} for row in self.rows}
        return [{"": row} | ours[row] | theirs[row] for row in self.rows]

    @property
    def n(self) -> int | None:
        """How many seeds each cell has, if all that are measured have the same."""
        counts = {len(found) for found in self.values.values() if found}
        return counts.pop() if len(counts) == 1 else None

    def markdown(self) -> str:
        """Title, table, verdicts, notes."""
        parts = [f"## {self.title}\n", f"{self.about}\n", as_markdown(self.table())]
        if self.paper:
            parts += ["The paper's:\n", as_markdown(self.paper)]
        every = [] if self.n is None else [f"n = {self.n} in every cell that is measured"]
        said = [*every, *(one.text(self.digits) for one in self.verdicts()), *self.notes]
        return "\n".join([*parts, "".join(f"- {line}\n" for line in said)])

    def plain(self) -> dict[str, Any]:
        """As JSON: every value, and what became of the claims."""
        return {
            "title": self.title,
            "cells": [
                {"row": row, "column": column, "values": {str(seed): value for seed, value in found.items()}}
                for (row, column), found in self.values.items()
            ],
            "claims": [{"text": one.text(self.digits), "verdict": one.word} for one in self.verdicts()],
            "notes": list(self.notes),
        }


def refuse_unknown(name: str, known: tuple[str, ...], what: str) -> None:
    if name not in known:
        raise SpecError(f"no {what} is called '{name}'. {suggestion(name, known)}")


def figure(value: Any) -> str:
    """A paper's figure, with the one digit that it prints."""
    return f"{value:.1f}" if isinstance(value, float) else "" if value is None else str(value)
