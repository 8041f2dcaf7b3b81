"""RandAugment's fifteen operations, the ones that grow with the magnitude (timm's "increasing" set, as DeiT uses it).

Each takes a picture, a magnitude of 0 to 10, a sign (1 or −1, ignored where there is only one direction) and a fill color,
and gives the bytes timm gives. Colors change and alpha stays; geometry moves both.
"""

from __future__ import annotations

from collections.abc import Callable

from PIL import Image as Pillow
from PIL import ImageEnhance, ImageOps

Fill = tuple[int, int, int]
Operation = Callable[[Pillow.Image, float, int, Fill], Pillow.Image]

MOST = 10.0  # the largest magnitude
SOLARIZE_ADD_BELOW = 128


# ------------------------------------------------------------------------------------------------ geometry


def rotate(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    degrees = sign * (magnitude / MOST * 30.0)
    return picture.rotate(degrees, resample=Pillow.Resampling.BICUBIC, fillcolor=filled(picture, fill))


def shear_x(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, sign * (magnitude / MOST * 0.3), 0, 0, 1, 0), fill)


def shear_y(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, 0, sign * (magnitude / MOST * 0.3), 1, 0), fill)


def translate_x(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, sign * (magnitude / MOST * 0.45) * picture.width, 0, 1, 0), fill)


def translate_y(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return moved(picture, (1, 0, 0, 0, 1, sign * (magnitude / MOST * 0.45) * picture.height), fill)


def moved(
    picture: Pillow.Image,
    affine: tuple[float, ...],
    fill: Fill,
    resample: Pillow.Resampling = Pillow.Resampling.BICUBIC,
) -> Pillow.Image:
    """Output pixel (x, y) is read at (ax + by + c, dx + ey + f)."""
    return picture.transform(
        picture.size,
        Pillow.Transform.AFFINE,
        affine,
        resample=resample,
        fillcolor=filled(picture, fill),
    )


def filled(picture: Pillow.Image, fill: Fill) -> tuple[int, ...]:
    """The fill for the picture's channels: gray takes the average, as its normalization does (`means_for`); alpha is opaque."""
    colors = fill if picture.mode.startswith("RGB") else (round(sum(fill) / len(fill)),)
    return (*colors, 255) if "A" in picture.getbands() else colors


# ------------------------------------------------------------------------------------------------ colors


def auto_contrast(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, ImageOps.autocontrast)


def equalize(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, ImageOps.equalize)


def invert(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, ImageOps.invert)


def posterize(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    """4 bits down to none: at 10 the picture is black, which Pillow 13 refuses, so the table is our own."""
    return with_bits(picture, 4 - int(magnitude / MOST * 4))


def solarize(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return inverted_from(picture, 256 - min(256, int(magnitude / MOST * 256)))


def solarize_add(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    more = min(128, int(magnitude / MOST * 110))
    return tabled(picture, [value + more if value < SOLARIZE_ADD_BELOW else value for value in range(256)])


def color(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Color(colors).enhance(enhancement(magnitude, sign)))


def contrast(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Contrast(colors).enhance(enhancement(magnitude, sign)))


def brightness(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Brightness(colors).enhance(enhancement(magnitude, sign)))


def sharpness(picture: Pillow.Image, magnitude: float, sign: int, fill: Fill) -> Pillow.Image:
    return recolored(picture, lambda colors: ImageEnhance.Sharpness(colors).enhance(enhancement(magnitude, sign)))


def enhancement(magnitude: float, sign: int) -> float:
    """1 leaves a picture as it is; 0.1 to 1.9."""
    return max(0.1, 1.0 + sign * (magnitude / MOST * 0.9))


def with_bits(picture: Pillow.Image, bits: int) -> Pillow.Image:
    """The highest bits of every value."""
    return tabled(picture, [value >> (8 - bits) << (8 - bits) for value in range(256)])


def inverted_from(picture: Pillow.Image, threshold: float) -> Pillow.Image:
    """Values from `threshold` on turned around."""
    return tabled(picture, [value if value < threshold else 255 - value for value in range(256)])


def tabled(picture: Pillow.Image, table: list[int]) -> Pillow.Image:
    return recolored(picture, lambda colors: colors.point(table * len(colors.getbands())))


def recolored(picture: Pillow.Image, change: Callable[[Pillow.Image], Pillow.Image]) -> Pillow.Image:
    """The change made to gray or RGB values; alpha is put back as it was."""
    if "A" not in picture.getbands():
        return change(picture)
    colors = change(picture.convert(picture.mode.removesuffix("A")))
    colors.putalpha(picture.getchannel("A"))
    return colors


OPERATIONS: dict[str, Operation] = {
    "AutoContrast": auto_contrast,
    "Equalize": equalize,
    "Invert": invert,
    "Rotate": rotate,
    "Posterize": posterize,
    "Solarize": solarize,
    "SolarizeAdd": solarize_add,
    "Color": color,
    "Contrast": contrast,
    "Brightness": brightness,
    "Sharpness": sharpness,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
}
