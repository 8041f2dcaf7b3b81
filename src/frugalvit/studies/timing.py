"""Where the time of a training went, from its log."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

from frugalvit.report.record import RunFolder


@dataclass(frozen=True)
class TimeSplit:
    """Seconds: of all steps at their usual pace, and what the first record took beyond it, compiling and capturing."""

    steps: float
    first: float
    images_per_second: float  # at the usual pace
    waiting: float  # for data, as a share

    @property
    def total(self) -> float:
        return self.steps + self.first


def time_split(folder: Path) -> TimeSplit:
    """Of a finished run that was not interrupted. The usual pace is the median of all records but the first."""
    run = RunFolder(folder)
    recipe, records = run.recipe(), run.metrics()
    pictures = recipe["batch"] * recipe["accumulate"]
    starts = [0, *(record["step"] for record in records)]
    counts = [pictures * (record["step"] - start) for start, record in zip(starts, records, strict=False)]
    spent = [count / record["time_images_per_second"] for count, record in zip(counts, records, strict=True)]
    rates = [record["time_images_per_second"] for record in records[1:] or records]
    pace = statistics.median(rates)
    first = max(spent[0] - counts[0] / pace, 0.0)
    waiting = statistics.median(record["time_waiting"] for record in records)
    return TimeSplit(sum(spent) - first, first, pace, waiting)
