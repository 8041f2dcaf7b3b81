"""Random erasing as a function of draws: the device version of erase.py, for what is captured in a graph.

    erasing = erase(Erase())
    image_BCHW = erasing(image_BCHW, uniform(key, Stream.ERASE, (len(image_BCHW), erasing.draws)), key)

Boxes are distributed as those of erase.py, which draws from a generator; the draws are others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from frugalvit.data.device.draws import normal
from frugalvit.data.erase import Erase, EraseConstant, Erasing, between, within
from frugalvit.data.finish import per_channel
from frugalvit.data.randomness import Stream
from frugalvit.errors import SpecError

NOISE = 0x10000 + Stream.ERASE  # a stream beside those that are named


@dataclass(frozen=True)
class DeviceErase:
    """`Erase`. Draws: the tries' areas, their ratios, whether, how far down, how far right.

    The noise has a stream of its own, so its key may be that of the draws.
    """

    spec: Erase

    @property
    def draws(self) -> int:
        return 2 * self.spec.tries + 3

    def __call__(self, image_BCHW: Tensor, draws_BK: Tensor, noise_key: Tensor) -> Tensor:
        filling_BCHW = self.filling(image_BCHW, noise_key)
        return torch.where(self.boxes(image_BCHW, draws_BK)[:, None], filling_BCHW, image_BCHW)

    def filling(self, image_BCHW: Tensor, noise_key: Tensor) -> Tensor:
        return normal(noise_key, NOISE, image_BCHW.shape).to(image_BCHW.dtype)

    def boxes(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        """inside_BHW: true in each picture's box, nowhere where it stays whole."""
        height, width = image_BCHW.shape[2:]
        area_BT, shape_BT, rest_B3 = draws_BK.split((self.spec.tries, self.spec.tries, 3), 1)
        area_BT = between(area_BT, *self.spec.area) * (height * width)
        ratio_BT = between(shape_BT, math.log(self.spec.ratio[0]), math.log(self.spec.ratio[1])).exp()
        high_BT, wide_BT = (area_BT * ratio_BT).sqrt().round(), (area_BT / ratio_BT).sqrt().round()
        fits_BT = (high_BT < height) & (wide_BT < width)
        first_B1 = fits_BT.int().argmax(1, keepdim=True)  # the first that fits, as if drawn one after the other
        high_B, wide_B, fits_B = (values_BT.gather(1, first_B1)[:, 0] for values_BT in (high_BT, wide_BT, fits_BT))
        wanted_B, top_B, left_B = rest_B3.unbind(1)
        rows_BH = within(height, (top_B * (height - high_B + 1)).floor(), high_B)
        columns_BW = within(width, (left_B * (width - wide_B + 1)).floor(), wide_B)
        erased_B = fits_B & (wanted_B < self.spec.probability)
        return erased_B[:, None, None] & rows_BH[:, :, None] & columns_BW[:, None, :]


@dataclass(frozen=True)
class DeviceEraseConstant(DeviceErase):
    """`EraseConstant`: as `DeviceErase`, but the noise's key is not read."""

    spec: EraseConstant

    def filling(self, image_BCHW: Tensor, noise_key: Tensor) -> Tensor:
        channels, color = image_BCHW.shape[1], self.spec.color
        if len(color) not in (1, channels):
            cure = f"Give one for all, or {channels}."
            raise SpecError(f"{len(color)} numbers for {channels} channels. {cure}", path="recipe.data.erase.color")
        return per_channel(color * (channels // len(color)), image_BCHW).to(image_BCHW.dtype)


def erase(spec: Erasing) -> DeviceErase:
    """The function of draws that a spec stands for."""
    match spec:
        case EraseConstant():
            return DeviceEraseConstant(spec)
        case Erase():
            return DeviceErase(spec)
    raise SpecError(f"{type(spec).__name__} has no version for the device. Use the spec's own `erase`.")
