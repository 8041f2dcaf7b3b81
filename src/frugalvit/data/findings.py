"""What a check of a data set found."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from frugalvit.data.files import listed

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One thing to know: an error spoils training, a warning spoils its numbers, a note is taken care of."""

    severity: Severity
    problem: str
    cure: str
    places: tuple[str, ...] = ()  # pictures, folders or classes, all of them

    def line(self) -> str:
        where = f" ({listed(self.places)})" if self.places else ""
        return f"{self.severity}: {self.problem}{where}. {self.cure}"


@dataclass(frozen=True)
class Counts:
    """How many pictures a split has, and each class in it."""

    split: str
    pictures: int
    classes: tuple[tuple[str, int], ...]

    def line(self) -> str:
        numbers = [count for _, count in self.classes]
        each = f", {between(min(numbers), max(numbers))} in each" if len(numbers) > 1 else ""
        return f"{self.split}: {several(self.pictures, 'picture')} of {several(len(numbers), 'class')}{each}"


@dataclass(frozen=True)
class Span:
    """Smallest, middle and largest of a length in pixels."""

    least: int
    median: float
    most: int

    def line(self) -> str:
        middle = f", median {self.median:g}" if self.least < self.most else ""
        return f"{between(self.least, self.most)} pixels{middle}"


@dataclass(frozen=True)
class Report:
    """What `frugalvit data check PATH` prints."""

    root: str
    dataset: str  # the spec it was taken for, or nothing
    counts: tuple[Counts, ...]
    width: Span | None
    height: Span | None
    kinds: tuple[tuple[str, int], ...]  # color, gray, CMYK, ...: how many pictures are stored so
    findings: tuple[Finding, ...]

    @property
    def usable(self) -> bool:
        """Whether nothing is in the way of training."""
        return not any(finding.severity == "error" for finding in self.findings)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"usable": self.usable, **dataclasses.asdict(self)}

    def lines(self) -> list[str]:
        """For a terminal."""
        found = [f"{self.root}: {f'read as {self.dataset}' if self.dataset else 'not recognized'}"]
        found += [counts.line() for counts in self.counts]
        if self.width and self.height:
            found.append(f"width: {self.width.line()}; height: {self.height.line()}")
        if self.kinds:
            found.append("stored as: " + ", ".join(f"{kind} {count}" for kind, count in self.kinds))
        found += [finding.line() for finding in self.findings]
        numbers = {word: sum(one.severity == word for one in self.findings) for word in ("error", "warning", "note")}
        found.append(", ".join(several(count, word) for word, count in numbers.items()))
        return found


def several(count: int, noun: str) -> str:
    """`1 class`, `2 classes`."""
    return f"{count} {noun}{'' if count == 1 else 'es' if noun.endswith('s') else 's'}"


def between(least: int, most: int) -> str:
    return f"{least} to {most}" if least < most else str(least)


def span(lengths: Sequence[int]) -> Span | None:
    return Span(min(lengths), statistics.median(lengths), max(lengths)) if lengths else None
