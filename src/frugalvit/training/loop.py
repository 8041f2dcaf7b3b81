"""The loop: a generator of records. Logging, checkpoints and early stops are the caller's `for`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch.utils.data import Dataset

from frugalvit.data.batch import Batch
from frugalvit.data.encoded import EncodedBatches
from frugalvit.errors import FrugalError
from frugalvit.training.duration import NOTHING, Duration
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Clock
from frugalvit.training.step import Step

PATIENCE = 10.0  # seconds that a training which is asked to stop may go on until its next record


class NonFinite(FrugalError):
    """Too many steps in a row had a loss or a gradient that is no number."""


@dataclass(frozen=True)
class Cadence:
    """After which steps something is due. All are records too, so that only a state saved in haste splits a mean."""

    log: int
    evaluate: int  # 0, here and below: at the end alone
    save: int
    total: int

    def evaluates(self, step: int) -> bool:
        return self.due(step, self.evaluate)

    def saves(self, step: int) -> bool:
        return self.due(step, self.save)

    def due(self, step: int, every: int) -> bool:
        return step == self.total or (every > 0 and step % every == 0)

    def records(self, step: int) -> bool:
        return step % self.log == 0 or self.evaluates(step) or self.saves(step)

    def left(self, step: int) -> int:
        """Steps until the next record."""
        spans = (self.log, self.evaluate, self.save)
        return min([self.total - step, *(every - step % every for every in spans if every > 0)])


def cadence_of(recipe: Recipe, clock: Clock) -> Cadence:
    return Cadence(recipe.log_every, every(recipe.evaluate, clock), every(recipe.save, clock), clock.total)


def every(duration: Duration, clock: Clock) -> int:
    """In steps; a time too short for one is one, and no time at all stays 0."""
    return 0 if duration in NOTHING else max(duration.steps(clock.per_epoch, clock.total), 1)


@dataclass(frozen=True)
class Record:
    """What the steps up to this one gave: means since the last record; `time_` values differ from run to run."""

    step: int
    values: dict[str, float]


def fit(
    step: Step,
    batches: Dataset[Batch] | EncodedBatches,
    cadence: Cadence,
    workers: int = 0,
    asked_to_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Record]:
    """Trains from the state's step to the end, yielding a record whenever one is due.

    Where it is asked to stop and the next record is far, there is one at once.
    """
    state, recipe, clock = step.state, step.recipe, step.clock
    accumulate = recipe.accumulate
    reader = step.reader(batches, range(state.step * accumulate, clock.total * accumulate), workers)
    refuse_nonfinite(state.counters["in_a_row"], recipe, state.step)
    step.in_a_row.fill_(state.counters["in_a_row"])
    began, waited = time.perf_counter(), 0.0
    while state.step < clock.total:
        asked = time.perf_counter()
        given = [next(reader) for _ in range(accumulate)]
        waited += time.perf_counter() - asked
        note_bad(state.counters["bad_pictures"], given)
        lr = recipe.schedule.lr(state.step, step.peak, clock)
        step.take(given)
        spent = time.perf_counter() - began
        late = asked_to_stop() and cadence.left(state.step) * spent / max(step.count, 1) > PATIENCE
        if not (cadence.records(state.step) or late):
            continue
        count = step.count
        values = step.taken()
        spent = time.perf_counter() - began  # until the device was done
        state.counters["nonfinite"] += values["nonfinite"]
        most = round(step.most_in_a_row.item())
        # where the training ends here, what is saved says so, and resuming it ends in the same way
        state.counters["in_a_row"] = most if most >= recipe.nonfinite else round(step.in_a_row.item())
        yield Record(
            state.step,
            {
                **values,
                "epoch": float(state.step / clock.per_epoch),
                "lr": lr,
                "nonfinite": state.counters["nonfinite"],
                "bad_pictures": len(state.counters["bad_pictures"]),
                "time_images_per_second": count * recipe.pictures / spent,
                "time_waiting": waited / spent,
            },
        )
        refuse_nonfinite(most, recipe, state.step)
        began, waited = time.perf_counter(), 0.0


def refuse_nonfinite(in_a_row: int, recipe: Recipe, step: int) -> None:
    if in_a_row >= recipe.nonfinite:
        raise NonFinite(
            f"{recipe.nonfinite} steps in a row had a loss or gradient that is no number (until step {step}). "
            "None of them changed the weights. Lower the learning rate, lengthen the warm-up, or use precision=fp32.",
            path="train",
        )


def note_bad(names: list[str], batches: list[Batch]) -> None:
    """Each unreadable picture once."""
    for batch in batches:
        names += [name for name in dict.fromkeys(batch.bad) if name not in names]
