"""A recipe that could be trained, how long it would be trained, and what that costs. Arithmetic alone; no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from frugalvit.advise.facts import Machine, Speed

SPARE = 0.1  # of the time, for checkpoints and the start
ROOM = {"cpu": 0.5, "device": 0.8}  # the share of the memory that training may fill
STATE = 16  # bytes a parameter: itself, its gradient and two moments, fp32
PASSES = 3  # forward and backward cost three forward passes
EPOCH = 10  # steps at least: `train` then leaves out less than a tenth of an epoch, which fills no batch
LEAST_BATCH = 8  # where there are as many pictures
HIGHEST = {"AdamW": 1e-2, "Muon": 0.1, "Sgd": 1.0}  # learning rates per 256 pictures, above which `train` warns


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
    batch: int  # pictures a step, as the recipe has it
    model: str  # as people call it
    top1: float  # in per cent, on `on`: it orders a ladder
    on: str
    ours: str = ""  # how we measured `top1`; nothing where a paper published it
    lr: float = 0.0  # as the recipe has it; 0 where it scales with the batch by itself
    optimizer: Literal["AdamW", "Muon", "Sgd"] = "AdamW"
    epoch: int = EPOCH  # steps at least

    @property
    def filled(self) -> int:
        """Pictures a step, of those there are."""
        return filled_batch(self.batch, self.pictures, self.epoch)

    @property
    def rate(self) -> tuple[str, ...]:
        """The learning rate, where it is too high for a smaller batch."""
        most = HIGHEST[self.optimizer] * self.filled / 256
        return (f"lr={math.floor(most * 1e5) / 1e5:g}",) if self.lr > most else ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """All but the length."""
        return (*self.settings, *((f"batch={self.filled}",) if self.filled < self.batch else ()), *self.rate)


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
        batch = (f"batch={self.batch}",) if self.batch < own.batch else ()
        more = (f"accumulate={self.accumulate}",) if self.accumulate > 1 else ()
        return (*own.settings, f"{own.length.keyword}={self.count}", *batch, *more, *own.rate)

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


def filled_batch(usual: int, pictures: int, epoch: int = EPOCH) -> int:
    """A batch of at most `usual` that leaves an epoch its steps: a power of two.

    Of so few pictures that it would be below LEAST_BATCH, the largest one up to there that leaves out a tenth at most.
    """
    most = pictures // epoch
    if most >= LEAST_BATCH:
        return min(usual, 1 << most.bit_length() - 1)
    fewer = range(min(usual, LEAST_BATCH, pictures), 0, -1)
    return next(one for one in fewer if pictures % one <= pictures / 10)


def planned(candidate: Candidate, speed: Speed, machine: Machine, count: int | None = None) -> Plan:
    """The plan at that length, or the usual one; the batch is halved and accumulated until it fits the memory."""
    room = machine.memory * ROOM["cpu" if machine.is_cpu else "device"] if machine.memory else math.inf
    batch = candidate.filled
    while batch % 4 == 0 and memory(speed, batch) > room:
        batch //= 2
    return Plan(candidate, candidate.length.usual if count is None else count, batch, candidate.filled // batch)


def memory(speed: Speed, batch: int) -> int:
    """Bytes for weights, gradients, moments and activations, about."""
    kept = speed.activations if speed.precision == "fp32" else speed.activations // 2
    return STATE * speed.parameters + kept * batch


def expected(plan: Plan, speed: Speed, machine: Machine) -> Expected:
    steps = steps_of(plan)
    seen = steps * plan.batch * plan.accumulate
    rate, workers = fed_rate(speed, machine)
    looking, _ = fed_rate(replace(speed, images_per_second=PASSES * speed.images_per_second), machine)  # forward alone
    return Expected(
        steps=steps,
        pictures=seen,
        hours=seen * (1 / rate + speed.validated / looking) / 3600,
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
