"""RandAugment's sixteen operations as TensorFlow's code has them, which AugReg was trained with (Steiner et al. 2022).

Each takes a picture, a magnitude (10 is the nominal end of a scale, and AugReg goes up to 20), a `Chance` and a fill color.
Magnitude 0 is not the identity: enhancing by 0.1 takes nearly everything away, and solarizing from 0 on inverts.
Posterizing and solarizing become weaker as the magnitude grows. Geometry reads the nearest pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image as Pillow
from PIL import ImageFilter

from frugalvit.data import operations
from frugalvit.data.operations import SOLARIZE_ADD_BELOW, Fill, filled, inverted_from, moved, recolored, tabled, with_bits

SCALE = 10.0


@dataclass(frozen=True)
class Chance:
    """What an operation leaves to chance: a direction, 1 or −1, and a place, as shares of height and width below 1."""

    sign: int = 1
    down: float = 0.0
    right: float = 0.0


Operation = Callable[[Pillow.Image, float, Chance, Fill], Pillow.Image]


# ------------------------------------------------------------------------------------------------ geometry


def rotate(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    angle = math.radians(chance.sign * magnitude / SCALE * 30.0)
    cosine, sine = math.cos(angle), math.sin(angle)
    x, y = (picture.width - 1) / 2, (picture.height - 1) / 2  # stays where it is
    return nearest(picture, (cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y), fill)


def shear_x(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return nearest(picture, (1, chance.sign * magnitude / SCALE * 0.3, 0, 0, 1, 0), fill)


def shear_y(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return nearest(picture, (1, 0, 0, chance.sign * magnitude / SCALE * 0.3, 1, 0), fill)


def translate_x(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    """By pixels, not by a share of the picture: small pictures may leave altogether."""
    return nearest(picture, (1, 0, chance.sign * magnitude / SCALE * 100, 0, 1, 0), fill)


def translate_y(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return nearest(picture, (1, 0, 0, 0, 1, chance.sign * magnitude / SCALE * 100), fill)


def nearest(picture: Pillow.Image, affine: tuple[float, float, float, float, float, float], fill: Fill) -> Pillow.Image:
    """Output pixel (x, y) is the one nearest to (ax + by + c, dx + ey + f).

    Pillow counts from a pixel's corner and TensorFlow from its center, half a pixel apart.
    """
    a, b, c, d, e, f = affine
    return moved(picture, (a, b, c + (1 - a - b) / 2, d, e, f + (1 - d - e) / 2), fill, Pillow.Resampling.NEAREST)


def cutout(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    """A square around a uniform place gives way to the fill (DeVries & Taylor 2017), cut at the border."""
    half = int(magnitude / SCALE * 40)
    y, x = int(chance.down * picture.height), int(chance.right * picture.width)
    box = (max(0, x - half), max(0, y - half), min(picture.width, x + half), min(picture.height, y + half))
    changed = picture.copy()
    changed.paste(filled(picture, fill), box)
    return changed


# ------------------------------------------------------------------------------------------------ colors


def auto_contrast(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return operations.auto_contrast(picture, magnitude, chance.sign, fill)


def equalize(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return operations.equalize(picture, magnitude, chance.sign, fill)


def invert(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return operations.invert(picture, magnitude, chance.sign, fill)


def posterize(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    """0 bits mean one: TensorFlow shifts a byte by 7 at most."""
    return with_bits(picture, min(8, max(1, int(magnitude / SCALE * 4))))


def solarize(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return inverted_from(picture, int(magnitude / SCALE * 256))


def solarize_add(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    more = int(magnitude / SCALE * 110)
    return tabled(picture, [min(255, value + more) if value < SOLARIZE_ADD_BELOW else value for value in range(256)])


def color(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return enhanced(picture, magnitude, lambda colors: colors.convert("L").convert(colors.mode))


def contrast(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    """The gray to leave from is the number of pixels / 256, up to 255: not the mean gray, which was meant."""
    gray = min(255, picture.width * picture.height // 256)
    return enhanced(picture, magnitude, lambda colors: Pillow.new(colors.mode, colors.size, (gray,) * len(colors.getbands())))


def brightness(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return enhanced(picture, magnitude, lambda colors: Pillow.new(colors.mode, colors.size))


def sharpness(picture: Pillow.Image, magnitude: float, chance: Chance, fill: Fill) -> Pillow.Image:
    return enhanced(picture, magnitude, lambda colors: colors.filter(SMOOTH))


def enhanced(picture: Pillow.Image, magnitude: float, dull: Callable[[Pillow.Image], Pillow.Image]) -> Pillow.Image:
    """dull + factor · (picture − dull): 0.1 at magnitude 0, the picture itself at 5, 3.7 at 20."""
    factor = magnitude / SCALE * 1.8 + 0.1
    return recolored(picture, lambda colors: Pillow.blend(dull(colors), colors, factor))


SMOOTH = ImageFilter.Kernel((3, 3), (1, 1, 1, 1, 5, 1, 1, 1, 1), scale=13, offset=-0.49)  # rounds down; Pillow's own to nearest

OPERATIONS: dict[str, Operation] = {
    "AutoContrast": auto_contrast,
    "Equalize": equalize,
    "Invert": invert,
    "Rotate": rotate,
    "Posterize": posterize,
    "Solarize": solarize,
    "Color": color,
    "Contrast": contrast,
    "Brightness": brightness,
    "Sharpness": sharpness,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
    "Cutout": cutout,
    "SolarizeAdd": solarize_add,
}
