"""A recipe that could be trained, how long it would be trained, and what that costs. Arithmetic alone; no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from frugalvit.advise.facts import Machine, Speed

SPARE = 0.1  # of the time, for validation, checkpoints and the start
ROOM = {"cpu": 0.5, "device": 0.8}  # the share of the memory that training may fill
STATE = 16  # bytes a parameter: itself, its gradient and two moments, fp32
PASSES = 3  # forward and backward cost three forward passes


@dataclass(frozen=True)
class Length:
    """How long a recipe is trained: the keyword that says so, its usual value, and the least that is worth it."""

    keyword: Literal["epochs", "passes", "steps"]
    usual: int
    least: int


@dataclass(frozen=True)
class Candidate:
    """A recipe with its settings, but for length and batch; and what a paper reports of its model."""

    recipe: str
    settings: tuple[str, ...]  # name=value, as on the command line
    init: str  # released weights, or nothing
    pictures: int  # to train on
    length: Length
    batch: int  # pictures a step
    model: str  # as people call it
    top1: float  # in per cent, published, on `on`: it orders a ladder
    on: str


@dataclass(frozen=True)
class Plan:
    """A candidate with its length, and a batch that fits the memory."""

    candidate: Candidate
    count: int  # of epochs, passes or steps
    batch: int
    accumulate: int

    @property
    def overrides(self) -> tuple[str, ...]:
        """What is to be said on the command line; what the recipe does by itself is left out, but never the length."""
        own = self.candidate
        batch = (f"batch={self.batch}", f"accumulate={self.accumulate}") if self.accumulate > 1 else ()
        return (*own.settings, f"{own.length.keyword}={self.count}", *batch)

    @property
    def shortened(self) -> bool:
        return self.count < self.candidate.length.usual


@dataclass(frozen=True)
class Expected:
    """What a plan costs on a machine."""

    steps: int
    pictures: int  # seen, each time it is
    hours: float
    images_per_second: float  # of the slower of training and reading
    workers: int  # processes that read
    memory: int  # bytes, about
    macs: int  # in all: forward and backward
    slower: Literal["training", "reading"]


def planned(candidate: Candidate, speed: Speed, machine: Machine, count: int | None = None) -> Plan:
    """The plan at that length, or the usual one; the batch is halved and accumulated until it fits the memory."""
    room = machine.memory * ROOM["cpu" if machine.is_cpu else "device"] if machine.memory else math.inf
    batch = candidate.batch
    while batch % 4 == 0 and memory(speed, batch) > room:
        batch //= 2
    return Plan(candidate, candidate.length.usual if count is None else count, batch, candidate.batch // batch)


def memory(speed: Speed, batch: int) -> int:
    """Bytes for weights, gradients, moments and activations, about."""
    kept = speed.activations if speed.precision == "fp32" else speed.activations // 2
    return STATE * speed.parameters + kept * batch


def expected(plan: Plan, speed: Speed, machine: Machine) -> Expected:
    steps = steps_of(plan)
    seen = steps * plan.batch * plan.accumulate
    rate, workers = fed_rate(speed, machine)
    return Expected(
        steps=steps,
        pictures=seen,
        hours=seen / rate / 3600,
        images_per_second=rate,
        workers=workers,
        memory=memory(speed, plan.batch),
        macs=PASSES * speed.macs * seen,
        slower="training" if speed.kept or speed.reads_per_second * max(workers, 1) >= speed.images_per_second else "reading",
    )


def steps_of(plan: Plan) -> int:
    """Optimizer steps, as `training.prepare` counts them."""
    if plan.candidate.length.keyword == "steps":
        return plan.count
    an_epoch = max(plan.candidate.pictures // plan.batch, 1)
    return max(round(plan.count * an_epoch / plan.accumulate), 1)


def fed_rate(speed: Speed, machine: Machine) -> tuple[float, int]:
    """Pictures a second with reading, and the processes for it: on a CPU both take turns, elsewhere the slower one decides."""
    if speed.kept:
        return speed.images_per_second, 0
    if machine.is_cpu:
        return 1 / (1 / speed.images_per_second + 1 / speed.reads_per_second), 0
    wanted = math.ceil(speed.images_per_second / speed.reads_per_second)
    workers = max(1, min(wanted, machine.cores))
    return min(speed.images_per_second, workers * speed.reads_per_second), workers


def fits(cost: Expected, hours: float | None) -> bool:
    return hours is None or cost.hours <= hours * (1 - SPARE)


def longest(plan: Plan, cost: Expected, hours: float) -> Plan:
    """The plan shortened to the hours, but never below the least that is worth it."""
    least = plan.candidate.length.least
    share = hours * (1 - SPARE) / cost.hours
    return replace(plan, count=max(least, min(plan.count, int(plan.count * share))))
