"""A branch added to the stream and the sum normalized for the next branch, on CUDA: one pass forward, one backward.

The definition is x' = x + f · (branch + b), y = norm(x'), with a factor f a sample and the bias b of the branch's last product.
Backward, one pass gives the gradients of x and of the branch and sums those of b and of the norm's weights; by themselves these
sums read both gradients once more. The branch may be one of some samples alone, and y may be wanted for some alone: `Kept`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS, STEPS, WARPS = 2, 16, 2  # tokens of a tile, tiles that one program sums over: the best of nine on an H200


@triton.jit
def place_of(row, tokens, batch, first, kept, count):
    """Where a token of the batch lies among those of the kept samples, and whether its sample is kept."""
    sample = row // tokens
    rank = sample - first
    rank = tl.where(rank < 0, rank + batch, rank)
    return rank * tokens + row % tokens, (row < count) & (rank < kept)


@triton.jit
def forward_kernel(
    x, branch, bias, factor, weight, shift, x_new, y, mean, rstd,
    count, batch, first1, kept1, first2, kept2, eps,
    tokens: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, columns)
    wide = column < width
    b = tl.load(bias + column, mask=wide, other=0.0).to(tl.float32)[None, :]
    w = tl.load(weight + column, mask=wide, other=0.0).to(tl.float32)[None, :]
    s = tl.load(shift + column, mask=wide, other=0.0).to(tl.float32)[None, :]
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * rows + tl.arange(0, rows)
        there = (row[:, None] < count) & wide[None, :]
        total = tl.load(x + row[:, None] * width + column[None, :], mask=there, other=0.0).to(tl.float32)
        source, comes = place_of(row, tokens, batch, first1, kept1, count)
        comes2 = comes[:, None] & wide[None, :]
        added = tl.load(branch + source[:, None] * width + column[None, :], mask=comes2, other=0.0).to(tl.float32) + b
        f = tl.load(factor + row // tokens, mask=comes, other=0.0)
        total = (total + f[:, None] * added).to(x_new.dtype.element_ty)
        tl.store(x_new + row[:, None] * width + column[None, :], total, mask=there)
        total = tl.where(wide[None, :], total.to(tl.float32), 0.0)
        target, goes = place_of(row, tokens, batch, first2, kept2, count)
        middle = tl.sum(total, 1) / width
        away = tl.where(wide[None, :], total - middle[:, None], 0.0)
        r = tl.rsqrt(tl.sum(away * away, 1) / width + eps)
        normed = away * r[:, None] * w + s
        goes2 = goes[:, None] & wide[None, :]
        tl.store(y + target[:, None] * width + column[None, :], normed.to(y.dtype.element_ty), mask=goes2)
        tl.store(mean + target, middle, mask=goes)
        tl.store(rstd + target, r, mask=goes)


@triton.jit
def backward_kernel(
    grad_new, grad_y, x_new, mean, rstd, factor, weight, grad_x, grad_branch, sums,
    count, batch, first1, kept1, first2, kept2,
    tokens: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, steps: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, columns)
    wide = column < width
    w = tl.load(weight + column, mask=wide, other=0.0).to(tl.float32)[None, :]
    weights = tl.zeros((rows, columns), tl.float32)
    shifts = tl.zeros((rows, columns), tl.float32)
    biases = tl.zeros((rows, columns), tl.float32)
    for step in range(steps):
        row = (tl.program_id(0).to(tl.int64) * steps + step) * rows + tl.arange(0, rows)
        place, there = row[:, None] * width + column[None, :], (row[:, None] < count) & wide[None, :]
        total = tl.load(grad_new + place, mask=there, other=0.0).to(tl.float32)
        target, goes = place_of(row, tokens, batch, first2, kept2, count)
        goes2 = goes[:, None] & wide[None, :]
        g = tl.load(grad_y + target[:, None] * width + column[None, :], mask=goes2, other=0.0).to(tl.float32)
        value = tl.load(x_new + place, mask=goes2, other=0.0).to(tl.float32)
        middle, r = tl.load(mean + target, mask=goes, other=0.0), tl.load(rstd + target, mask=goes, other=0.0)
        normed = tl.where(goes2, (value - middle[:, None]) * r[:, None], 0.0)
        weights += g * normed
        shifts += g
        g *= w
        along, level = tl.sum(g * normed, 1) / width, tl.sum(g, 1) / width
        total += (g - normed * along[:, None] - level[:, None]) * r[:, None]
        tl.store(grad_x + place, total.to(grad_x.dtype.element_ty), mask=there)
        source, comes = place_of(row, tokens, batch, first1, kept1, count)
        total *= tl.load(factor + row // tokens, mask=comes, other=0.0)[:, None]
        comes2 = comes[:, None] & wide[None, :]
        tl.store(grad_branch + source[:, None] * width + column[None, :], total.to(grad_branch.dtype.element_ty), mask=comes2)
        biases += tl.where(comes2, total, 0.0)
    base = sums + tl.program_id(0).to(tl.int64) * (3 * width) + column
    tl.store(base, tl.sum(weights, 0), mask=wide)
    tl.store(base + width, tl.sum(shifts, 0), mask=wide)
    tl.store(base + 2 * width, tl.sum(biases, 0), mask=wide)


def tile(width: int) -> tuple[int, int]:
    """Rows and columns of one: the columns hold a whole token."""
    return ROWS, triton.next_power_of_2(width)


def programs(count: int) -> int:
    return triton.cdiv(count, ROWS * STEPS)


@triton_op("frugalvit::add_norm", mutates_args={})
def add_norm(
    x_BND: Tensor,
    branch_KND: Tensor,
    bias_D: Tensor,
    factor_B: Tensor,
    weight_D: Tensor,
    shift_D: Tensor,
    eps: float,
    first1: int,
    first2: int,
    kept2: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(x', y of the `kept2` samples from `first2` on, their means, one over their deviations)"""
    x_BND, branch_KND = x_BND.contiguous(), branch_KND.contiguous()
    batch, tokens, width = x_BND.shape
    new_BND = torch.empty_like(x_BND)
    y_KND = torch.empty((kept2, tokens, width), device=x_BND.device, dtype=branch_KND.dtype)
    mean, rstd = (torch.empty(kept2 * tokens, device=x_BND.device, dtype=torch.float32) for _ in range(2))
    count = batch * tokens
    wrap_triton(forward_kernel)[(programs(count),)](
        x_BND, branch_KND, bias_D, factor_B, weight_D, shift_D, new_BND, y_KND, mean, rstd,
        count, batch, first1, branch_KND.shape[0], first2, kept2, eps, tokens, width, *tile(width), STEPS, num_warps=WARPS,
    )  # fmt: skip
    return new_BND, y_KND, mean, rstd


