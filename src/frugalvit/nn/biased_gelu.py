"""GELU of a linear map's product and its bias, on CUDA: one pass forward, one backward. The definition is gelu(h + b).

A bias's gradient is a sum over all rows. By itself it reads the gradient of every hidden unit once more; here it is summed
where that gradient is made. Arithmetic is as dear as memory here: an exact erf takes longer than reading and writing. So the
normal distribution is ½ + x P(x²), P fitted for the least largest error: wrong by less than 2e-5, where bf16 rounds by 4e-3.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS, COLUMNS = 4, 256  # of a tile
FORWARD, BACKWARD = (4, 4), (32, 8)  # tiles one after the other in a program, and its warps
EDGE = tl.constexpr(4.3)  # beyond it the distribution is 0 or 1
ROOT_2PI = tl.constexpr(0.3989422804014327)  # 1 / √(2π)
MINUS_HALF_LOG2E = tl.constexpr(-0.7213475204444817)


@triton.jit
def distribution(x):
    """Φ(x)."""
    x = tl.minimum(tl.maximum(x, -EDGE), EDGE)
    u = x * x
    p = 5.14714851e-11 * u - 5.02607733e-09
    p = p * u + 2.16622025e-07
    p = p * u - 5.48738555e-06
    p = p * u + 9.21941366e-05
    p = p * u - 0.00110250074
    p = p * u + 0.00980025083
    p = p * u - 0.0663264478
    p = p * u + 0.398896411
    return p * x + 0.5


@triton.jit
def slope(x):
    """The derivative of x Φ(x): Φ(x) + x exp(−x²/2) / √(2π)."""
    return distribution(x) + x * ROOT_2PI * tl.exp2(x * x * MINUS_HALF_LOG2E)


@triton.jit
def forward_kernel(h, bias, out, count, width, rows: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr):
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * rows + tl.arange(0, rows)
        place, there = row[:, None] * width + column[None, :], (row[:, None] < count) & (column[None, :] < width)
        x = tl.load(h + place, mask=there, other=0.0).to(tl.float32) + b
        tl.store(out + place, (x * distribution(x)).to(out.dtype.element_ty), mask=there)


@triton.jit
def backward_kernel(
    h, bias, grad_out, grad_h, sums, count, width, rows: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr
):
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    b = tl.load(bias + column, mask=column < width, other=0.0).to(tl.float32)[None, :]
    total = tl.zeros((rows, columns), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * rows + tl.arange(0, rows)
        place, there = row[:, None] * width + column[None, :], (row[:, None] < count) & (column[None, :] < width)
        x = tl.load(h + place, mask=there, other=0.0).to(tl.float32) + b
        grad = tl.load(grad_out + place, mask=there, other=0.0).to(tl.float32)
        grad *= slope(x)
        total += grad
        tl.store(grad_h + place, grad.to(grad_h.dtype.element_ty), mask=there)
    tl.store(sums + tl.program_id(0).to(tl.int64) * width + column, tl.sum(total, 0), mask=column < width)


def grid(count: int, width: int, steps: int) -> tuple[int, int]:
    return triton.cdiv(count, ROWS * steps), triton.cdiv(width, COLUMNS)


@triton_op("frugalvit::biased_gelu", mutates_args={})
def biased_gelu(h: Tensor, bias: Tensor) -> Tensor:
    """gelu(h + b), exact, over the last axis."""
    h = h.contiguous()
    width = h.shape[-1]
    count = h.numel() // width
    out = torch.empty_like(h)
    steps, warps = FORWARD
    wrap_triton(forward_kernel)[grid(count, width, steps)](h, bias, out, count, width, ROWS, COLUMNS, steps, num_warps=warps)
    return out


@triton_op("frugalvit::biased_gelu_backward", mutates_args={})
def biased_gelu_backward(h: Tensor, bias: Tensor, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of h, and for each program the sums of its columns."""
    h, grad_out = h.contiguous(), grad_out.contiguous()
    width = h.shape[-1]
    count = h.numel() // width
    steps, warps = BACKWARD
    blocks = grid(count, width, steps)
    grad_h = torch.empty_like(h)
    sums = torch.empty(blocks[0], width, device=h.device, dtype=torch.float32)
    wrap_triton(backward_kernel)[blocks](h, bias, grad_out, grad_h, sums, count, width, ROWS, COLUMNS, steps, num_warps=warps)
    return grad_h, sums


def remember(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def backward(ctx, grad_out: Tensor) -> tuple[Tensor, Tensor]:
    h, bias = ctx.saved_tensors
    grad_h, sums = biased_gelu_backward(h, bias, grad_out)
    return grad_h, sums.sum(0).to(bias.dtype)


biased_gelu.register_autograd(backward, setup_context=remember)
