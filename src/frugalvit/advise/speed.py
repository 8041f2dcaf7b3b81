"""How fast a recipe trains on this machine: a few steps of the real thing on synthetic pictures, a few real pictures read."""

from __future__ import annotations

import contextlib
import functools
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from PIL import Image as Pillow

from frugalvit.advise.facts import Facts, Machine, Speed
from frugalvit.advise.look import spread
from frugalvit.data.batch import Batch
from frugalvit.data.batches import TrainingBatches
from frugalvit.data.device.pipeline import pipeline
from frugalvit.data.device.size import MapSize
from frugalvit.data.order import Shuffled
from frugalvit.data.preprocess import MODES
from frugalvit.data.source import Source
from frugalvit.data.split import Picked
from frugalvit.data.store_device import SHARE, free_memory
from frugalvit.errors import SpecError
from frugalvit.measure.cost import ModelCost, cost
from frugalvit.measure.processor import longest_wait, usable_cores, waited
from frugalvit.training import compiled
from frugalvit.training.devices import Place, place_for
from frugalvit.training.loop import every
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe, preprocess_of
from frugalvit.training.schedule import Clock
from frugalvit.training.switches import SMALL, settled

ROUNDS = 5  # at most
SECONDS = 2.0  # of rounds, after which there is no further one
CPU_MACS = 2.5e10  # of a batch's forward pass on a CPU: a second or so; smaller batches are slower a picture
WAITING = 0.1  # the share of the time above which a thread that waits for a core is worth a word
DEVICE_BATCH = 256  # at most, elsewhere
WARM = 3  # steps before, on a device: the first one captures a graph
READ = 16  # pictures a timed batch of reading

cost_of = functools.cache(cost)  # it is traced, and asked for more than once


def machine(device: str) -> Machine:
    """The machine as training will see it."""
    place = place_for(device, "auto")
    name, memory = "CPU", physical_memory()
    if place.device.type == "cuda":
        found = torch.cuda.get_device_properties(place.device)
        name, memory = found.name, found.total_memory
    elif place.device.type == "mps":
        name = "Apple GPU"
    return Machine(str(place.device), name, place.precision, torch.get_num_threads(), usable_cores(), memory)


def physical_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not every system tells
        return 0


