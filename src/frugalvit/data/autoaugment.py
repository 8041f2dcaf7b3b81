"""AutoAugment (Cubuk et al. 2019): the policies found for CIFAR-10, SVHN and ImageNet, and what their operations do.

A policy is 25 pairs of trials. A picture meets one pair, drawn alike; each of its trials is carried out with its own
probability, at its level of 0 to 9 and in a random direction where there are two. The tables are those of the paper's appendix;
levels become strengths as in torchvision, whose bytes these operations give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image as Pillow
from PIL import ImageEnhance

from frugalvit.data import operations
from frugalvit.data.operations import Fill, filled, inverted_from, moved, recolored, with_bits

TOP = 9  # the highest level
SPAN = 150 / 331  # of the picture's side: what the paper moved its 331 pixels by
NEAREST = Pillow.Resampling.NEAREST


@dataclass(frozen=True)
class Trial:
    """An operation that may be carried out. Some have no strength; their level says nothing."""

    operation: str
    probability: float
    level: int = 0


@dataclass(frozen=True)
class Chosen:
    """One operation about to be carried out."""

    operation: str
    level: int
    sign: int


@dataclass(frozen=True)
class AutoAugment:
    """One of a policy's 25 pairs of operations (Cubuk et al. 2019).

    `fill` is what geometry uncovers: gray, as Lee et al. (2021) have it. Pixels are moved without interpolation.
    """

    policy: Literal["cifar10", "svhn", "imagenet"] = "imagenet"
    fill: tuple[int, int, int] = (128, 128, 128)

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        for chosen in self.choices(draw):
            picture = STRENGTHS[chosen.operation](picture, chosen.level, chosen.sign, self.fill)
        return picture

    def choices(self, draw: np.random.Generator) -> list[Chosen]:
        """The operations to carry out, in order; two at most."""
        policy = POLICIES[self.policy]
        pair = policy[int(draw.integers(len(policy)))]
        chances = draw.random(2).tolist()
        signs = (2 * draw.integers(2, size=2) - 1).tolist()
        rows = zip(pair, chances, signs, strict=True)
        return [Chosen(one.operation, one.level, sign) for one, chance, sign in rows if chance < one.probability]


# ------------------------------------------------------------------------------------------------ from levels to strengths


def rotate(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return picture.rotate(sign * level / TOP * 30.0, resample=NEAREST, fillcolor=filled(picture, fill))


def shear_x(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, sign * level / TOP * 0.3, 0, 0, 1, 0), fill, NEAREST)


def shear_y(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, 0, sign * level / TOP * 0.3, 1, 0), fill, NEAREST)


def translate_x(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, -sign * int(level / TOP * SPAN * picture.width), 0, 1, 0), fill, NEAREST)


def translate_y(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, 0, 0, 1, -sign * int(level / TOP * SPAN * picture.height)), fill, NEAREST)


def posterize(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    """8 bits down to 4."""
    return with_bits(picture, 8 - round(level / TOP * 4))


def solarize(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return inverted_from(picture, 255 - 255 * level / TOP)


def brightness(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Brightness(colors).enhance(enhancement(level, sign)))


def color(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Color(colors).enhance(enhancement(level, sign)))


def contrast(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Contrast(colors).enhance(enhancement(level, sign)))


def sharpness(picture: Pillow.Image, level: int, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Sharpness(colors).enhance(enhancement(level, sign)))


def enhancement(level: int, sign: int) -> float:
    """1 leaves a picture as it is; 0.1 to 1.9."""
    most, step = np.float32(0.9), np.float32(0.9) / np.float32(TOP)
    # torchvision's single precision, counted from the nearer end: Pillow cuts blended values off, so the last bit shows
    return 1.0 + sign * float(step * np.float32(level) if level <= TOP // 2 else most - step * np.float32(TOP - level))


STRENGTHS: dict[str, Callable[[Pillow.Image, int, int, Fill], Pillow.Image]] = {
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
    "Invert": operations.invert,
}

# ------------------------------------------------------------------------------------------------ the policies

Policy = tuple[tuple[Trial, Trial], ...]

CIFAR10: Policy = (
    (Trial("Invert", 0.1), Trial("Contrast", 0.2, 6)),
    (Trial("Rotate", 0.7, 2), Trial("TranslateX", 0.3, 9)),
    (Trial("Sharpness", 0.8, 1), Trial("Sharpness", 0.9, 3)),
    (Trial("ShearY", 0.5, 8), Trial("TranslateY", 0.7, 9)),
    (Trial("AutoContrast", 0.5), Trial("Equalize", 0.9)),
    (Trial("ShearY", 0.2, 7), Trial("Posterize", 0.3, 7)),
    (Trial("Color", 0.4, 3), Trial("Brightness", 0.6, 7)),
    (Trial("Sharpness", 0.3, 9), Trial("Brightness", 0.7, 9)),
    (Trial("Equalize", 0.6), Trial("Equalize", 0.5)),
    (Trial("Contrast", 0.6, 7), Trial("Sharpness", 0.6, 5)),
    (Trial("Color", 0.7, 7), Trial("TranslateX", 0.5, 8)),
    (Trial("Equalize", 0.3), Trial("AutoContrast", 0.4)),
    (Trial("TranslateY", 0.4, 3), Trial("Sharpness", 0.2, 6)),
    (Trial("Brightness", 0.9, 6), Trial("Color", 0.2, 8)),
    (Trial("Solarize", 0.5, 2), Trial("Invert", 0.0)),
    (Trial("Equalize", 0.2), Trial("AutoContrast", 0.6)),
    (Trial("Equalize", 0.2), Trial("Equalize", 0.6)),
    (Trial("Color", 0.9, 9), Trial("Equalize", 0.6)),
    (Trial("AutoContrast", 0.8), Trial("Solarize", 0.2, 8)),
    (Trial("Brightness", 0.1, 3), Trial("Color", 0.7, 0)),
    (Trial("Solarize", 0.4, 5), Trial("AutoContrast", 0.9)),
    (Trial("TranslateY", 0.9, 9), Trial("TranslateY", 0.7, 9)),
    (Trial("AutoContrast", 0.9), Trial("Solarize", 0.8, 3)),
    (Trial("Equalize", 0.8), Trial("Invert", 0.1)),
    (Trial("TranslateY", 0.7, 9), Trial("AutoContrast", 0.9)),
)

SVHN: Policy = (
    (Trial("ShearX", 0.9, 4), Trial("Invert", 0.2)),
    (Trial("ShearY", 0.9, 8), Trial("Invert", 0.7)),
    (Trial("Equalize", 0.6), Trial("Solarize", 0.6, 6)),
    (Trial("Invert", 0.9), Trial("Equalize", 0.6)),
    (Trial("Equalize", 0.6), Trial("Rotate", 0.9, 3)),
    (Trial("ShearX", 0.9, 4), Trial("AutoContrast", 0.8)),
    (Trial("ShearY", 0.9, 8), Trial("Invert", 0.4)),
    (Trial("ShearY", 0.9, 5), Trial("Solarize", 0.2, 6)),
    (Trial("Invert", 0.9), Trial("AutoContrast", 0.8)),
    (Trial("Equalize", 0.6), Trial("Rotate", 0.9, 3)),
    (Trial("ShearX", 0.9, 4), Trial("Solarize", 0.3, 3)),
    (Trial("ShearY", 0.8, 8), Trial("Invert", 0.7)),
    (Trial("Equalize", 0.9), Trial("TranslateY", 0.6, 6)),
    (Trial("Invert", 0.9), Trial("Equalize", 0.6)),
    (Trial("Contrast", 0.3, 3), Trial("Rotate", 0.8, 4)),
    (Trial("Invert", 0.8), Trial("TranslateY", 0.0, 2)),
    (Trial("ShearY", 0.7, 6), Trial("Solarize", 0.4, 8)),
    (Trial("Invert", 0.6), Trial("Rotate", 0.8, 4)),
    (Trial("ShearY", 0.3, 7), Trial("TranslateX", 0.9, 3)),
    (Trial("ShearX", 0.1, 6), Trial("Invert", 0.6)),
    (Trial("Solarize", 0.7, 2), Trial("TranslateY", 0.6, 7)),
    (Trial("ShearY", 0.8, 4), Trial("Invert", 0.8)),
    (Trial("ShearX", 0.7, 9), Trial("TranslateY", 0.8, 3)),
    (Trial("ShearY", 0.8, 5), Trial("AutoContrast", 0.7)),
    (Trial("ShearX", 0.7, 2), Trial("Invert", 0.1)),
)

IMAGENET: Policy = (
    (Trial("Posterize", 0.4, 8), Trial("Rotate", 0.6, 9)),
    (Trial("Solarize", 0.6, 5), Trial("AutoContrast", 0.6)),
    (Trial("Equalize", 0.8), Trial("Equalize", 0.6)),
    (Trial("Posterize", 0.6, 7), Trial("Posterize", 0.6, 6)),
    (Trial("Equalize", 0.4), Trial("Solarize", 0.2, 4)),
    (Trial("Equalize", 0.4), Trial("Rotate", 0.8, 8)),
    (Trial("Solarize", 0.6, 3), Trial("Equalize", 0.6)),
    (Trial("Posterize", 0.8, 5), Trial("Equalize", 1.0)),
    (Trial("Rotate", 0.2, 3), Trial("Solarize", 0.6, 8)),
    (Trial("Equalize", 0.6), Trial("Posterize", 0.4, 6)),
    (Trial("Rotate", 0.8, 8), Trial("Color", 0.4, 0)),
    (Trial("Rotate", 0.4, 9), Trial("Equalize", 0.6)),
    (Trial("Equalize", 0.0), Trial("Equalize", 0.8)),
    (Trial("Invert", 0.6), Trial("Equalize", 1.0)),
    (Trial("Color", 0.6, 4), Trial("Contrast", 1.0, 8)),
    (Trial("Rotate", 0.8, 8), Trial("Color", 1.0, 2)),
    (Trial("Color", 0.8, 8), Trial("Solarize", 0.8, 7)),
    (Trial("Sharpness", 0.4, 7), Trial("Invert", 0.6)),
    (Trial("ShearX", 0.6, 5), Trial("Equalize", 1.0)),
    (Trial("Color", 0.4, 0), Trial("Equalize", 0.6)),
    (Trial("Equalize", 0.4), Trial("Solarize", 0.2, 4)),
    (Trial("Solarize", 0.6, 5), Trial("AutoContrast", 0.6)),
    (Trial("Invert", 0.6), Trial("Equalize", 1.0)),
    (Trial("Color", 0.6, 4), Trial("Contrast", 1.0, 8)),
    (Trial("Equalize", 0.8), Trial("Equalize", 0.6)),
)

POLICIES: dict[str, Policy] = {"cifar10": CIFAR10, "svhn": SVHN, "imagenet": IMAGENET}
