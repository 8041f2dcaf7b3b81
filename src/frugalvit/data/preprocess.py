"""From any picture to what a model was trained on: one place for size, crop and normalization."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image as Pillow
from PIL import UnidentifiedImageError
from torch import Tensor

from frugalvit.errors import DataError, SpecError

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
FILTERS = {"bicubic": Pillow.Resampling.BICUBIC, "bilinear": Pillow.Resampling.BILINEAR}

WEIGHTED = {"LA": "La", "RGBA": "RGBa"}  # modes with colors times alpha, in which pictures are resized
LONGEST = 1 << 20  # pixels of a side when resized
DAMAGED: tuple[type[Exception], ...] = (  # what Pillow raises where a file is not as it should be
    *(UnidentifiedImageError, Pillow.DecompressionBombError, OSError, SyntaxError, ValueError, TypeError, LookupError),
    *(AttributeError, EOFError, OverflowError, struct.error),
)
ORIENTATION = 0x0112  # a tag of EXIF; 1 is upright
TURNS = {
    2: Pillow.Transpose.FLIP_LEFT_RIGHT,
    3: Pillow.Transpose.ROTATE_180,
    4: Pillow.Transpose.FLIP_TOP_BOTTOM,
    5: Pillow.Transpose.TRANSPOSE,
    6: Pillow.Transpose.ROTATE_270,
    7: Pillow.Transpose.TRANSVERSE,
    8: Pillow.Transpose.ROTATE_90,
}
TURNING = ("exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp")  # where Pillow keeps the orientation

Picture = str | Path | Pillow.Image | np.ndarray


@dataclass(frozen=True)
class Preprocess:
    """Resize so that height x width, enlarged by 1 / crop, is just covered; cut the center; scale to (x − mean) / std."""

    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float = 0.875
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or len(self.mean) not in MODES:
            raise SpecError(f"{len(self.mean)} means and {len(self.std)} deviations. Give one of each per channel, 1 to 4.")
        if any(value <= 0 for value in self.std):
            raise SpecError(f"a deviation of {min(self.std)}. Use numbers above 0.", path="std")
        if min(self.height, self.width) < 1:
            raise SpecError(f"pictures of {self.height} x {self.width}. Use sides of 1 and more.")
        if not 0 < self.crop <= 1:
            raise SpecError(f"a crop of {self.crop}. Use a share above 0, up to 1.", path="crop")

    @property
    def mode(self) -> str:
        """Pillow's name for pictures with as many channels."""
        return MODES[len(self.mean)]

    def __call__(self, picture: Picture) -> Tensor:
        """A picture as image_CHW."""
        return self.normalized(self.framed(opened(picture)))

    def framed(self, picture: Pillow.Image) -> Pillow.Image:
        """The centered part of the picture at the model's size."""
        picture = in_mode(picture, self.mode)
        return centered(picture, self.height, self.width, self.covering(picture.width, picture.height), self.interpolation)

    def covering(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of such a picture when it is resized."""
        return covering(width, height, int(self.width / self.crop), int(self.height / self.crop))

    def resizing(self, height: int, width: int) -> str:
        """A word on pictures that all have this size, where the model takes another."""
        if (height, width) == (self.height, self.width):
            return ""
        cut = ", cut to their center" if height * self.width != width * self.height else ""
        return f"pictures of {height} x {width} pixels are resized to {self.height} x {self.width}{cut}, which the model takes"

    def normalized(self, picture: Pillow.Image) -> Tensor:
        image_HWC = torch.from_numpy(np.array(picture)).reshape(self.height, self.width, len(self.mean))
        image_CHW = image_HWC.permute(2, 0, 1).float() / 255
        mean_C, std_C = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (image_CHW - mean_C) / std_C


def covering(width: int, height: int, wide: int, high: int) -> tuple[int, int]:
    """Width and height of such a picture when it is resized until it just covers wide x high."""
    tall = high * width <= wide * height  # the width decides; in integers, as floats can fall below one
    size = (wide, wide * height // width) if tall else (high * width // height, high)
    if max(size) > LONGEST:
        raise DataError(f"a picture of {width} x {height} pixels is too thin to be resized. Cut it first.")
    return size


def centered(picture: Pillow.Image, height: int, width: int, covered: tuple[int, int], interpolation: str) -> Pillow.Image:
    """The center of the picture when it is resized to `covered`, its width and height then.

    Rows are resized first, then columns: Pillow by itself begins with either, as its version and the sizes say, and rounds
    between them.
    """
    (wide, high), by, mode = covered, FILTERS[interpolation], picture.mode
    picture = picture.convert(WEIGHTED.get(mode, mode))
    left, top = margin(wide, width), margin(high, height)
    strip = picture.resize((wide, picture.height), by).crop((left, 0, left + width, picture.height))
    return strip.resize((width, high), by).crop((0, top, width, top + height)).convert(mode)


def margin(whole: int, kept: int) -> int:
    """How many pixels lie before the center."""
    return round((whole - kept) / 2)


def opened(picture: Picture) -> Pillow.Image:
    """A picture from a path, a PIL image or an array (height x width, or with channels last), upright by its EXIF."""
    if isinstance(picture, np.ndarray):
        return from_array(picture)
    if isinstance(picture, Pillow.Image):
        if not min(picture.size):
            raise DataError(f"a picture of {picture.size[0]} x {picture.size[1]} pixels is empty.")
        return upright(picture)
    if not isinstance(picture, (str, Path)):
        raise DataError(f"{type(picture).__name__} is no picture. Give a path, a PIL image or a uint8 array.")
    path = Path(picture)
    if not path.exists():
        raise DataError("there is no such file.", path=str(path))
    try:
        with Pillow.open(path) as file:
            return upright(file)
    except DAMAGED as error:
        raise DataError(f"not a picture that can be read ({error}).", path=str(path)) from error


def turned_by_exif(picture: Pillow.Image) -> Pillow.Image:
    """As `ImageOps.exif_transpose`, but that the EXIF is not written anew, which fails where a camera mistyped a tag."""
    picture.load()
    try:
        turn = TURNS.get(picture.getexif().get(ORIENTATION, 1))
    except Exception:  # it may be damaged in any way, and the pixels are what is wanted
        turn = None
    if turn is None:
        return picture.copy()
    turned = picture.transpose(turn)
    for name in TURNING:
        turned.info.pop(name, None)  # or it would be turned again
    return turned


def upright(picture: Pillow.Image) -> Pillow.Image:
    """Rotated as its EXIF says; 16-bit gray scaled to 8 bits, since a plain conversion would clip it to white."""
    turned = turned_by_exif(picture)
    if turned.mode.startswith(("I", "F")):
        values = np.asarray(turned, dtype=np.float64)
        highest = values.max(initial=0.0)
        deep = turned.mode.startswith("I;16") or highest > 255
        top = 65535.0 if deep else 1.0 if turned.mode == "F" and highest <= 1 else 255.0
        return Pillow.fromarray((values.clip(0, top) * (255.0 / top)).round().astype(np.uint8))
    if turned.mode == "P" and "transparency" in turned.info:
        return turned.convert("RGBA")
    turned.load()
    return turned


def in_mode(picture: Pillow.Image, mode: str) -> Pillow.Image:
    """The picture in another of Pillow's modes. A DataError where its colors cannot be converted, as LAB to gray."""
    try:
        return picture.convert(mode)
    except ValueError as error:
        raise DataError(f"{picture.mode} does not become {mode} ({error}). Save it as RGB.") from error


def from_array(array: np.ndarray) -> Pillow.Image:
    if (
        not array.size
        or array.dtype != np.uint8
        or array.ndim not in (2, 3)
        or (array.ndim == 3 and array.shape[2] not in MODES)
    ):
        raise DataError(
            f"an array of shape {array.shape} and type {array.dtype}. "
            "Give uint8 values, height x width or height x width x channels (1 to 4)."
        )
    return Pillow.fromarray(array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array)


def means_for(channels: int, mean: tuple[float, ...], std: tuple[float, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """RGB statistics for pictures with 1 to 4 channels: gray takes the average, alpha takes 0.5."""
    gray = (math.fsum(mean) / len(mean),), (math.fsum(std) / len(std),)
    own = (mean, std) if channels >= 3 else gray
    return (own[0] + (0.5,), own[1] + (0.5,)) if channels in (2, 4) else own
