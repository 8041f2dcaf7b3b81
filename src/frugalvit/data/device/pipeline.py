"""An `Augment` as one module over whole batches.

    steps = pipeline(small_augment(), MapSize(32, 32, 3), (32, 32)).to("cuda")
    image_BCHW = steps(image_BCHW, uniform(key, Stream.AUGMENT, (len(image_BCHW), steps.draws)))

The bytes are those of the CPU's steps at equal decisions. The draws are others, so the two paths give different batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from torch import Tensor, nn

from frugalvit.data.augment import Augment, ColorJitter, Flip, PadCrop, Resize, ResizedCrop, Step
from frugalvit.data.autoaugment import AutoAugment
from frugalvit.data.device.frame import DeviceFlip, DevicePadCrop, DeviceResize, DeviceResizedCrop
from frugalvit.data.device.jitter import DeviceColorJitter
from frugalvit.data.device.policies import DeviceAutoAugment, DeviceRandAugment, DeviceTfRandAugment, DeviceTrivialAugment
from frugalvit.data.device.size import MapSize
from frugalvit.data.randaugment import RandAugment
from frugalvit.data.tf_randaugment import TfRandAugment
from frugalvit.data.trivialaugment import TrivialAugment
from frugalvit.errors import SpecError, at


class DeviceStep(Protocol):
    """What a step of a pipeline is: bytes in, bytes out, of one static size; all chance is in the draws, in [0, 1)."""

    draws: int

    def __call__(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor: ...


Built = (
    DeviceFlip
    | DeviceResize
    | DevicePadCrop
    | DeviceResizedCrop
    | DeviceColorJitter
    | DeviceAutoAugment
    | DeviceRandAugment
    | DeviceTfRandAugment
    | DeviceTrivialAugment
)


class DevicePipeline(nn.Module):
    """Steps, one after the other, each with its share of the draws, in order."""

    def __init__(self, steps: Sequence[Built]):
        super().__init__()
        self.steps = nn.ModuleList(steps)
        self.counts = tuple(step.draws for step in steps)
        self.draws = sum(self.counts)

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        for step, draws in zip(self.steps, draws_BK.split(self.counts, 1), strict=True):
            image_BCHW = step(image_BCHW, draws)
        return image_BCHW


def pipeline(augment: Augment, source: MapSize, target: tuple[int, int]) -> DevicePipeline:
    """`augment` for uint8 batches of pictures of the size `source`, which leave at (height, width) `target`."""
    return part_of_pipeline(augment.steps, source, target)


def part_of_pipeline(specs: Sequence[Step], source: MapSize, target: tuple[int, int]) -> DevicePipeline:
    """The same for some of its steps."""
    size, steps = source, []
    for place, spec in enumerate(specs):
        with at(f"steps[{place}]"):
            steps.append(device_step(spec, size, target))
        if isinstance(spec, (ResizedCrop, PadCrop, Resize)):
            size = replace(size, height=target[0], width=target[1])
    return DevicePipeline(steps)


def device_step(spec: Step, size: MapSize, target: tuple[int, int]) -> Built:
    """The module of one step, for pictures of this size."""
    match spec:
        case Flip():
            return DeviceFlip(spec)
        case Resize():
            return DeviceResize(spec, size, target)
        case PadCrop():
            return DevicePadCrop(spec, size, target)
        case ResizedCrop():
            return DeviceResizedCrop(spec, size, target)
        case ColorJitter():
            return DeviceColorJitter(spec)
        case AutoAugment():
            return DeviceAutoAugment(spec, size)
        case RandAugment():
            return DeviceRandAugment(spec, size)
        case TfRandAugment():
            return DeviceTfRandAugment(spec, size)
        case TrivialAugment():
            return DeviceTrivialAugment(spec, size)
    raise SpecError(f"{type(spec).__name__} has no version for the device. Augment on the CPU.")
