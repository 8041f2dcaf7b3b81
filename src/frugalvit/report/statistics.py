"""A number over several seeds: mean, sample standard deviation, and how many there were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from frugalvit.errors import DataError


@dataclass(frozen=True)
class Summary:
    """The mean of n values and their sample standard deviation, which one value does not have."""

    mean: float
    sd: float | None
    n: int

    @property
    def standard_error(self) -> float | None:
        return None if self.sd is None else self.sd / math.sqrt(self.n)

    def text(self, digits: int = 1) -> str:
        """`97.1 ± 0.3 (n = 5)`, or `97.1 (n = 1)`."""
        spread = "" if self.sd is None else f" ± {self.sd:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread} (n = {self.n})"

    def __str__(self) -> str:
        return self.text()


def summarize(values: Sequence[float]) -> Summary:
    """NaN among the values makes NaN of the result: a run that diverged is not left out."""
    if not values:
        raise DataError("there are no values to summarize.")
    return Summary(mean(values), sample_deviation(values) if len(values) > 1 else None, len(values))


def mean(values: Sequence[float]) -> float:
    return total(values) / len(values)


def sample_deviation(values: Sequence[float]) -> float:
    """sqrt(sum (x - mean)^2 / (n - 1))"""
    middle = mean(values)
    return math.sqrt(total([(one - middle) ** 2 for one in values]) / (len(values) - 1))


def standard_error(values: Sequence[float]) -> float:
    """Of the mean: sd / sqrt(n)"""
    return sample_deviation(values) / math.sqrt(len(values))


def total(values: Sequence[float]) -> float:
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
