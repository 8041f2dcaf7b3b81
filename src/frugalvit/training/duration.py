"""Lengths of time in training: one type, resolved once."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction as Ratio

from frugalvit.errors import SpecError


def refuse_negative(count: float, unit: str) -> None:
    if isinstance(count, (int, float)) and count < 0:
        raise SpecError(f"a length of {count:g} {unit}. Use 0 or more; of a whole training, 1 or more.", path="count")


@dataclass(frozen=True)
class Steps:
    """A number of optimizer steps."""

    count: int

    def __post_init__(self) -> None:
        refuse_negative(self.count, "steps")

    def steps(self, per_epoch: int | Ratio, total: int) -> int:
        return self.count


@dataclass(frozen=True)
class Epochs:
    """A number of passes over the training pictures; fractions are rounded to whole steps, a whole pass to one or more."""

    count: float

    def __post_init__(self) -> None:
        refuse_negative(self.count, "epochs")

    def steps(self, per_epoch: int | Ratio, total: int) -> int:
        return max(round(self.count * per_epoch), int(self.count >= 1))


@dataclass(frozen=True)
class Fraction:
    """A share of the whole training."""

    share: float

    def __post_init__(self) -> None:
        if isinstance(self.share, (int, float)) and not 0 <= self.share <= 1:
            raise SpecError(f"a share of {self.share:g} of the training. Use 0 to 1.", path="share")

    def steps(self, per_epoch: int | Ratio, total: int) -> int:
        return round(self.share * total)


Duration = Steps | Epochs | Fraction
NOTHING = (Steps(0), Epochs(0), Fraction(0))


def total_steps(duration: Duration, per_epoch: int | Ratio) -> int:
    """The length of the whole training in steps."""
    if isinstance(duration, Fraction):
        raise SpecError("a fraction of what? The whole training is so many Steps or Epochs.", path="recipe.duration")
    total = duration.steps(per_epoch, 0)
    if total < 1:
        given = f"{duration.count:g} {type(duration).__name__.lower()}"
        raise SpecError(f"{given}: no step at all, with {float(per_epoch):g} steps an epoch. Use more.", path="recipe.duration")
    return total
