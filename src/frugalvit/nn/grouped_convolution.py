"""A convolution in groups, with bias and perhaps a rectifier, on CUDA with channels last, for networks that only answer.

Each program makes a tile of one group: so many places, all of its channels. For every place of the window it adds a product of
what lies there and that place's weights; places beside the map count as zeros. It is tried beside cuDNN's, which is the
definition.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS, DEPTH = 128, 64  # places of a tile, and channels that a product sums over
WARPS, STAGES = 4, 3


@triton.jit
def convolve_kernel(
    x, weight, bias, out,
    count, high, wide, out_high, out_wide, channels, out_channels, top, left,
    stride: tl.constexpr, side: tl.constexpr, into: tl.constexpr, leaving: tl.constexpr, rectifies: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, depth: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(1)
    place = tl.program_id(0) * rows + tl.arange(0, rows)
    column, inner = tl.arange(0, columns), tl.arange(0, depth)
    picture = (place // (out_wide * out_high)).to(tl.int64)
    first_y, first_x = (place // out_wide) % out_high * stride - top, place % out_wide * stride - left
    corner = x + (picture * high + first_y) * wide * channels + first_x * channels + group * into  # of the window
    weights = weight + group * side * side * into * leaving + column[None, :]
    total = tl.zeros((rows, columns), tl.float32)
    pieces: tl.constexpr = (into + depth - 1) // depth
    for step in range(side * side * pieces):
        window, channel = step // pieces, (step % pieces) * depth + inner
        down, right = window // side, window % side
        y_inside = (first_y + down >= 0) & (first_y + down < high)
        inside = (place < count) & y_inside & (first_x + right >= 0) & (first_x + right < wide)
        here = corner[:, None] + ((down * wide + right) * channels + channel)[None, :]
        seen = tl.load(here, mask=inside[:, None] & (channel < into)[None, :], other=0.0)
        there = (channel < into)[:, None] & (column < leaving)[None, :]
        total = tl.dot(seen, tl.load(weights + (window * into + channel)[:, None] * leaving, mask=there, other=0.0), total)
    total += tl.load(bias + group * leaving + column, mask=column < leaving, other=0.0).to(tl.float32)[None, :]
    if rectifies:
        total = tl.maximum(total, 0.0)
    to_here = out + place.to(tl.int64)[:, None] * out_channels + group * leaving + column[None, :]
    tl.store(to_here, total.to(out.dtype.element_ty), mask=(place < count)[:, None] & (column < leaving)[None, :])


@triton_op("frugalvit::grouped_convolution", mutates_args={})
def grouped_convolution(
    x_BHWC: Tensor, weight_GWIO: Tensor, bias_O: Tensor, stride: int, pads: list[int], rectifies: bool
) -> Tensor:
    """y_BHWC: of each group G, at each place W of a square window, weights from I channels to O of the group's own.

    `pads` are left, right, top and bottom.
    """
    x_BHWC = x_BHWC.contiguous()
    batch, high, wide, channels = x_BHWC.shape
    groups, places, into, leaving = weight_GWIO.shape
    side = round(places**0.5)
    left, right, top, bottom = pads
    out_high, out_wide = (high + top + bottom - side) // stride + 1, (wide + left + right - side) // stride + 1
    out = torch.empty((batch, out_high, out_wide, groups * leaving), dtype=x_BHWC.dtype, device=x_BHWC.device)
    count = batch * out_high * out_wide
    grid = triton.cdiv(count, ROWS), groups
    wrap_triton(convolve_kernel)[grid](
        x_BHWC, weight_GWIO, bias_O, out,
        count, high, wide, out_high, out_wide, channels, groups * leaving, top, left,
        stride, side, into, leaving, rectifies,
        ROWS, max(triton.next_power_of_2(leaving), 16), DEPTH,
        num_warps=WARPS, num_stages=STAGES,
    )  # fmt: skip
    return out
