"""Pictures changed at random, one at a time, on the CPU: crops, flips, colors.

A step takes a picture and the size a model wants, and draws from the generator it is handed: randomness is an argument.
AutoAugment, both RandAugments and TrivialAugment have their own files, and so has what happens to whole batches (finish.py,
erase.py, mix.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image as Pillow
from PIL import ImageEnhance

from frugalvit.data.autoaugment import AutoAugment
from frugalvit.data.bounds import require_at_least, require_probability, require_range
from frugalvit.data.preprocess import FILTERS, MODES, centered, covering
from frugalvit.data.randaugment import RandAugment
from frugalvit.data.tf_randaugment import TfRandAugment
from frugalvit.data.trivialaugment import TrivialAugment
from frugalvit.errors import DataError, SpecError

CROP_TRIES = 10


@dataclass(frozen=True)
class ResizedCrop:
    """A box of random area and aspect ratio (width / height), resized (Szegedy et al. 2015, sec. 6)."""

    area: tuple[float, float] = (0.08, 1.0)  # share of the picture, uniform
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # log-uniform
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"

    def __post_init__(self) -> None:
        require_range(self.area, "area", most=1.0)
        require_range(self.ratio, "ratio")

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        return picture.crop(self.box(picture, draw)).resize((width, height), FILTERS[self.interpolation])

    def box(self, picture: Pillow.Image, draw: np.random.Generator) -> tuple[int, int, int, int]:
        """(left, top, right, bottom): the first of ten boxes that fits, else the largest centered one of an allowed ratio."""
        for _ in range(CROP_TRIES):
            area = draw.uniform(*self.area) * picture.width * picture.height
            ratio = math.exp(draw.uniform(math.log(self.ratio[0]), math.log(self.ratio[1])))
            wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < wide <= picture.width and 0 < high <= picture.height:
                top, left = (int(draw.integers(room + 1)) for room in (picture.height - high, picture.width - wide))
                return left, top, left + wide, top + high
        return self.center_box(picture)

    def center_box(self, picture: Pillow.Image) -> tuple[int, int, int, int]:
        wide = min(picture.width, max(1, round(picture.height * self.ratio[1])))
        high = min(picture.height, max(1, round(picture.width / self.ratio[0])))
        left, top = (picture.width - wide) // 2, (picture.height - high) // 2
        return left, top, left + wide, top + high


@dataclass(frozen=True)
class PadCrop:
    """`pad` pixels of `fill` on every side, then a random crop of the old size (He et al. 2016, sec. 4.2).

    For small pictures; of those of another size the center is taken first, as evaluation has it: the picture resized
    (bicubic) until it covers that size, and what overhangs cut off.
    """

    pad: int = 4
    fill: int = 0

    def __post_init__(self) -> None:
        require_at_least(self.pad, 0, "pad")

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        if picture.size != (width, height):
            picture = centered(picture, height, width, covering(*picture.size, width, height), "bicubic")
        top, left = draw.integers(2 * self.pad + 1, size=2).tolist()
        canvas = Pillow.new(picture.mode, picture.size, (self.fill,) * len(picture.getbands()))
        canvas.paste(picture, (self.pad - left, self.pad - top))
        return canvas


@dataclass(frozen=True)
class Resize:
    """The whole picture at the model's size; its aspect ratio gives way."""

    interpolation: Literal["bicubic", "bilinear"] = "bicubic"

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        return picture if picture.size == (width, height) else picture.resize((width, height), FILTERS[self.interpolation])


@dataclass(frozen=True)
class Flip:
    """Left and right exchanged with some probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        require_probability(self.probability, "probability")

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        return picture.transpose(Pillow.Transpose.FLIP_LEFT_RIGHT) if draw.random() < self.probability else picture


@dataclass(frozen=True)
class ColorJitter:
    """Brightness, contrast and saturation times U(1 − x, 1 + x) in random order. DeiT's 0.3; unused beside RandAugment."""

    brightness: float = 0.3
    contrast: float = 0.3
    saturation: float = 0.3

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            require_at_least(getattr(self, name), 0, name)

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        enhancers = {
            "brightness": ImageEnhance.Brightness,
            "contrast": ImageEnhance.Contrast,
            "saturation": ImageEnhance.Color,
        }
        for name, factor in self.factors(draw):
            picture = enhancers[name](picture).enhance(factor)
        return picture

    def factors(self, draw: np.random.Generator) -> list[tuple[str, float]]:
        """What is changed, in the order of changing, and by how much."""
        reach = {"brightness": self.brightness, "contrast": self.contrast, "saturation": self.saturation}
        factors = [(name, draw.uniform(max(0.0, 1 - by), 1 + by)) for name, by in reach.items()]
        return [factors[place] for place in draw.permutation(len(factors)) if reach[factors[place][0]] > 0]


@dataclass(frozen=True)
class Augment:
    """Steps, one after the other; at least one brings the picture to the model's size."""

    steps: tuple[Step, ...]

    def __post_init__(self) -> None:
        if isinstance(self.steps, tuple) and not any(isinstance(step, (ResizedCrop, PadCrop, Resize)) for step in self.steps):
            raise SpecError(
                "no step brings pictures to the model's size. Begin with ResizedCrop, PadCrop or Resize.", path="steps"
            )

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        if picture.mode not in MODES.values():
            raise DataError(f"a picture of mode '{picture.mode}'. Convert it to one of {', '.join(MODES.values())}.")
        for step in self.steps:
            picture = step.apply(picture, height, width, draw)
        return picture


def deit_augment() -> Augment:
    """DeiT (Touvron et al. 2021), Table 9 and its code: rand-m9-mstd0.5-inc1, filled with ImageNet's mean color."""
    crop = ResizedCrop(area=(0.08, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bicubic")
    rand = RandAugment(count=2, magnitude=9.0, deviation=0.5, probability=0.5, fill=(124, 116, 104))
    return Augment((crop, Flip(0.5), rand))


def small_augment() -> Augment:
    """ResNet on CIFAR (He et al. 2016, sec. 4.2): 4 black pixels around, a random crop, a flip."""
    return Augment((PadCrop(pad=4), Flip(0.5)))


# what may stand in `Augment.steps`
Step = ResizedCrop | PadCrop | Resize | Flip | ColorJitter | AutoAugment | RandAugment | TfRandAugment | TrivialAugment
