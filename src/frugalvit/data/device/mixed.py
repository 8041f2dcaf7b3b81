"""Crops of pictures that differ in size, as one batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from frugalvit.data.augment import ResizedCrop
from frugalvit.data.device.frame import boxes
from frugalvit.data.device.resample import resampled, taps

AT_ONCE = 32  # pictures on canvases of one size: each has room for the largest of them


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
    top_N, left_N, high_N, wide_N = boxes(spec, draws_NK, on(heights, device), on(widths, device))
    down = taps(top_N, high_N, max(heights), target[0], spec.interpolation)
    across = taps(left_N, wide_N, max(widths), target[1], spec.interpolation)
    return resampled(canvas_NCHW, down, across)


def on(numbers: list[int], device: torch.device) -> Tensor:
    """int64, sent without waiting."""
    number_N = torch.tensor(numbers)
    return number_N.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else number_N.to(device)
