"""The way back from q, k and v to the product that made them, on CUDA: joined, and summed for the bias, in one pass.

Attention's gradient comes as three tensors. Joining them reads and writes all three; the gradient of their bias would read them
once more. The definition is qkv.chunk(3, -1) and what a bias's gradient is: the sum over all rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS, COLUMNS, STEPS = 8, 64, 32  # of a tile, and tiles that one program sums over
WARPS = 2


@triton.jit
def kernel(q, k, v, out, sums, count, width, rows: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr):
    part = tl.program_id(2)
    source = q
    if part == 1:
        source = k
    if part == 2:
        source = v
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros((rows, columns), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * rows + tl.arange(0, rows)
        there = (row[:, None] < count) & (column[None, :] < width)
        x = tl.load(source + row[:, None] * width + column[None, :], mask=there, other=0.0)
        total += x.to(tl.float32)
        tl.store(out + row[:, None] * (3 * width) + part * width + column[None, :], x, mask=there)
    place = tl.program_id(0).to(tl.int64) * (3 * width) + part * width + column
    tl.store(sums + place, tl.sum(total, 0), mask=column < width)


def grid(count: int, width: int) -> tuple[int, int, int]:
    return triton.cdiv(count, ROWS * STEPS), triton.cdiv(width, COLUMNS), 3


@triton_op("frugalvit::joined_thirds", mutates_args={})
def joined_thirds(q_GND: Tensor, k_GND: Tensor, v_GND: Tensor) -> tuple[Tensor, Tensor]:
    """The three side by side, and for each program the sums of its columns."""
    q_GND, k_GND, v_GND = q_GND.contiguous(), k_GND.contiguous(), v_GND.contiguous()
    width = q_GND.shape[-1]
    count = q_GND.numel() // width
    out = torch.empty((*q_GND.shape[:-1], 3 * width), device=q_GND.device, dtype=q_GND.dtype)
    blocks = grid(count, width)
    sums = torch.empty((blocks[0], 3 * width), device=q_GND.device, dtype=torch.float32)
    wrap_triton(kernel)[blocks](q_GND, k_GND, v_GND, out, sums, count, width, ROWS, COLUMNS, STEPS, num_warps=WARPS)
    return out, sums


class Thirds(torch.autograd.Function):
    """qkv_GNE in three, E = 3 D. `bias_E` is in them already; only its gradient is made here."""

    @staticmethod
    def forward(ctx, qkv_GNE: Tensor, bias_E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ctx.dtype = bias_E.dtype
        q_GND, k_GND, v_GND = qkv_GNE.chunk(3, -1)
        return q_GND, k_GND, v_GND

    @staticmethod
    def backward(ctx, q_GND: Tensor, k_GND: Tensor, v_GND: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        joined_GNE, sums = joined_thirds(q_GND, k_GND, v_GND)
        return joined_GNE, sums.sum(0).to(ctx.dtype)
