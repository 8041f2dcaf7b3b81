"""Random erasing (Zhong et al. 2020): a box of a normalized picture gives way to noise, on the batch's own device."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from frugalvit.data.bounds import require_at_least, require_probability, require_range
from frugalvit.data.finish import per_channel
from frugalvit.errors import SpecError


@dataclass(frozen=True)
class Erase:
    """One box a picture, filled with N(0, 1) per pixel and channel, as DeiT does (Touvron et al. 2021, Table 9).

    `area` is a share of the picture (uniform), `ratio` is height / width (log-uniform). A box as high or as wide as the
    picture is drawn again, `tries` times in all; then the picture stays whole.
    """

    probability: float = 0.25
    area: tuple[float, float] = (0.02, 1 / 3)
    ratio: tuple[float, float] = (0.3, 1 / 0.3)
    tries: int = 10

    def __post_init__(self) -> None:
        require_probability(self.probability, "probability")
        require_range(self.area, "area", most=1.0)
        require_range(self.ratio, "ratio")
        require_at_least(self.tries, 1, "tries")

    def erase(self, image_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        """The pictures with their boxes filled; `generator` lives on their device, keyed (seed, step, Stream.ERASE)."""
        inside_B1HW = self.boxes(image_BCHW, generator)[:, None]
        return torch.where(inside_B1HW, self.filling(image_BCHW, generator), image_BCHW)

    def filling(self, image_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        return torch.randn(image_BCHW.shape, generator=generator, dtype=image_BCHW.dtype, device=image_BCHW.device)

    def boxes(self, image_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        """inside_BHW: true in each picture's box, nowhere where it stays whole."""
        count, _, height, width = image_BCHW.shape
        device = image_BCHW.device
        area_BT, shape_BT = torch.rand((2, count, self.tries), generator=generator, device=device)
        wanted_B, top_B, left_B = torch.rand((3, count), generator=generator, device=device)
        area_BT = between(area_BT, *self.area) * (height * width)
        ratio_BT = between(shape_BT, math.log(self.ratio[0]), math.log(self.ratio[1])).exp()
        high_BT, wide_BT = (area_BT * ratio_BT).sqrt().round(), (area_BT / ratio_BT).sqrt().round()
        fits_BT = (high_BT < height) & (wide_BT < width)
        first_B1 = fits_BT.int().argmax(1, keepdim=True)  # the first that fits, as if drawn one after the other
        high_B, wide_B, fits_B = (values_BT.gather(1, first_B1)[:, 0] for values_BT in (high_BT, wide_BT, fits_BT))
        rows_BH = within(height, (top_B * (height - high_B + 1)).floor(), high_B)
        columns_BW = within(width, (left_B * (width - wide_B + 1)).floor(), wide_B)
        erased_B = fits_B & (wanted_B < self.probability)
        return erased_B[:, None, None] & rows_BH[:, :, None] & columns_BW[:, None, :]


@dataclass(frozen=True)
class EraseConstant(Erase):
    """One box a picture, filled with `color` in normalized units: 0 is the mean color (Zhong et al. 2020, "RE-M").

    One number for all channels, or one each. Lee et al. (2021) write the mean itself, as it is before normalizing, into
    normalized pictures: a light gray.
    """

    color: tuple[float, ...] = (0.0,)

    def filling(self, image_BCHW: Tensor, generator: torch.Generator) -> Tensor:
        channels = image_BCHW.shape[1]
        if len(self.color) not in (1, channels):
            cure = f"Give one for all, or {channels}."
            raise SpecError(f"{len(self.color)} numbers for {channels} channels. {cure}", path="recipe.data.erase.color")
        colors = self.color * (channels // len(self.color))
        return per_channel(colors, image_BCHW).to(image_BCHW.dtype).expand_as(image_BCHW)


def between(uniform: Tensor, low: float, high: float) -> Tensor:
    return low + uniform * (high - low)


def within(length: int, start_B: Tensor, size_B: Tensor) -> Tensor:
    """inside_BL: whether each of `length` places lies in [start, start + size)."""
    place_L = torch.arange(length, device=start_B.device)
    return (place_L >= start_B[:, None]) & (place_L < (start_B + size_B)[:, None])


Erasing = Erase | EraseConstant
