"""Crops of pictures that differ in size, as one batch: of pictures in a list, or of those that a device keeps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from frugalvit.data.augment import ResizedCrop
from frugalvit.data.device.frame import DeviceResizedCrop, boxes, cut
from frugalvit.data.device.resample import Lying, has_kernel, refuse_many_taps, resized_boxes
from frugalvit.data.store_device import ManySizes

AT_ONCE = 32  # pictures on canvases of one size: each has room for the largest of them
PIXELS = 1 << 26  # of the canvases that are filled at once


def resized_crops(spec: ResizedCrop, images: Sequence[Tensor], draws_BK: Tensor, target: tuple[int, int]) -> Tensor:
    """`DeviceResizedCrop` of each image_CHW, by its row of the draws; pictures of like size go together."""
    order = sorted(range(len(images)), key=lambda place: images[place].numel())
    parts = [
        crops(spec, [images[place] for place in order[start : start + AT_ONCE]], rows_NK, target)
        for start, rows_NK in zip(
            range(0, len(order), AT_ONCE), draws_BK[on(order, draws_BK.device)].split(AT_ONCE), strict=True
        )
    ]
    return torch.cat(parts)[on(order, draws_BK.device).argsort()]


def crops(spec: ResizedCrop, images: Sequence[Tensor], draws_NK: Tensor, target: tuple[int, int]) -> Tensor:
    heights, widths = ([image.shape[side] for image in images] for side in (1, 2))
    canvas_NCHW = images[0].new_zeros((len(images), images[0].shape[0], max(heights), max(widths)))
    for image_CHW, place_CHW in zip(images, canvas_NCHW, strict=True):
        place_CHW[:, : image_CHW.shape[1], : image_CHW.shape[2]] = image_CHW
    device = draws_NK.device
    return cropped(spec, canvas_NCHW, on(heights, device), on(widths, device), draws_NK, target)


def cropped(
    spec: ResizedCrop, canvas_NCHW: Tensor, height_N: Tensor, width_N: Tensor, draws_NK: Tensor, target: tuple[int, int]
) -> Tensor:
    """`DeviceResizedCrop` of pictures at the top left of canvases of one size."""
    return cut(
        canvas_NCHW, boxes(spec, draws_NK, height_N, width_N), target, spec.interpolation, canvas_NCHW.is_cuda and has_kernel()
    )


class CropOfMany(nn.Module):
    """`ResizedCrop` of pictures of several sizes that a device keeps, by their numbers. Draws: those of `DeviceResizedCrop`."""

    draws = DeviceResizedCrop.draws

    def __init__(self, spec: ResizedCrop, kept: ManySizes, target: tuple[int, int]):
        super().__init__()
        self.spec, self.kept, self.target = spec, kept, target
        for source, wanted in zip(kept.largest, target, strict=True):
            refuse_many_taps(source, wanted, spec.interpolation)
        self.fast = kept.pixel_PC.is_cuda and has_kernel()
        high, wide = kept.largest
        most = PIXELS // (high * (target[1] if self.fast else wide))  # the kernel makes no canvases, but resizes rows first
        self.at_once = max(1, most if self.fast else min(AT_ONCE, most))

    def forward(self, index_B: Tensor, draws_BK: Tensor) -> Tensor:
        parts = zip(index_B.split(self.at_once), draws_BK.split(self.at_once), strict=True)
        return torch.cat([self.crops(index_N, draws_NK) for index_N, draws_NK in parts])

    def crops(self, index_N: Tensor, draws_NK: Tensor) -> Tensor:
        height_N, width_N = self.kept.height_N[index_N], self.kept.width_N[index_N]
        if not self.fast:
            return cropped(self.spec, self.kept.canvas_BCHW(index_N), height_N, width_N, draws_NK, self.target)
        box = boxes(self.spec, draws_NK, height_N, width_N)
        return resized_boxes(in_a_row(self.kept, index_N), box, self.kept.largest, self.target, self.spec.interpolation)


def in_a_row(kept: ManySizes, index_N: Tensor) -> Lying:
    """Those pictures where they are kept."""
    channels = kept.pixel_PC.shape[1]
    start_N, stride_N = kept.start_N[index_N] * channels, kept.width_N[index_N] * channels
    return Lying(kept.pixel_PC.view(-1), start_N, stride_N, column=channels, channel=1, channels=channels)


def on(numbers: list[int], device: torch.device) -> Tensor:
    """int64, sent without waiting."""
    number_N = torch.tensor(numbers)
    return number_N.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else number_N.to(device)
