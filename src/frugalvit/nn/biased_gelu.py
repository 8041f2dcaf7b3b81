"""GELU of a linear map's product and its bias, on CUDA: one pass forward, one backward. The definition is gelu(h + b).

A bias's gradient is a sum over all rows. By itself it reads the gradient of every hidden unit once more; here it is summed
where that gradient is made. The normal distribution is a polynomial times exp(−x²/2) (Abramowitz & Stegun 1964, 7.1.26; wrong
by less than 1.5e-7), and its density is that same exponential: an exact erf would take longer than reading and writing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS, COLUMNS, STEPS = 16, 256, 8  # of a tile, and tiles that one program sums over
ROOT_HALF = tl.constexpr(0.7071067811865476)
ROOT_2PI = tl.constexpr(0.3989422804014327)  # 1 / √(2π)
MINUS_HALF_LOG2E = tl.constexpr(-0.7213475204444817)


@triton.jit
def normal(x):
    """Φ(x) and exp(−x²/2)."""
    falling = tl.exp2(x * x * MINUS_HALF_LOG2E)
    t = 1.0 / (1.0 + tl.abs(x) * (0.3275911 * ROOT_HALF))
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    tail = 0.5 * series * falling  # Φ(−|x|)
    return tl.where(x > 0, 1.0 - tail, tail), falling


@triton.jit
def forward_kernel(h, bias, out, count, width, rows: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr):
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * rows + tl.arange(0, rows)
        place, there = row[:, None] * width + column[None, :], (row[:, None] < count) & (column[None, :] < width)
        x = tl.load(h + place, mask=there, other=0.0).to(tl.float32) + b
        share, _ = normal(x)
        tl.store(out + place, (x * share).to(out.dtype.element_ty), mask=there)


@triton.jit
def backward_kernel(
    h, bias, grad_out, grad_h, sums, count, width, rows: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr
):
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((columns,), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * rows + tl.arange(0, rows)
        place, there = row[:, None] * width + column[None, :], (row[:, None] < count) & (column[None, :] < width)
        x = tl.load(h + place, mask=there, other=0.0).to(tl.float32) + b
        grad = tl.load(grad_out + place, mask=there, other=0.0).to(tl.float32)
        share, falling = normal(x)
        grad = grad * (share + x * ROOT_2PI * falling)
        total += tl.sum(grad, 0)
        tl.store(grad_h + place, grad.to(grad_h.dtype.element_ty), mask=there)
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + column, total, mask=column < width)


def grid(count: int, width: int) -> tuple[int, int]:
    return triton.cdiv(count, ROWS * STEPS), triton.cdiv(width, COLUMNS)


@triton_op("frugalvit::biased_gelu", mutates_args={})
def biased_gelu(h: Tensor, bias: Tensor) -> Tensor:
    """gelu(h + b), exact, over the last axis."""
    h = h.contiguous()
    width = h.shape[-1]
    count = h.numel() // width
    out = torch.empty_like(h)
    wrap_triton(forward_kernel)[grid(count, width)](h, bias, out, count, width, ROWS, COLUMNS, STEPS, num_warps=4)
    return out


@triton_op("frugalvit::biased_gelu_backward", mutates_args={})
def biased_gelu_backward(h: Tensor, bias: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of h, and for each program the sums of its columns."""
    h, grad_out = h.contiguous(), grad_out.contiguous()
    width = h.shape[-1]
    count = h.numel() // width
    blocks = grid(count, width)
    grad_h = torch.empty_like(h)
    sums = torch.empty(blocks[0], width, device=h.device, dtype=torch.float32)
    wrap_triton(backward_kernel)[blocks](h, bias, grad_out, grad_h, sums, count, width, ROWS, COLUMNS, STEPS, num_warps=4)
    return grad_h, sums


def remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    h, bias = ctx.saved_tensors
    grad_h, sums = biased_gelu_backward(h, bias, grad_out)
    return grad_h, sums.sum(0).to(bias.dtype)


biased_gelu.register_autograd(backward, setup_context=remember)
