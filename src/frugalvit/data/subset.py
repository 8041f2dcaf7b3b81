"""Less of a data set: a fraction of every class, or the first classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from frugalvit.data.randomness import Stream
from frugalvit.data.source import Source
from frugalvit.data.split import Picked, by_class, shuffled
from frugalvit.errors import SpecError

SUBSET = 1  # sets these draws apart from those of a validation split


@dataclass(frozen=True)
class FirstFraction:
    """The first int(fraction · n) pictures of every class by sorted name (ConViT, Table 2), at least one. Of train only."""

    fraction: float

    def __post_init__(self) -> None:
        refuse_impossible_fraction(self.fraction)

    def pick(self, source: Source) -> Source:
        def by_name(members: np.ndarray, label: int) -> np.ndarray:
            return np.array(sorted(members, key=lambda index: source.name(int(index))), dtype=np.int64)

        return fraction_of_each(source, self.fraction, by_name)


@dataclass(frozen=True)
class SeededFraction:
    """int(fraction · n) pictures of every class, drawn by `seed`, at least one: more only adds some. Of train only."""

    fraction: float
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_fraction(self.fraction)

    def pick(self, source: Source) -> Source:
        def by_draw(members: np.ndarray, label: int) -> np.ndarray:
            return shuffled(members, self.seed, Stream.SPLIT, label, SUBSET)

        return fraction_of_each(source, self.fraction, by_draw)


@dataclass(frozen=True)
class FirstClasses:
    """The first `count` classes, of all splits (ConViT's ablations: 100 of ImageNet)."""

    count: int

    def __post_init__(self) -> None:
        if self.count < 2:
            raise SpecError(f"{self.count} classes. Keep 2 or more.", path="count")

    def pick(self, source: Source) -> Source:
        if self.count > len(source.classes):
            raise SpecError(f"{self.count} classes where there are {len(source.classes)}. Keep fewer.", path="count")
        return Picked(source, np.flatnonzero(source.labels < self.count), source.classes[: self.count])


def fraction_of_each(source: Source, fraction: float, order: Callable[[np.ndarray, int], np.ndarray]) -> Picked:
    """The first pictures of each class in `order`, put back into the source's."""
    groups = by_class(source.labels)
    kept = [order(members, label)[: max(1, int(fraction * len(members)))] for label, members in groups.items()]
    return Picked(source, np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.int64))


def refuse_impossible_fraction(fraction: float) -> None:
    if not 0 < fraction <= 1:
        raise SpecError(f"a fraction of {fraction}. Use more than 0, up to 1.", path="fraction")


Subset = FirstFraction | SeededFraction | FirstClasses  # what may stand in `Data.subset`
