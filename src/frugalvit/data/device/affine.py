"""Pixels of a batch moved by one affine map a picture, as Pillow moves them: nearest pixel or cubic interpolation.

Output pixel (x, y) is read at (ax + by + c, dx + ey + f), counted from a pixel's corner; outside lies the fill.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

Affine = tuple[float, float, float, float, float, float]

STAY: Affine = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
ONE = 1 << 16  # Pillow's 16.16 fixed point


def rotation(degrees: float, height: int, width: int) -> Affine:
    """Counterclockwise around the center, with Pillow's rounding of sine and cosine."""
    angle = -math.radians(degrees % 360.0)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return cosine, sine, cosine * -x + sine * -y + x, -sine, cosine, -sine * -x + cosine * -y + y


def fixed(affine: Affine) -> tuple[int, ...]:
    """The map in 16.16 fixed point, from pixel centers, as Pillow has it for the nearest pixel."""
    a, b, c, d, e, f = affine
    if (a, b, d, e) == (1, 0, 0, 1):  # Pillow moves whole pictures in doubles
        return ONE, 0, math.floor(c + 0.5) * ONE, 0, ONE, math.floor(f + 0.5) * ONE
    values = (a, b, c + a * 0.5 + b * 0.5, d, e, f + d * 0.5 + e * 0.5)
    return tuple(math.floor(value * ONE + 0.5) for value in values)


def nearest(image_BCHW: Tensor, affine_B6: Tensor, fill_C11: Tensor) -> Tensor:
    """Each output pixel is the one its center falls into. `affine_B6` is int32 in `fixed`'s units."""
    height, width = image_BCHW.shape[2:]
    y_H1, x_W = (torch.arange(side, dtype=torch.int32, device=image_BCHW.device) for side in (height, width))
    y_H1 = y_H1[:, None]
    a, b, c, d, e, f = affine_B6[:, :, None, None].unbind(1)
    column_BHW, row_BHW = (a * x_W + b * y_H1 + c) >> 16, (d * x_W + e * y_H1 + f) >> 16
    inside_BHW = (column_BHW >= 0) & (column_BHW < width) & (row_BHW >= 0) & (row_BHW < height)
    return torch.where(inside_BHW[:, None], pixels(image_BCHW, row_BHW, column_BHW), fill_C11)


def bicubic(image_BCHW: Tensor, affine_B6: Tensor, fill_C11: Tensor) -> Tensor:
    """Cubic convolution with a = −1 over 4 x 4 pixels (Keys 1981), cut off to bytes. `affine_B6` is float64.

    Doubles, as in Pillow: a value is cut off, so an error in the last bit of a whole number would show.
    """
    height, width = image_BCHW.shape[2:]
    y_H1, x_W = (torch.arange(side, dtype=torch.float64, device=image_BCHW.device) + 0.5 for side in (height, width))
    y_H1 = y_H1[:, None]
    a, b, c, d, e, f = affine_B6[:, :, None, None].unbind(1)
    x_BHW, y_BHW = a * x_W + b * y_H1 + c, d * x_W + e * y_H1 + f
    inside_BHW = (x_BHW >= 0) & (x_BHW < width) & (y_BHW >= 0) & (y_BHW < height)
    column, row = place(x_BHW), place(y_BHW)
    lines = []
    for down in range(-1, 3):
        taps = [pixels(image_BCHW, row.first + down, column.first + right).double() for right in range(-1, 3)]
        lines.append(cubic(taps, column.past[:, None]))
    value_BCHW = cubic(lines, row.past[:, None]).clamp(0, 255).to(torch.uint8)
    return torch.where(inside_BHW[:, None], value_BCHW, fill_C11)


class Place(NamedTuple):
    """The pixel before a place and how far past its center the place is."""

    first: Tensor
    past: Tensor


def place(at_BHW: Tensor) -> Place:
    from_center_BHW = at_BHW - 0.5
    first_BHW = from_center_BHW.floor()
    return Place(first_BHW.to(torch.int32), from_center_BHW - first_BHW)


def cubic(values: list[Tensor], past: Tensor) -> Tensor:
    """The cubic through the middle two of four values, in Pillow's order of operations."""
    v, w, x, y = values
    return w + past * (-v + x + past * (2 * (v - w) + x - y + past * (-v + w - x + y)))


def pixels(image_BCHW: Tensor, row_BHW: Tensor, column_BHW: Tensor) -> Tensor:
    """The pixels at these places, the nearest border pixel where they lie outside."""
    channels, height, width = image_BCHW.shape[1:]
    index_BHW = row_BHW.clamp(0, height - 1).to(torch.int64) * width + column_BHW.clamp(0, width - 1)
    index_BCN = index_BHW.flatten(1)[:, None].expand(-1, channels, -1)
    return image_BCHW.flatten(2).gather(2, index_BCN).unflatten(2, index_BHW.shape[1:])
