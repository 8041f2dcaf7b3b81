"""The learning rate as a pure function of the step, so that resuming cannot change it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction as Ratio

from frugalvit.training.duration import Duration, Epochs, Steps


@dataclass(frozen=True)
class Clock:
    """Where a step stands: the whole training in steps, and an epoch in steps, a ratio where gradients are accumulated."""

    total: int
    per_epoch: int | Ratio


@dataclass(frozen=True)
class Cosine:
    """Linear warm-up from `start`, then half a cosine from the peak to `end`, step by step."""

    warmup: Duration = Steps(0)
    start: float = 1e-6
    end: float = 0.0

    def lr(self, step: int, peak: float, clock: Clock) -> float:
        warmup = self.warmup.steps(clock.per_epoch, clock.total)
        if step < warmup:
            return self.start + (peak - self.start) * step / warmup
        done = (step - warmup) / max(clock.total - warmup, 1)
        return self.end + 0.5 * (peak - self.end) * (1 + math.cos(math.pi * min(done, 1.0)))


@dataclass(frozen=True)
class EpochCosine:
    """DeiT's schedule as released: constant inside an epoch, the warm-up laid over the cosine, one epoch late.

    lr(t) = end + (peak − end) (1 + cos(π t / T)) / 2 from t = warm-up on; epochs 0 and 1 both train at t = 0.
    """

    warmup: Epochs = Epochs(5)
    start: float = 1e-6
    end: float = 1e-5

    def lr(self, step: int, peak: float, clock: Clock) -> float:
        epoch = max(step // clock.per_epoch - 1, 0)
        if epoch < self.warmup.count:
            return self.start + (peak - self.start) * epoch / self.warmup.count
        epochs = clock.total / clock.per_epoch
        return self.end + 0.5 * (peak - self.end) * (1 + math.cos(math.pi * epoch / epochs))


@dataclass(frozen=True)
class Constant:
    """Linear warm-up from `start`, then the peak."""

    warmup: Duration = Steps(0)
    start: float = 1e-6

    def lr(self, step: int, peak: float, clock: Clock) -> float:
        warmup = self.warmup.steps(clock.per_epoch, clock.total)
        return self.start + (peak - self.start) * step / warmup if step < warmup else peak


Schedule = Cosine | EpochCosine | Constant
