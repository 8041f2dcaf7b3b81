"""Talking heads in one pass over the scores, on CUDA: mix, hide, softmax, mix. The definition is `MultiHead.explained`.

As separate products, the scores of all heads travel through memory again and again. Here a program holds the rows of a few
queries of every head, so scores are read once and written once; backward computes the softmax anew.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

TILE = 16  # rows of a tile, the least that the tensor cores multiply: as many queries as fit, each with all its heads
LONGEST = 256  # keys; more would not fit into registers
STEPS = 8  # tiles that one backward program sums the gradients of the mixtures over


@triton.jit
def block_diagonal(weight, heads: tl.constexpr, pack: tl.constexpr):
    """The mixture_HH of each query of a tile on the diagonal of a 16 x 16 matrix."""
    row, column = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    same = (row // heads == column // heads) & (row < heads * pack) & (column < heads * pack)
    return tl.load(weight + (row % heads) * heads + column % heads, mask=same, other=0.0)


@triton.jit
def per_row(bias, heads: tl.constexpr, pack: tl.constexpr):
    row = tl.arange(0, 16)
    return tl.load(bias + row % heads, mask=row < heads * pack, other=0.0)[:, None]


@triton.jit
def softmax_of_mixed(scores, before, before_bias, keys, query, hides: tl.constexpr, tile_keys: tl.constexpr):
    """The attention of a tile's queries, before the second mixture."""
    key = tl.arange(0, tile_keys)[None, :]
    mixed = tl.dot(before, scores) + before_bias
    seen = key < keys
    if hides:
        seen = seen & (key != query)
    mixed = tl.where(seen, mixed, float("-inf"))
    weights = tl.exp(mixed - tl.max(mixed, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def forward_kernel(
    scores,
    out,
    w1,
    b1,
    w2,
    b2,
    queries,
    keys,
    heads: tl.constexpr,
    pack: tl.constexpr,
    hides: tl.constexpr,
    tile_keys: tl.constexpr,
):
    kind = scores.dtype.element_ty
    row, key = tl.arange(0, 16)[:, None], tl.arange(0, tile_keys)[None, :]
    before, after = block_diagonal(w1, heads, pack).to(kind), block_diagonal(w2, heads, pack).to(kind)
    query = tl.program_id(1) * pack + row // heads
    inside = (row < heads * pack) & (query < queries) & (key < keys)
    place = ((tl.program_id(0) * heads + row % heads).to(tl.int64) * queries + query) * keys + key
    tile = tl.load(scores + place, mask=inside, other=0.0)
    attention = softmax_of_mixed(tile, before, per_row(b1, heads, pack), keys, query, hides, tile_keys)
    result = tl.dot(after, attention.to(kind)) + per_row(b2, heads, pack)
    tl.store(out + place, result.to(kind), mask=inside)


@triton.jit
def backward_kernel(
    scores,
    grad_out,
    grad_scores,
    sums,
    w1,
    b1,
    w2,
    queries,
    keys,
    heads: tl.constexpr,
    pack: tl.constexpr,
    hides: tl.constexpr,
    tile_keys: tl.constexpr,
    steps: tl.constexpr,
):
    kind = scores.dtype.element_ty
    row, key = tl.arange(0, 16)[:, None], tl.arange(0, tile_keys)[None, :]
    before, after = block_diagonal(w1, heads, pack).to(kind), block_diagonal(w2, heads, pack).to(kind)
    before_bias = per_row(b1, heads, pack)
    grad_before, grad_after = tl.zeros((16, 16), tl.float32), tl.zeros((16, 16), tl.float32)
    grad_before_bias, grad_after_bias = tl.zeros((16,), tl.float32), tl.zeros((16,), tl.float32)
    for step in range(steps):
        query = (tl.program_id(1) * steps + step) * pack + row // heads
        whole = (row < heads * pack) & (query < queries)
        inside = whole & (key < keys)
        place = ((tl.program_id(0) * heads + row % heads).to(tl.int64) * queries + query) * keys + key
        tile = tl.load(scores + place, mask=inside, other=0.0)
        grad = tl.load(grad_out + place, mask=inside, other=0.0)
        attention = softmax_of_mixed(tile, before, before_bias, keys, query, hides, tile_keys)
        attention = tl.where(whole, attention, 0.0)
        grad_after += tl.dot(grad, tl.trans(attention.to(kind)))
        grad_after_bias += tl.sum(grad.to(tl.float32), 1)
        grad_attention = tl.dot(tl.trans(after), grad)
        inner = tl.sum(grad_attention * attention, 1)[:, None]
        grad_mixed = attention * (grad_attention - inner)
        grad_before_bias += tl.sum(grad_mixed, 1)
        grad_before += tl.dot(grad_mixed.to(kind), tl.trans(tile))
        grad_tile = tl.dot(tl.trans(before), grad_mixed.to(kind))
        tl.store(grad_scores + place, grad_tile.to(kind), mask=inside)
    start = sums + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * 544
    square, line = row * 16 + tl.arange(0, 16)[None, :], tl.arange(0, 16)
    tl.store(start + square, grad_before)
    tl.store(start + 256 + square, grad_after)
    tl.store(start + 512 + line, grad_before_bias)
    tl.store(start + 528 + line, grad_after_bias)


@triton_op("frugalvit::talking_heads", mutates_args={})
def talking_heads(scores: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, hides: bool) -> Tensor:
    """attention_GHMN, mixed after the softmax of the mixed scores_GHMN. `hides`: a token's score for itself is −inf."""
    scores = scores.contiguous()
    groups, heads, queries, keys = scores.shape
    pack = TILE // heads
    out = torch.empty_like(scores)
    grid = (groups, triton.cdiv(queries, pack))
    wide = triton.next_power_of_2(max(keys, 16))
    wrap_triton(forward_kernel)[grid](scores, out, w1, b1, w2, b2, queries, keys, heads, pack, hides, wide, num_warps=4)
    return out


@triton_op("frugalvit::talking_heads_backward", mutates_args={})
def talking_heads_backward(
    scores: Tensor, grad_out: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, hides: bool
) -> tuple[Tensor, Tensor]:
    """The gradient of the scores, and for each program 16 x 16 of w1, 16 x 16 of w2, 16 of b1, 16 of b2."""
    scores, grad_out = scores.contiguous(), grad_out.contiguous()
    groups, heads, queries, keys = scores.shape
    pack = TILE // heads
    grad_scores = torch.empty_like(scores)
    grid = (groups, triton.cdiv(queries, pack * STEPS))
    sums = torch.empty(grid[0] * grid[1], 544, device=scores.device, dtype=torch.float32)
    wide = triton.next_power_of_2(max(keys, 16))
    wrap_triton(backward_kernel)[grid](
        scores, grad_out, grad_scores, sums, w1, b1, w2, queries, keys, heads, pack, hides, wide, STEPS, num_warps=4
    )
    return grad_scores, sums


def remember(ctx, inputs, output) -> None:
    scores, w1, b1, w2, _, hides = inputs
    ctx.save_for_backward(scores, w1, b1, w2)
    ctx.hides = hides


def backward(ctx, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    scores, w1, b1, w2 = ctx.saved_tensors
    heads = w1.shape[0]
    grad_scores, sums = talking_heads_backward(scores, grad_out, w1, b1, w2, ctx.hides)
    used = heads * (TILE // heads)
    total = sums.sum(0)
    squares = (total[start : start + 256].view(16, 16)[:used, :used] for start in (0, 256))
    grad_w1, grad_w2 = (one.unflatten(1, (-1, heads)).unflatten(0, (-1, heads)) for one in squares)
    grad_b1, grad_b2 = (total[start : start + used].view(-1, heads).sum(0) for start in (512, 528))
    grads = (diagonal_sum(grad_w1), grad_b1, diagonal_sum(grad_w2), grad_b2)
    return grad_scores, *(grad.to(w1.dtype) for grad in grads), None


def diagonal_sum(blocks: Tensor) -> Tensor:
    """The sum over the queries of a tile, whose mixtures lie on the diagonal of blocks [P, H, P, H]."""
    return blocks.diagonal(dim1=0, dim2=2).sum(-1)


talking_heads.register_autograd(backward, setup_context=remember)
