"""Boxes of a batch resized as Pillow resizes pictures: separable filters that grow with the shrinking, in 22-bit weights."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from frugalvit.errors import SpecError, brief

PRECISION = 22  # bits of a weight
MOST_TAPS = 33  # in a compiled step: of a bicubic filter that shrinks by 8


class Taps(NamedTuple):
    """What each output place reads: source places, and their weights in units of 2⁻²²."""

    index_BLT: Tensor  # int64
    weight_BLT: Tensor  # int32


def bilinear_filter(x: Tensor) -> Tensor:
    return (1 - x.abs()).clamp(min=0)


def bicubic_filter(x: Tensor) -> Tensor:
    """Cubic convolution with a = −1/2 (Keys 1981, eq. 15)."""
    x = x.abs()
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


FILTERS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {  # and how many pixels far it reaches where nothing shrinks
    "bilinear": (bilinear_filter, 1),
    "bicubic": (bicubic_filter, 2),
}


def taps_needed(source: int, target: int, interpolation: str) -> int:
    """The most source pixels an output pixel reads when up to `source` of them become `target`."""
    return 2 * -(-FILTERS[interpolation][1] * max(source, target) // target) + 1


def largest_source(target: int, interpolation: str) -> int:
    """The most pixels that may become `target` in a compiled step."""
    return int(target * (MOST_TAPS - 1) / 2 / FILTERS[interpolation][1])


def refuse_many_taps(source: int, target: int, interpolation: str) -> None:
    """More than a compiled step should spell out; before any data is opened."""
    count = taps_needed(source, target, interpolation)
    if count > MOST_TAPS:
        raise SpecError(
            f"{source} pixels become {target}, which takes {count} weights a pixel; the device has room for {MOST_TAPS}. "
            "Store the pictures smaller, or augment on the CPU."
        )


def shares(length_B: Tensor, source: int, target: int, interpolation: str) -> Taps:
    """For boxes of `length` pixels, at most `source`, that become `target`: places in the box, some of them behind its end.

    Places are counted in whole numbers, in units of half an output pixel. A compiler may compute the same number twice, here
    fused and there not, and places and weights that were rounded apart would belong to different pixels.
    """
    kernel, support = FILTERS[interpolation]
    length_B11 = length_B[:, None, None]
    scale_B11 = length_B11.double() / target
    grown_B11 = scale_B11.clamp(min=1.0)
    output_L1 = torch.arange(target, device=length_B.device)[:, None]
    middle_BL1, reach_B11 = (2 * output_L1 + 1) * length_B11 + target, 2 * support * length_B11.clamp(min=target)
    first_BL1 = ((middle_BL1 - reach_B11) // (2 * target)).clamp(min=0)
    end_BL1 = torch.minimum((middle_BL1 + reach_B11) // (2 * target), length_B11)
    center_BL1 = (output_L1.double() + 0.5) * scale_B11
    place_BLT = first_BL1 + torch.arange(taps_needed(source, target, interpolation), device=length_B.device)
    raw_BLT = torch.where(place_BLT < end_BL1, kernel((place_BLT - center_BL1 + 0.5) * (1.0 / grown_B11)), 0.0)
    share_BLT = raw_BLT / raw_BLT.sum(-1, keepdim=True) * 2.0**PRECISION
    weight_BLT = (share_BLT + torch.where(share_BLT < 0, -0.5, 0.5)).to(torch.int32)  # Pillow rounds halves away from 0
    return Taps(place_BLT, weight_BLT)


def taps(start_B: Tensor, length_B: Tensor, source: int, target: int, interpolation: str) -> Taps:
    """For pixels [start, start + length) of `source` that become `target`; start and length are int64."""
    place_BLT, weight_BLT = shares(length_B, source, target, interpolation)
    return Taps((place_BLT + start_B[:, None, None]).clamp(max=source - 1), weight_BLT)


def resampled(image_BCHW: Tensor, down: Taps, across: Taps) -> Tensor:
    """Along the width, then along the height, rounded to bytes after each.

    Deviation: Pillow 13 begins with the height where that shrinks by more than twice as many pixels as the width (and
    shrinks at all). Pictures of a batch go one way here, the way of Pillow up to 12: of smooth pictures 2 to
    12 % of the values then differ by one level, hardly any by two.
    """
    between_BCHW = along(image_BCHW, across.index_BLT[:, None, None], across.weight_BLT[:, None, None], 3)
    return along(between_BCHW, down.index_BLT[:, None, :, None], down.weight_BLT[:, None, :, None], 2)


def along(image_BCHW: Tensor, index: Tensor, weight: Tensor, axis: int) -> Tensor:
    """Σ_t weight_t · pixel_t along an axis. The last axis of `index` and `weight` counts taps, the others broadcast."""
    size = list(image_BCHW.shape)
    size[axis] = index.shape[axis]
    total_BCHW = torch.full((1, 1, 1, 1), 1 << (PRECISION - 1), dtype=torch.int32, device=image_BCHW.device)
    for index_BCHW, weight_BCHW in zip(index.unbind(-1), weight.unbind(-1), strict=True):
        total_BCHW = total_BCHW + image_BCHW.gather(axis, index_BCHW.expand(size)) * weight_BCHW
    return (total_BCHW >> PRECISION).clamp(0, 255).to(torch.uint8)


# ------------------------------------------------------------------------------------------------ by a kernel


class Lying(NamedTuple):
    """Where pictures lie: the first byte of each, the bytes from row to row; those to the next column and the next channel."""

    pixel_S: Tensor  # uint8
    start_N: Tensor  # int64
    stride_N: Tensor  # int64
    column: int
    channel: int
    channels: int


class Boxes(NamedTuple):
    """Places and sizes, int64."""

    top_N: Tensor
    left_N: Tensor
    high_N: Tensor
    wide_N: Tensor


@functools.cache
def has_kernel() -> bool:
    """Whether boxes can be resized by our kernel here, which is asked before any picture is there: it is tried on one."""
    if not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return False
    importlib.import_module("frugalvit.data.device.crop_kernel")
    try:
        agrees = kernel_agrees(torch.device("cuda"))
    except Exception as error:  # of compilers and drivers, which have no common class
        warnings.warn(f"crops are resized without our kernel, which fails here ({brief(error)}).", stacklevel=2)
        return False
    if not agrees:
        warnings.warn("crops are resized without our kernel, which gives other bytes here.", stacklevel=2)
    return agrees


def kernel_agrees(device: torch.device) -> bool:
    """Whether two small boxes, one shrunk and one enlarged, have the bytes of the definition."""
    image_BCHW = (torch.arange(2 * 3 * 40 * 30) * 37 % 251).to(torch.uint8).view(2, 3, 40, 30)
    boxes, target = Boxes(*torch.tensor([[2, 0], [1, 3], [37, 5], [28, 9]])), (11, 13)
    found_BCHW = resized_boxes(
        lying(image_BCHW.to(device)), Boxes(*(one.to(device) for one in boxes)), (40, 30), target, "bicubic"
    )
    down, across = taps(boxes.top_N, boxes.high_N, 40, 11, "bicubic"), taps(boxes.left_N, boxes.wide_N, 30, 13, "bicubic")
    return torch.equal(found_BCHW.cpu(), resampled(image_BCHW, down, across))


def lying(image_BCHW: Tensor) -> Lying:
    """The pictures of a batch."""
    image_BCHW = image_BCHW.contiguous()
    count, channels, height, width = image_BCHW.shape
    start_B = torch.arange(count, device=image_BCHW.device) * (channels * height * width)
    return Lying(image_BCHW.view(-1), start_B, torch.full_like(start_B, width), 1, height * width, channels)


def resized_boxes(pictures: Lying, boxes: Boxes, most: tuple[int, int], target: tuple[int, int], interpolation: str) -> Tensor:
    """What `resampled` gives, on CUDA, of boxes of at most `most` rows and columns."""
    start_N = pictures.start_N + boxes.top_N * pictures.stride_N + boxes.left_N * pictures.column
    sides: list[Tensor] = []
    for length_N, source, wanted in zip((boxes.high_N, boxes.wide_N), most, target, strict=True):
        place_NLT, weight_NLT = shares(length_N, source, wanted, interpolation)
        reach_N = FILTERS[interpolation][1] * length_N.clamp(min=wanted)
        count_N = (2 * -(-reach_N // wanted) + 1).to(torch.int32)  # as `taps_needed`, of each picture
        sides += [place_NLT[:, :, 0].to(torch.int32).contiguous(), weight_NLT.contiguous(), count_N]
    return torch.ops.frugalvit.resized_boxes(
        pictures.pixel_S,
        start_N,
        pictures.stride_N,
        boxes.high_N,
        boxes.wide_N,
        *sides,
        pictures.column,
        pictures.channel,
        pictures.channels,
        most[0],
    )
