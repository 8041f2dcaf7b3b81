"""The loop: a generator of records. Logging, checkpoints and early stops are the caller's `for`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from torch.utils.data import Dataset

from frugalvit.data.batch import Batch
from frugalvit.errors import FrugalError
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Clock
from frugalvit.training.step import Step


class NonFinite(FrugalError):
    """Too many steps in a row had a loss or a gradient that is no number."""


@dataclass(frozen=True)
class Cadence:
    """After which steps something is due. All are records too, so a saved state never splits a mean."""

    log: int
    evaluate: int
    save: int
    total: int

    def evaluates(self, step: int) -> bool:
        return step == self.total or step % self.evaluate == 0

    def saves(self, step: int) -> bool:
        return step == self.total or step % self.save == 0

    def records(self, step: int) -> bool:
        return step % self.log == 0 or self.evaluates(step) or self.saves(step)


def cadence_of(recipe: Recipe, clock: Clock) -> Cadence:
    evaluate, save = (max(one.steps(clock.per_epoch, clock.total), 1) for one in (recipe.evaluate, recipe.save))
    return Cadence(recipe.log_every, evaluate, save, clock.total)


@dataclass(frozen=True)
class Record:
    """What the steps up to this one gave: means since the last record; `time_` values differ from run to run."""

    step: int
    values: dict[str, float]


def fit(step: Step, batches: Dataset[Batch], cadence: Cadence, workers: int = 0) -> Iterator[Record]:
    """Trains from the state's step to the end, yielding a record whenever one is due."""
    state, recipe, clock = step.state, step.recipe, step.clock
    accumulate = recipe.accumulate
    reader = step.reader(batches, range(state.step * accumulate, clock.total * accumulate), workers)
    step.in_a_row.fill_(state.counters["in_a_row"])
    began, waited = time.perf_counter(), 0.0
    while state.step < clock.total:
        asked = time.perf_counter()
        given = [next(reader) for _ in range(accumulate)]
        waited += time.perf_counter() - asked
        note_bad(state.counters["bad_pictures"], given)
        lr = recipe.schedule.lr(state.step, step.peak, clock)
        step.take(given)
        if not cadence.records(state.step):
            continue
        count = step.count
        values = step.taken()
        spent = time.perf_counter() - began
        state.counters["nonfinite"] += values["nonfinite"]
        state.counters["in_a_row"] = round(step.in_a_row.item())
        yield Record(
            state.step,
            {
                **values,
                "epoch": state.step / clock.per_epoch,
                "lr": lr,
                "nonfinite": state.counters["nonfinite"],
                "bad_pictures": len(state.counters["bad_pictures"]),
                "time_images_per_second": count * recipe.pictures / spent,
                "time_waiting": waited / spent,
            },
        )
        if step.most_in_a_row.item() >= recipe.nonfinite:
            raise NonFinite(
                f"{recipe.nonfinite} steps in a row had a loss or gradient that is no number (until step {state.step}). "
                "None of them changed the weights. Lower the learning rate, lengthen the warm-up, or use precision=fp32.",
                path="train",
            )
        began, waited = time.perf_counter(), 0.0


def note_bad(names: list[str], batches: list[Batch]) -> None:
    """Each unreadable picture once."""
    for batch in batches:
        names += [name for name in dict.fromkeys(batch.bad) if name not in names]