def measured(recipe: Recipe, facts: Facts, reads: float, device: str) -> Speed:
    """The speed of a recipe whose number of classes is filled in. `reads` is how many pictures a process reads a second."""
    place = place_for(device, recipe.precision)
    costs = cost_of(recipe.model)
    batch = timed_batch(recipe, costs, place)
    while True:
        try:
            rate, rounds, held_up = trained(recipe, batch, place, costs)
            break
        except torch.OutOfMemoryError:
            if batch == 2:
                raise
            batch = max(batch // 2, 2)
    threads = torch.get_num_threads() if costs.macs * recipe.batch >= SMALL else 1
    cpu = place.device.type == "cpu"
    where = f", {threads} thread{'s' * (threads > 1)}" if cpu else ", not compiled"
    first = "a first one" if cpu else f"{WARM} first ones"
    steps = f"{rounds} step{'s' * (rounds > 1)} of {batch} synthetic pictures after {first}"
    others = f", while other programs or a CPU limit held it up {held_up:.0%} of the time" if held_up > WAITING else ""
    how = f"measured: {steps}, {place.precision}{where}{others}"
    return speed(recipe, facts, reads, place, costs, rate, how)


def estimated(recipe: Recipe, facts: Facts, reads: float, device: str, like: Speed, model: str) -> Speed:
    """A speed by the multiply-accumulates of a model that was measured."""
    costs = cost_of(recipe.model)
    how = f"estimated from {model}, by multiply-accumulates"
    rate = like.images_per_second * like.macs / costs.macs
    return speed(recipe, facts, reads, place_for(device, recipe.precision), costs, rate, how)


def speed(recipe: Recipe, facts: Facts, reads: float, place: Place, costs: ModelCost, rate: float, how: str) -> Speed:
    return Speed(
        parameters=costs.parameters,
        macs=costs.macs,
        activations=costs.activations,
        precision=place.precision,
        images_per_second=rate,
        reads_per_second=reads,
        kept=is_kept(recipe, facts, place),
        how=how,
        validated=validated(recipe, facts),
    )


def validated(recipe: Recipe, facts: Facts) -> float:
    """How many pictures validation looks at for each one that is trained on."""
    per_epoch = max(recipe.data.order.length(facts.pictures) // recipe.pictures, 1)
    clock = Clock(recipe.duration.steps(per_epoch, 0), per_epoch)
    between = every(recipe.evaluate, clock) or clock.total
    return max(clock.total // between, 1) * facts.held / (clock.total * recipe.pictures)


def is_kept(recipe: Recipe, facts: Facts, place: Place) -> bool:
    """Whether training will keep all pictures on the device, so that none is read twice: few, alike, and simply augmented."""
    if place.device.type != "cuda" or place.scales_loss or facts.sizes > 1:
        return False
    image = recipe.model.image
    size = MapSize(facts.side, facts.longest, image.channels)  # in which order does not matter here
    try:
        pipeline(recipe.data.augment, size, (image.height, image.width))
    except SpecError:
        return False
    return facts.whole * facts.side * facts.longest * image.channels <= SHARE * free_memory(place.device)


def timed_batch(recipe: Recipe, costs: ModelCost, place: Place) -> int:
    """A power of two that is quickly done, and not more than the recipe has; even, since mixing pairs pictures."""
    most = CPU_MACS / costs.macs if place.device.type == "cpu" else DEVICE_BATCH
    most = max(min(most, recipe.batch), 2)
    return 1 << int(most).bit_length() - 1


def trained(recipe: Recipe, batch: int, place: Place, costs: ModelCost) -> tuple[float, int, float]:
    """Pictures a second at the recipe's own step; in how many rounds; and the share of the time that a thread had no core.

    On a CPU batches are small, so the gradients and the update are timed apart, and put together for a whole step.
    """
    cpu = place.device.type == "cpu"
    gradients: list[float] = []
    updates: list[float] = []
    with settled(recipe), few_threads(costs.macs * recipe.batch):
        training = uncompiled(recipe, batch, place)
        given = pictures_for(training, batch)
        for _ in range(1 if cpu else WARM):
            training.step.take([given])
        finished(place)
        began, before = time.perf_counter(), waited()
        while not gradients or (len(gradients) < ROUNDS and time.perf_counter() - began < SECONDS):
            start = middle = time.perf_counter()
            if cpu:
                training.step.gradients(given, 1)
                middle = time.perf_counter()
            training.step.take([given])
            finished(place)
            both = time.perf_counter() - middle
            gradients.append(middle - start if cpu else both)
            updates.append(max(both - gradients[-1], 0.0))
        told = cpu and torch.get_num_threads() <= usable_cores()  # more threads than cores wait for each other
        held_up = longest_wait(before, waited()) / (time.perf_counter() - began) if told else 0.0
    rate = 1 / (statistics.median(gradients) / batch + statistics.median(updates) / recipe.pictures)
    return rate, len(gradients), held_up


def uncompiled(recipe: Recipe, batch: int, place: Place) -> Training:
    """The recipe on synthetic pictures, as one that is too short to be compiled, which would take longer than all measuring."""
    training = prepare(replace(recipe, batch=batch, accumulate=1, stop=None), {"train": Synthetic(recipe)}, place)
    clock = training.step.clock
    training.step.clock = replace(clock, total=min(clock.total, compiled.FROM - 1))
    return training


@contextlib.contextmanager
def few_threads(macs: float) -> Iterator[None]:
    """One thread where training would take one."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if macs >= SMALL else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Synthetic:
    """Pictures of no content, one for every class and for a batch.

    Of two sizes: those of one are kept on a device and augmented there, which would write them to the cache first.
    """

    def __init__(self, recipe: Recipe):
        classes = recipe.model.classes or 2
        self.image = recipe.model.image
        self.classes = tuple(map(str, range(classes)))
        self.labels = np.arange(max(classes, recipe.batch)) % classes

    def __len__(self) -> int:
        return len(self.labels)

    def picture(self, index: int) -> Pillow.Image:
        return Pillow.new(MODES[self.image.channels], (self.image.width + (index == 0), self.image.height))

    def name(self, index: int) -> str:
        return f"synthetic[{index}]"

    def fingerprint(self) -> str:
        return f"{len(self):016x}"


def pictures_for(training: Training, batch: int) -> Batch:
    image, classes = training.recipe.model.image, training.recipe.model.classes or 2
    draw = torch.Generator().manual_seed(0)
    shape = (batch, image.channels, image.height, image.width)
    image_BCHW = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
    device = training.place.device
    return Batch(image_BCHW.to(device), (torch.arange(batch) % classes).to(device), torch.arange(batch).to(device))


def finished(place: Place) -> None:
    """Wait for the device."""
    if place.device.type == "cuda":
        torch.cuda.synchronize(place.device)
    elif place.device.type == "mps":
        torch.mps.synchronize()


def read_rate(recipe: Recipe, source: Source) -> float:
    """Pictures a second that one process reads from the data and augments."""
    few = Picked(source, spread(source))  # ordering a million pictures is no part of reading one
    batches = TrainingBatches(few, recipe.data.augment, Shuffled(), 0, READ, preprocess_of(recipe))
    rates = []
    began = time.perf_counter()
    for number in range(ROUNDS):
        start = time.perf_counter()
        batches[number]
        rates.append(READ / (time.perf_counter() - start))
        if time.perf_counter() - began > SECONDS / 2:
            break
    return statistics.median(rates)
