"""Throughput: a model's training step on noise; a recipe's with and without the reading of its data, and its prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from frugalvit.data.ahead import mapped
from frugalvit.data.arrays import Arrays
from frugalvit.data.source import Source
from frugalvit.measure.latency import (
    FORWARD,
    ROUNDS,
    TRAINING,
    Speed,
    calls_in_a_round,
    compiled,
    inference_speeds,
    peak_memory,
    speeds,
)
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.network import Network
from frugalvit.training.devices import Place
from frugalvit.training.duration import Steps
from frugalvit.training.loop import Cadence, fit
from frugalvit.training.one_bit import place_of_bits
from frugalvit.training.prepare import MOST_TIMES, Training
from frugalvit.training.recipe import Recipe
from frugalvit.training.tune import Everything

NEVER = 10**7  # steps: longer than anyone measures
CLASSES = 10  # of noise, where the model does not say how many
PICTURES = 16  # of noise, at least
SEED = 0


# ------------------------------------------------------------------------------------------------ a model


def model_speeds(model: Architecture, batch: int, place: Place, *, calls: int | None = None) -> Iterator[Speed]:
    """A training step of the model alone, compiled on CUDA."""
    yield from speeds("training", model_step(model.build(seed=SEED), batch, place), batch, place.device, calls=calls)


def model_step(module: Network, batch: int, place: Place) -> Callable[[], None]:
    """One batch of noise on the device, soft targets for every head, fused AdamW."""
    device, image = place.device, module.spec.image
    module.to(device).train()
    forward = compiled(module, device)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=place.scales_loss)
    generator = torch.Generator(device).manual_seed(SEED)
    image_BCHW = torch.randn(batch, image.channels, image.height, image.width, generator=generator, device=device)
    target_BC = torch.randn(batch, module.spec.classes or CLASSES, generator=generator, device=device).softmax(1)

    def step() -> None:
        draws_RB = module.random_draws(batch, generator) if module.draws else None
        with place.autocast():
            outputs = forward(image_BCHW, draws_RB)
            loss = torch.stack([cross_entropy(logits_BC, target_BC) for logits_BC in outputs.values()]).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


# ------------------------------------------------------------------------------------------------ a recipe


def measurable(recipe: Recipe) -> Recipe:
    """The recipe without what needs another split."""
    return replace(recipe, stop=None, data=replace(recipe.data, validate="val"))


def long(recipe: Recipe) -> Recipe:
    """A recipe that is measured on noise: an epoch of it says nothing about how long it would train."""
    return replace(recipe, duration=Steps(NEVER))


def still_speeds(training: Training, *, calls: int | None = None) -> Iterator[Speed]:
    """The recipe's step on its first batch, which lies on the device: nothing is read."""
    recipe, device = training.recipe, training.place.device
    first = next(training.step.reader(training.batches, range(1), 0))
    given = [mapped(first, lambda tensor: tensor.to(device))] * recipe.accumulate
    yield from speeds("synthetic", lambda: training.step.take(given), recipe.pictures, device, calls=calls)


def fed_speeds(training: Training, workers: int, *, calls: int | None = None) -> Iterator[Speed]:
    """The recipe's loop as it trains: pictures read, augmented and sent. A round is one of the loop's records."""
    step, pictures = training.step, training.recipe.pictures
    step.clock = replace(step.clock, total=NEVER)  # a short training is measured for as long as one looks
    if step.count:
        step.taken()  # what was measured before is no part of the first record
    if calls is None:
        reader = fit(step, training.batches, every(1), workers)
        next(reader)  # with the start of the workers
        calls = calls_in_a_round(pictures / next(reader).values["time_images_per_second"])
        del reader  # and with it the workers
    records = fit(step, training.batches, every(calls), workers)
    next(records)
    found: tuple[float, ...] = ()
    waiting: tuple[float, ...] = ()
    for _ in range(ROUNDS):
        values = next(records).values
        found += (pictures / values["time_images_per_second"],)
        waiting += (values["time_waiting"],)
        # counted from `still_speeds` on: a CUDA graph is captured once, and allocates nothing afterwards
        yield Speed("with data", pictures, calls, None, found, waiting, peak_memory(training.place.device))


def predicting_speeds(recipe: Recipe, place: Place, *, calls: int | None = None) -> Iterator[Speed]:
    """Prediction with the recipe's model on a batch of noise, at the size and in the precision that it trains in."""
    module = recipe.model.build(seed=SEED)
    place = place_of_bits(module, place)
    module.stream = place.stream
    yield from inference_speeds(module, recipe.batch, place.device, product_type(place), calls=calls)


def passes_of(recipe: Recipe) -> int:
    """As many as a forward pass that training takes; frozen features have no gradients, and heads cost next to nothing."""
    return TRAINING if isinstance(recipe.tune, Everything) else FORWARD


def product_type(place: Place) -> torch.dtype:
    """Of the factors of its products."""
    return {"fp32": torch.float32, "fp16": torch.float16}.get(place.precision, torch.bfloat16)


def every(steps: int) -> Cadence:
    """A record every so many steps, and nothing else."""
    return Cadence(steps, NEVER, NEVER, NEVER)


def noise_for(recipe: Recipe) -> dict[str, Source]:
    """A few pictures of noise at the model's size, where there are no data; a batch takes them again and again."""
    image, classes = recipe.model.image, recipe.model.classes or CLASSES
    count = max(PICTURES, -(-recipe.batch // MOST_TIMES))
    size = (count, image.height, image.width, image.channels)
    image_NHWC = np.random.default_rng(SEED).integers(0, 256, size, dtype=np.uint8)
    return {"train": Arrays(image_NHWC, np.arange(count) % classes, [str(label) for label in range(classes)], "noise")}
