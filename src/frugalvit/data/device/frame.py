"""Crops, flips and sizes of a batch: the device versions of augment.py's geometry."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from frugalvit.data.augment import CROP_TRIES, Flip, PadCrop, Resize, ResizedCrop
from frugalvit.data.device.affine import pixels
from frugalvit.data.device.draws import whole
from frugalvit.data.device.resample import (
    Boxes,
    Taps,
    has_kernel,
    lying,
    refuse_many_taps,
    resampled,
    resized_boxes,
    taps,
)
from frugalvit.data.device.size import MapSize
from frugalvit.data.preprocess import covering, margin


class DeviceFlip(nn.Module):
    """`Flip`. Draws: whether."""

    draws = 1

    def __init__(self, spec: Flip):
        super().__init__()
        self.spec = spec

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        flipped_B111 = (draws_BK[:, 0].double() < self.spec.probability)[:, None, None, None]
        return torch.where(flipped_B111, image_BCHW.flip(3), image_BCHW)


class DeviceResize(nn.Module):
    """`Resize`, or the center of pictures that become `covered` (width, height). No draws; the weights are settled here."""

    draws = 0
    down_index_1LT: Tensor
    down_weight_1LT: Tensor
    across_index_1LT: Tensor
    across_weight_1LT: Tensor

    def __init__(self, spec: Resize, size: MapSize, target: tuple[int, int], covered: tuple[int, int] | None = None):
        super().__init__()
        self.stays = (size.height, size.width) == target
        (high, wide), (whole_wide, whole_high) = target, covered or target[::-1]
        for name, source, full, kept in (
            ("down", size.height, whole_high, high),
            ("across", size.width, whole_wide, wide),
        ):
            settled = taps(torch.zeros(1, dtype=torch.int64), torch.tensor([source]), source, full, spec.interpolation)
            center = slice(margin(full, kept), margin(full, kept) + kept)
            self.register_buffer(f"{name}_index_1LT", settled.index_BLT[:, center], persistent=False)
            self.register_buffer(f"{name}_weight_1LT", settled.weight_BLT[:, center], persistent=False)

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        if self.stays:
            return image_BCHW
        down, across = Taps(self.down_index_1LT, self.down_weight_1LT), Taps(self.across_index_1LT, self.across_weight_1LT)
        return resampled(image_BCHW, down, across)


class DevicePadCrop(nn.Module):
    """`PadCrop`. Draws: how far down, how far right."""

    draws = 2

    def __init__(self, spec: PadCrop, size: MapSize, target: tuple[int, int]):
        super().__init__()
        self.spec = spec
        self.frame = DeviceResize(Resize(), size, target, covering(size.width, size.height, target[1], target[0]))

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        image_BCHW = self.frame(image_BCHW, draws_BK)
        height, width = image_BCHW.shape[2:]
        top_B1, left_B1 = whole(draws_BK, 2 * self.spec.pad + 1)[:, :, None].unbind(1)
        row_BH1 = (torch.arange(height, device=image_BCHW.device) + top_B1 - self.spec.pad)[:, :, None]
        column_B1W = (torch.arange(width, device=image_BCHW.device) + left_B1 - self.spec.pad)[:, None]
        inside_BHW = (row_BH1 >= 0) & (row_BH1 < height) & (column_B1W >= 0) & (column_B1W < width)
        return torch.where(inside_BHW[:, None], pixels(image_BCHW, row_BH1, column_B1W), self.spec.fill)


class DeviceResizedCrop(nn.Module):
    """`ResizedCrop`. Draws: ten areas, ten ratios, how far down, how far right."""

    draws = 2 * CROP_TRIES + 2

    def __init__(self, spec: ResizedCrop, size: MapSize, target: tuple[int, int]):
        super().__init__()
        self.spec, self.size, self.target = spec, size, target
        for source, wanted in zip((size.height, size.width), target, strict=True):
            refuse_many_taps(source, wanted, spec.interpolation)
        self.fast = has_kernel()

    def forward(self, image_BCHW: Tensor, draws_BK: Tensor) -> Tensor:
        return cut(image_BCHW, self.boxes(draws_BK), self.target, self.spec.interpolation, self.fast)

    def boxes(self, draws_BK: Tensor) -> Boxes:
        height_B, width_B = (torch.full_like(draws_BK[:, 0], side) for side in (self.size.height, self.size.width))
        return boxes(self.spec, draws_BK, height_B, width_B)


def cut(image_BCHW: Tensor, box: Boxes, target: tuple[int, int], interpolation: str, fast: bool) -> Tensor:
    """A box of each picture of a batch, resized; on CUDA by our kernel where it is `fast`."""
    high, wide = image_BCHW.shape[2:]
    if fast and image_BCHW.is_cuda:
        return resized_boxes(lying(image_BCHW), box, (high, wide), target, interpolation)
    down = taps(box.top_N, box.high_N, high, target[0], interpolation)
    across = taps(box.left_N, box.wide_N, wide, target[1], interpolation)
    return resampled(image_BCHW, down, across)


def boxes(spec: ResizedCrop, draws_BK: Tensor, height_B: Tensor, width_B: Tensor) -> Boxes:
    """A box in each picture: the first of ten that fits, else the centered one."""
    height_B1, width_B1 = height_B.double()[:, None], width_B.double()[:, None]
    area_BT, shape_BT, place_B2 = draws_BK.double().split((CROP_TRIES, CROP_TRIES, 2), 1)
    low, high = spec.area
    area_BT = (low + (high - low) * area_BT) * width_B1 * height_B1
    low, high = (math.log(ratio) for ratio in spec.ratio)
    ratio_BT = (low + (high - low) * shape_BT).exp()
    wide_BT, high_BT = (area_BT * ratio_BT).sqrt().round(), (area_BT / ratio_BT).sqrt().round()
    fits_BT = (wide_BT > 0) & (wide_BT <= width_B1) & (high_BT > 0) & (high_BT <= height_B1)
    first_B1 = fits_BT.int().argmax(1, keepdim=True)  # the first that fits, as if drawn one after the other
    found_B1, wide_B1, high_B1 = (one_BT.gather(1, first_B1) for one_BT in (fits_BT, wide_BT, high_BT))
    top_B1, left_B1 = (
        (draw_B1 * (side_B1 - box_B1 + 1)).floor()
        for draw_B1, side_B1, box_B1 in zip(place_B2.split(1, 1), (height_B1, width_B1), (high_B1, wide_B1), strict=True)
    )
    most_wide_B1 = torch.minimum(width_B1, (height_B1 * spec.ratio[1]).round().clamp(min=1))
    most_high_B1 = torch.minimum(height_B1, (width_B1 / spec.ratio[0]).round().clamp(min=1))
    center = ((height_B1 - most_high_B1) // 2, (width_B1 - most_wide_B1) // 2, most_high_B1, most_wide_B1)
    drawn = top_B1, left_B1, high_B1, wide_B1
    chosen = (torch.where(found_B1, one_B1, other_B1) for one_B1, other_B1 in zip(drawn, center, strict=True))
    return Boxes(*(one_B1[:, 0].to(torch.int64) for one_B1 in chosen))