@triton_op("frugalvit::add_norm_backward", mutates_args={})
def add_norm_backward(
    grad_BND: Tensor,
    grad_y_KND: Tensor,
    new_BND: Tensor,
    mean: Tensor,
    rstd: Tensor,
    factor_B: Tensor,
    weight_D: Tensor,
    first1: int,
    kept1: int,
    first2: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and of the branch; for each program sums for the norm's weight and shift and the branch's bias."""
    grad_BND, grad_y_KND = grad_BND.contiguous(), grad_y_KND.contiguous()
    batch, tokens, width = new_BND.shape
    grad_x_BND = torch.empty_like(new_BND)
    grad_branch_KND = torch.empty((kept1, tokens, width), device=new_BND.device, dtype=grad_y_KND.dtype)
    count = batch * tokens
    blocks = programs(count)
    sums = torch.empty((blocks, 3, width), device=new_BND.device, dtype=torch.float32)
    wrap_triton(backward_kernel)[(blocks,)](
        grad_BND, grad_y_KND, new_BND, mean, rstd, factor_B, weight_D, grad_x_BND, grad_branch_KND, sums,
        count, batch, first1, kept1, first2, grad_y_KND.shape[0], tokens, width, *tile(width), STEPS, num_warps=WARPS,
    )  # fmt: skip
    return grad_x_BND, grad_branch_KND, sums


def remember(ctx, inputs, output) -> None:
    _, branch_KND, bias_D, factor_B, weight_D, shift_D, _, first1, first2, _ = inputs
    new_BND, _, mean, rstd = output
    ctx.save_for_backward(new_BND, mean, rstd, factor_B, weight_D)
    ctx.kept = first1, branch_KND.shape[0], first2
    ctx.dtypes = bias_D.dtype, shift_D.dtype


def backward(ctx, grad_BND: Tensor, grad_y_KND: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    grad_x_BND, grad_branch_KND, sums = add_norm_backward(grad_BND, grad_y_KND, *ctx.saved_tensors, *ctx.kept)
    weight_D, shift_D, bias_D = sums.sum(0).unbind()
    of_bias, of_shift = ctx.dtypes
    own = weight_D.to(ctx.saved_tensors[-1].dtype), shift_D.to(of_shift)
    return grad_x_BND, grad_branch_KND, bias_D.to(of_bias), None, *own, None, None, None, None


add_norm.register_autograd(backward, setup_context=remember)
