"""Boxes of pictures resized on CUDA, wherever the pictures lie: a kernel along the width, one along the height.

The definition is `resample.resampled`, and the bytes are the same. It takes a pass over the whole batch for each weight that
any picture could need, and as large a canvas for each; here a program takes as many weights as its picture has.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS, COLUMNS, WARPS = 8, 128, 4  # of a tile
HALF = tl.constexpr(1 << 21)  # of a weight of 1
PRECISION = tl.constexpr(22)


@triton.jit
def level(total):
    """A byte of a sum in units of 2⁻²²."""
    return tl.minimum(tl.maximum(total >> PRECISION, 0), 255).to(tl.uint8)


@triton.jit
def across_kernel(
    pixels, start, stride, high, wide, first, weight, count, out,
    column_step, channel_step, channels, most_rows, target, taps,
    rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Rows of a box, each resized; `out` is [picture, channel, row of the box, column]."""
    picture, channel = tl.program_id(0).to(tl.int64) // channels, tl.program_id(0) % channels
    height, width = tl.load(high + picture), tl.load(wide + picture)
    if tl.program_id(1) * rows < height:
        row = tl.program_id(1) * rows + tl.arange(0, rows)
        column = tl.program_id(2) * columns + tl.arange(0, columns)
        inside = column < target
        line = pixels + tl.load(start + picture) + channel * channel_step + (row * tl.load(stride + picture))[:, None]
        place = tl.load(first + picture * target + column, mask=inside, other=0)
        shares = weight + (picture * target + column) * taps
        total = tl.full((rows, columns), HALF, tl.int32)
        for tap in range(tl.load(count + picture)):
            seen = inside & (place + tap < width)
            share = tl.load(shares + tap, mask=seen, other=0)
            value = tl.load(
                line + ((place + tap) * column_step)[None, :], mask=(row < height)[:, None] & seen[None, :], other=0
            )
            total += value.to(tl.int32) * share[None, :]
        where = ((picture * channels + channel) * most_rows + row)[:, None] * target + column[None, :]
        tl.store(out + where, level(total), mask=(row < height)[:, None] & inside[None, :])


@triton.jit
def down_kernel(
    between, high, first, weight, count, out, channels, most_rows, target_rows, target, taps,
    rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    """Columns of what `across_kernel` wrote, each resized; `out` is [picture, channel, row, column]."""
    plane = tl.program_id(0).to(tl.int64)
    picture = plane // channels
    height = tl.load(high + picture)
    row = tl.program_id(1) * rows + tl.arange(0, rows)
    column = tl.program_id(2) * columns + tl.arange(0, columns)
    inside, there = column < target, row < target_rows
    place = tl.load(first + picture * target_rows + row, mask=there, other=0)
    shares = weight + (picture * target_rows + row) * taps
    total = tl.full((rows, columns), HALF, tl.int32)
    for tap in range(tl.load(count + picture)):
        seen = there & (place + tap < height)
        share = tl.load(shares + tap, mask=seen, other=0)
        where = (plane * most_rows + place + tap)[:, None] * target + column[None, :]
        value = tl.load(between + where, mask=seen[:, None] & inside[None, :], other=0)
        total += value.to(tl.int32) * share[:, None]
    where = (plane * target_rows + row)[:, None] * target + column[None, :]
    tl.store(out + where, level(total), mask=there[:, None] & inside[None, :])


@triton_op("frugalvit::resized_boxes", mutates_args={})
def resized_boxes(
    pixel_S: Tensor,
    start_N: Tensor,
    stride_N: Tensor,
    high_N: Tensor,
    wide_N: Tensor,
    down_first_NL: Tensor,
    down_weight_NLT: Tensor,
    down_count_N: Tensor,
    across_first_NL: Tensor,
    across_weight_NLT: Tensor,
    across_count_N: Tensor,
    column_step: int,
    channel_step: int,
    channels: int,
    most_rows: int,
) -> Tensor:
    """image_NCHW of boxes of `high` rows and `wide` columns, at most `most_rows` rows each.

    A box begins at byte `start`; from row to row there are `stride` bytes, to the next column and channel the given steps.
    """
    count, height, width = len(start_N), down_first_NL.shape[1], across_first_NL.shape[1]
    between = torch.empty((count, channels, most_rows, width), dtype=torch.uint8, device=pixel_S.device)
    out = torch.empty((count, channels, height, width), dtype=torch.uint8, device=pixel_S.device)
    tiles = triton.cdiv(width, COLUMNS)
    wrap_triton(across_kernel)[count * channels, triton.cdiv(most_rows, ROWS), tiles](
        pixel_S, start_N, stride_N, high_N, wide_N, across_first_NL, across_weight_NLT, across_count_N, between,
        column_step, channel_step, channels, most_rows, width, across_weight_NLT.shape[2],
        ROWS, COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    wrap_triton(down_kernel)[count * channels, triton.cdiv(height, ROWS), tiles](
        between, high_N, down_first_NL, down_weight_NLT, down_count_N, out, channels, most_rows, height, width,
        down_weight_NLT.shape[2], ROWS, COLUMNS, num_warps=WARPS,
    )  # fmt: skip
    return out
