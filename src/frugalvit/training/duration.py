"""Lengths of time in training: one type, resolved once."""

from __future__ import annotations

from dataclasses import dataclass

from frugalvit.errors import SpecError


@dataclass(frozen=True)
class Steps:
    """A number of optimizer steps."""

    count: int

    def steps(self, per_epoch: int, total: int) -> int:
        return self.count


@dataclass(frozen=True)
class Epochs:
    """A number of passes over the training pictures; fractions are rounded to whole steps."""

    count: float

    def steps(self, per_epoch: int, total: int) -> int:
        return round(self.count * per_epoch)


@dataclass(frozen=True)
class Fraction:
    """A share of the whole training."""

    share: float

    def steps(self, per_epoch: int, total: int) -> int:
        return round(self.share * total)


Duration = Steps | Epochs | Fraction


def total_steps(duration: Duration, per_epoch: int) -> int:
    """The length of the whole training in steps."""
    if isinstance(duration, Fraction):
        raise SpecError("a fraction of what? The whole training is so many Steps or Epochs.", path="recipe.duration")
    total = duration.steps(per_epoch, 0)
    if total < 1:
        given = f"{duration.count:g} {type(duration).__name__.lower()}"
        raise SpecError(f"{given}: no step at all, with {per_epoch} steps an epoch. Use more.", path="recipe.duration")
    return total
