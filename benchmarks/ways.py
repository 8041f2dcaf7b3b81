"""Ways to compute a training step, and trainings of models by name on noisy pictures in each of them.

What each way is stands at the top of loss_agreement.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import frugalvit
from frugalvit.data.arrays import ArrayFolder, Arrays
from frugalvit.data.finish import normalize
from frugalvit.data.randomness import Stream, torch_generator
from frugalvit.data.source import Source
from frugalvit.nn.attention import MultiHead
from frugalvit.nn.mlp import TwoLayers
from frugalvit.nn.network import Network
from frugalvit.nn.projection import Together
from frugalvit.nn.shape import Image
from frugalvit.training.devices import Place
from frugalvit.training.duration import Steps
from frugalvit.training.schedule import Clock, Constant

CLASSES = 10
RATE = 5e-4
WARMUP = 0.1  # of the steps
CELLS = 4  # of a pattern, along each side
SEED = 0


@dataclass(frozen=True)
class Way:
    """How a step is computed."""

    precision: Literal["fp32", "bf16", "bf16_stream"] = "bf16"
    kernels: bool = True
    compiled: bool = False
    captured: bool = False
    nudge: int = 0  # which nudge the weights get, if any


NUDGES = ("nudged_1", "nudged_2", "nudged_3")
NUDGE = 2.0**-9  # of a weight: between a quarter and a half of the way to the next number of bf16
WAYS = {
    "plain": Way(kernels=False),
    "again": Way(kernels=False),
    "fp32": Way("fp32", kernels=False),
    **{name: Way(kernels=False, nudge=number) for number, name in enumerate(NUDGES, 1)},
    "kernels": Way(),
    "compiled": Way(compiled=True),
    "stream": Way("bf16_stream"),
    "compiled_stream": Way("bf16_stream", compiled=True),
    "graph": Way(captured=True),
    "compiled_graph": Way(compiled=True, captured=True),
}


def ways_named(text: str) -> list[str]:
    names = list(WAYS) if text == "all" else text.split(",")
    wrong = [name for name in names if name not in WAYS]
    if wrong:
        raise argparse.ArgumentTypeError(f"'{wrong[0]}' is no way. Use all, or some of {', '.join(WAYS)}.")
    return names


def pictures_for(model: str, arguments: argparse.Namespace) -> tuple[Source, str]:
    """And what to call them."""
    if ":" in model and arguments.data is not None:
        return ArrayFolder(0.0).open("train", arguments.data), "of arrays"
    if ":" in model:
        return synthetic(arguments.pictures, Image(32, 32), 1), "synthetic"
    return synthetic(arguments.pictures, frugalvit.model(model).image, 7), "synthetic"


def synthetic(count: int, image: Image, noise: int) -> Arrays:
    """A coarse pattern of colors, one a class, under `noise` times as much noise."""
    height, width, channels = image.height, image.width, image.channels
    draw = np.random.default_rng(SEED)
    labels_N = draw.integers(0, CLASSES, count)
    cells_KRRC = draw.integers(0, 256, (CLASSES, CELLS, CELLS, channels), dtype=np.uint8)
    row_H, column_W = np.arange(height) * CELLS // height, np.arange(width) * CELLS // width
    images_NHWC = draw.integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    for image_HWC, label in zip(images_NHWC, labels_N, strict=True):
        pattern_HWC = cells_KRRC[label][row_H][:, column_W]
        image_HWC[:] = (noise * image_HWC.astype(np.uint16) + pattern_HWC) // (noise + 1)
    return Arrays(images_NHWC, labels_N, [str(label) for label in range(CLASSES)], "synthetic")


def without_kernels(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, MultiHead):
            part.short = part.talks = part.whole = False
        elif isinstance(part, TwoLayers):
            part.fused = False
        elif isinstance(part, Together):
            part.summed = False


def nudge(module: nn.Module, number: int) -> None:
    """Every weight, by a factor between 1 - NUDGE and 1 + NUDGE."""
    draw = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for weight in module.parameters():
            weight *= 1 + NUDGE * (2 * torch.rand(weight.shape, generator=draw) - 1).to(weight.device)


@dataclass(frozen=True)
class Noisy:
    """Pictures on the device, in turn, under noise that is new in every step."""

    image_NCHW: Tensor
    label_N: Tensor
    noise: float

    @classmethod
    def of(cls, source: Arrays, noise: float, device: torch.device) -> Noisy:
        image_NCHW = torch.from_numpy(source.images).permute(0, 3, 1, 2).contiguous().to(device)
        return cls(image_NCHW, torch.from_numpy(source.labels).to(device), noise)

    def __call__(self, step: int, batch: int) -> tuple[Tensor, Tensor]:
        device, channels = self.image_NCHW.device, self.image_NCHW.shape[1]
        index_B = (torch.arange(batch, device=device) + step * batch) % len(self.label_N)
        image_BCHW = normalize(self.image_NCHW[index_B], (0.5,) * channels, (0.25,) * channels)
        draw = torch_generator(device, SEED, step, Stream.AUGMENT)
        return image_BCHW + self.noise * torch.randn(image_BCHW.shape, generator=draw, device=device), self.label_N[index_B]


@dataclass(frozen=True)
class ByName:
    """A model by name, computed in a way; every one of that name begins with the same weights."""

    module: Network
    forward: Callable[..., dict[str, Tensor]]
    place: Place

    @classmethod
    def build(cls, name: str, way: Way, place: Place) -> ByName:
        module = frugalvit.model(name, classes=CLASSES, drop_path=0.1).build(seed=SEED).to(place.device).train()
        module.stream = place.stream
        if not way.kernels:
            without_kernels(module)
        if way.nudge:
            nudge(module, way.nudge)
        return cls(module, torch.compile(module) if way.compiled else module, place)

    def loss(self, pictures: Noisy, step: int, batch: int) -> Tensor:
        """With the gradients of all parameters in their place."""
        image_BCHW, label_B = pictures(step, batch)
        draws_RB = self.module.random_draws(batch, torch_generator(self.place.device, SEED, step, Stream.DEPTH))
        with self.place.autocast():
            loss = cross_entropy(self.forward(image_BCHW, draws_RB)["class"], label_B, label_smoothing=0.1)
        loss.backward()
        return loss.detach()


def model_losses(model: ByName, pictures: Noisy, batch: int, steps: int, rate: float = RATE) -> list[float]:
    """Of a model by name that is trained from where it is."""
    optimizer = torch.optim.AdamW(model.module.parameters(), lr=rate, weight_decay=0.05, fused=True)
    schedule, clock = Constant(Steps(round(WARMUP * steps))), Clock(steps, steps)
    losses: list[Tensor] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = schedule.lr(step, rate, clock)
        losses.append(model.loss(pictures, step, batch))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return torch.stack(losses).tolist()
