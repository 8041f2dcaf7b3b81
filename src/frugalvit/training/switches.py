"""Switches of torch that hold for the whole process: turned for as long as something trains, and then put back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from frugalvit.nn.convnet import ConvNet
from frugalvit.nn.network import Network
from frugalvit.nn.shape import MapShape, Shape
from frugalvit.training.prepare import Training
from frugalvit.training.recipe import Recipe

SMALL = 10**9  # multiply-accumulates of a batch's forward pass, about


class Switch:
    """One of them. Of several trainings at once, the first to come remembers what it was, and the last to go puts it back."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], object], wanted: object):
        self.read, self.write, self.wanted = read, write, wanted
        self.lock, self.holders, self.before = threading.Lock(), 0, None

    @contextmanager
    def turned(self) -> Iterator[None]:
        with self.lock:
            self.before = self.before if self.holders else self.read()
            self.holders += 1
            self.write(self.wanted)  # each time: the number of threads is one for every thread that computes
        try:
            yield
        finally:
            with self.lock:
                self.holders -= 1
                if not self.holders:
                    self.write(self.before)


DETERMINISTIC = Switch(
    lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
    lambda value: torch.use_deterministic_algorithms(value[0], warn_only=value[1]),
    (True, False),
)
TRIES_CONVOLUTIONS = Switch(
    lambda: torch.backends.cudnn.benchmark, partial(setattr, torch.backends.cudnn, "benchmark"), wanted=True
)
ONE_THREAD = Switch(torch.get_num_threads, torch.set_num_threads, 1)


def settled(recipe: Recipe) -> AbstractContextManager[None]:
    """Inside, torch computes as a recipe wants it."""
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # stays, for it is read once
        return DETERMINISTIC.turned()
    if recipe.teaching is not None or isinstance(recipe.model, ConvNet):
        return TRIES_CONVOLUTIONS.turned()  # shapes stay the same, so choosing a network's convolutions is done once
    return nullcontext()


def few_threads(training: Training) -> AbstractContextManager[None]:
    """Inside, one thread for small products on a CPU: several would spend their time waiting for each other."""
    module, place = training.state.module, training.place
    counted = place.device.type == "cpu" and isinstance(module, Network) and len(module.shapes) > 0
    return ONE_THREAD.turned() if counted and products(module) * training.recipe.batch < SMALL else nullcontext()


def products(module: Network) -> int:
    """The multiply-accumulates of a picture's forward pass, about: each parameter once for every token or place."""
    last = module.shapes[-1]
    if isinstance(last, Shape):
        return sum(one.numel() for one in module.parameters()) * last.length
    places = [(part, shape) for _, part, shape in module.places() if isinstance(shape, MapShape)]
    return sum(one.numel() * shape.height * shape.width for part, shape in places for one in part.parameters())
