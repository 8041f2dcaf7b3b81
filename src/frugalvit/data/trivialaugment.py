"""TrivialAugment (Müller & Hutter 2021): one operation a picture, at a strength drawn from the whole range; nothing to tune.

The space is the paper's "wide" one, with strengths as in torchvision, whose bytes these operations give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image as Pillow
from PIL import ImageEnhance

from frugalvit.data import operations
from frugalvit.data.operations import Fill, filled, inverted_from, moved, recolored, with_bits

BINS = 31  # strengths of an operation
NEAREST = Pillow.Resampling.NEAREST


def scale(start: float, end: float) -> tuple[float, ...]:
    """Strengths in torchvision's single precision: Pillow cuts blended values off, so the last bit shows."""
    return tuple(torch.linspace(start, end, BINS).tolist())


ENHANCE = SHEAR = scale(0.0, 0.99)
TRANSLATE = scale(0.0, 32.0)  # pixels
ROTATE = scale(0.0, 135.0)  # degrees
SOLARIZE = scale(255.0, 0.0)
BITS = tuple(8 - round(level / 5) for level in range(BINS))


@dataclass(frozen=True)
class Chosen:
    """The operation about to be carried out, at one of 31 levels. Some have no strength; their level says nothing."""

    operation: str
    level: int
    sign: int


@dataclass(frozen=True)
class TrivialAugment:
    """One of fourteen operations (one does nothing), drawn alike, at a uniform level (Müller & Hutter 2021, Algorithm 1).

    `fill` is what geometry uncovers: black, as in torchvision. Pixels are moved without interpolation.
    """

    fill: tuple[int, int, int] = (0, 0, 0)

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        chosen = self.choice(draw)
        return STRENGTHS[chosen.operation](picture, chosen.level, chosen.sign, self.fill)

    def choice(self, draw: np.random.Generator) -> Chosen:
        names = list(STRENGTHS)
        operation, level, sign = draw.integers((len(names), BINS, 2)).tolist()
        return Chosen(names[operation], level, 2 * sign - 1)


# ------------------------------------------------------------------------------------------------ from levels to strengths


def identity(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return picture


def shear_x(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, sign * SHEAR[level], 0, 0, 1, 0), fill, NEAREST)


def shear_y(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, 0, sign * SHEAR[level], 1, 0), fill, NEAREST)


def translate_x(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, -sign * int(TRANSLATE[level]), 0, 1, 0), fill, NEAREST)


def translate_y(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, 0, 0, 1, -sign * int(TRANSLATE[level])), fill, NEAREST)


def rotate(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return picture.rotate(sign * ROTATE[level], resample=NEAREST, fillcolor=filled(picture, fill))


def brightness(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Brightness(colors).enhance(1.0 + sign * ENHANCE[level]))


def color(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Color(colors).enhance(1.0 + sign * ENHANCE[level]))


def contrast(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Contrast(colors).enhance(1.0 + sign * ENHANCE[level]))


def sharpness(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Sharpness(colors).enhance(1.0 + sign * ENHANCE[level]))


def posterize(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    """8 bits down to 2."""
    return with_bits(picture, BITS[level])


def solarize(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return inverted_from(picture, SOLARIZE[level])


STRENGTHS: dict[str, Callable[[Pillow.Image, int, int, Fill], Pillow.Image]] = {
    "Identity": identity,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Rotate": rotate,
    "Brightness": brightness,
    "Color": color,
    "Contrast": contrast,
    "Sharpness": sharpness,
    "Posterize": posterize,
    "Solarize": solarize,
    "AutoContrast": operations.auto_contrast,
    "Equalize": operations.equalize,
}
