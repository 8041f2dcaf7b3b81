"""Colors of a batch changed as Pillow changes them: look-up tables of 256 values, and blends with a duller picture."""

from __future__ import annotations

import torch
from torch import Tensor

LUMA = (19595, 38470, 7471)  # ITU-R 601 in units of 2⁻¹⁶, as Pillow has it


# ------------------------------------------------------------------------------------------------ tables


def histogram(image_BCHW: Tensor) -> Tensor:
    """count_BCV: how often each value occurs. Whole numbers, so the order of adding leaves no trace.

    Counted along one axis: along several, torch would copy strides from the host where it must be deterministic, which a
    capture forbids.
    """
    value_PN = image_BCHW.flatten(2).flatten(0, 1).to(torch.int64)
    place_PN = value_PN + 256 * torch.arange(len(value_PN), device=image_BCHW.device)[:, None]
    count_X = torch.zeros(256 * len(value_PN), dtype=torch.int32, device=image_BCHW.device)
    count_X = count_X.scatter_add(0, place_PN.flatten(), torch.ones_like(place_PN, dtype=torch.int32).flatten())
    return count_X.view(*image_BCHW.shape[:2], 256)


def stretches() -> Tensor:
    """product_DV: v · (255 / d) in doubles, d = 0 to 255, for `stretched`.

    A value that should be whole may fall just below it and be cut off; Pillow's bytes show that. Products from a table
    are rounded before they are subtracted, whatever a compiler fuses.
    """
    value_V = torch.arange(256, dtype=torch.float64)
    scale_D1 = torch.full_like(value_V, 255.0)[:, None] / value_V.clamp(min=1)[:, None]  # 255 / tensor would take a reciprocal
    return value_V * scale_D1


def stretched(count_BCV: Tensor, product_DV: Tensor) -> Tensor:
    """Auto-contrast: v ↦ v · 255 / (high − low) − low · 255 / (high − low), cut off; one value alone stays."""
    low_BC1, high_BC1 = extremes(count_BCV)
    reach_BC1 = high_BC1 - low_BC1
    product_BCV = product_DV[reach_BC1[:, :, 0]]
    table_BCV = (product_BCV - product_BCV.gather(2, low_BC1)).clamp(0, 255).to(torch.int32)
    return torch.where(reach_BC1 > 0, table_BCV, values(count_BCV))


def equalized(count_BCV: Tensor) -> Tensor:
    """v ↦ (⌊s / 2⌋ + number of pixels below v) / s, s a 255th of the pixels without those of the highest value."""
    _, high_BC1 = extremes(count_BCV)
    below_BCV = count_BCV.cumsum(2, dtype=torch.int32) - count_BCV
    step_BC1 = below_BCV.gather(2, high_BC1) // 255
    table_BCV = ((step_BC1 // 2 + below_BCV) // step_BC1.clamp(min=1)).clamp(max=255)
    return torch.where(step_BC1 > 0, table_BCV, values(count_BCV))


def extremes(count_BCV: Tensor) -> tuple[Tensor, Tensor]:
    """(low_BC1, high_BC1): the least and the largest value that occurs, int64."""
    value_V = torch.arange(256, device=count_BCV.device)
    low_BC1 = torch.where(count_BCV > 0, value_V, 255).amin(2, keepdim=True)
    high_BC1 = torch.where(count_BCV > 0, value_V, 0).amax(2, keepdim=True)
    return low_BC1, high_BC1


def values(like: Tensor) -> Tensor:
    """value_V: 0 to 255."""
    return torch.arange(256, dtype=torch.int32, device=like.device)


def point_table(mask_B: Tensor, threshold_B: Tensor, more_B: Tensor) -> Tensor:
    """table_B1V: bits kept (posterize), values from `threshold` on turned around (solarize, invert), dark ones raised.

    A picture has one of the three; 255, 256 and 0 say no to each.
    """
    mask_B11, threshold_B11, more_B11 = (one_B[:, None, None] for one_B in (mask_B, threshold_B, more_B))
    table_B1V = values(mask_B) & mask_B11
    table_B1V = torch.where(table_B1V < threshold_B11, table_B1V, 255 - table_B1V)
    return torch.where(table_B1V < 128, (table_B1V + more_B11).clamp(max=255), table_B1V)


def looked_up(image_BCHW: Tensor, table_BCV: Tensor) -> Tensor:
    value_BCN = image_BCHW.flatten(2).to(torch.int64)
    return table_BCV.gather(2, value_BCN).view_as(image_BCHW)


# ------------------------------------------------------------------------------------------------ duller pictures


def luma(image_BCHW: Tensor) -> Tensor:
    """gray_B1HW, int32, rounded as Pillow does."""
    if image_BCHW.shape[1] == 1:
        return image_BCHW.to(torch.int32)
    red_BHW, green_BHW, blue_BHW = image_BCHW.to(torch.int32).unbind(1)
    return (red_BHW * LUMA[0] + green_BHW * LUMA[1] + blue_BHW * LUMA[2] + 0x8000 >> 16)[:, None]


def mean(gray_B1HW: Tensor) -> Tensor:
    """mean_B111: the nearest whole number, int32."""
    count = gray_B1HW[0].numel()
    total_B111 = gray_B1HW.sum((2, 3), keepdim=True)  # int64
    return ((2 * total_B111 + count) // (2 * count)).to(torch.int32)


def smooth(image_BCHW: Tensor, rounding: int) -> Tensor:
    """(sum of the eight neighbors + 5 · pixel) / 13, int32; the border stays as it is.

    `rounding` of 13 (in units of 1/26) gives the nearest whole number, 0 the one below: sums by 13 are never halfway.
    """
    wide_BCHW = image_BCHW.to(torch.int32)
    height, width = wide_BCHW.shape[2:]
    if min(height, width) < 3:
        return wide_BCHW
    total_BCHW = 4 * wide_BCHW[:, :, 1:-1, 1:-1]
    for top in range(3):
        for left in range(3):
            total_BCHW = total_BCHW + wide_BCHW[:, :, top : top + height - 2, left : left + width - 2]
    inner_BCHW = torch.nn.functional.pad((2 * total_BCHW + rounding) // 26, (1, 1, 1, 1))
    y_H1, x_W = (torch.arange(side, device=image_BCHW.device) for side in (height, width))
    y_H1 = y_H1[:, None]
    inside_HW = (y_H1 > 0) & (y_H1 < height - 1) & (x_W > 0) & (x_W < width - 1)
    return torch.where(inside_HW, inner_BCHW, wide_BCHW)


def blended(dull_BCHW: Tensor, image_BCHW: Tensor, factor_B: Tensor) -> Tensor:
    """dull + factor · (picture − dull), clipped, cut off to bytes: 1 is the picture. `factor_B` is float32.

    As Pillow: single precision, rounded after the product and after the sum. The product is made in doubles, where it is
    exact, and rounded by hand, so that no compiler can fuse the two.
    """
    apart_BCHW = (image_BCHW.to(torch.int32) - dull_BCHW).double()
    product_BCHW = (apart_BCHW * factor_B.double()[:, None, None, None]).float()
    return (dull_BCHW.float() + product_BCHW).clamp(0, 255).to(torch.uint8)
