"""The way back through attention over some two hundred tokens, on CUDA: from y's gradient to qkv's and its bias's.

The definition is that of attention's gradient. The libraries' kernels are made for long sequences: they sum the queries'
gradients over pieces of keys in fp32, which a kernel of its own rounds, give three tensors that have to be joined, and the
bias's gradient reads them once more. Here one kernel makes the gradients of queries and another those of keys and values, each
straight into its place beside the others. Scores are computed in both, which costs less than passing them on. What is left
over of a sequence when it is cut into tiles of 64 tokens (5 of 197) has a smaller tile, which wastes less.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

ROWS = 64  # of a tile: queries, or keys
QUERIES, KEYS = (64, 4, 2), (32, 4, 3)  # keys and queries at a time, warps and stages: of each kernel
LOG2E = tl.constexpr(1.4426950408889634)

# fmt: off


@triton.jit
def rows_of(start, token, tokens: tl.constexpr, stride: tl.constexpr, column, ragged: tl.constexpr):
    """The rows of these tokens; zeros behind the last one."""
    place = start + token[:, None] * stride + column[None, :]
    if ragged:
        return tl.load(place, mask=(token < tokens)[:, None], other=0.0)
    return tl.load(place)


@triton.jit
def numbers_of(start, token, tokens: tl.constexpr, ragged: tl.constexpr):
    if ragged:
        return tl.load(start + token, mask=token < tokens, other=0.0)
    return tl.load(start + token)


@triton.jit
def own_place(tokens: tl.constexpr, heads: tl.constexpr, width: tl.constexpr, rows: tl.constexpr):
    """This program's tile and head, and where they begin: of q, of y, and of the sums.

    One head's tiles come one after the other, so that what they all read stays near.
    """
    inner: tl.constexpr = heads * width
    pieces: tl.constexpr = (tokens + rows - 1) // rows
    piece, one = tl.program_id(0) % pieces, (tl.program_id(0) // pieces).to(tl.int64)
    sample, head = one // heads, one % heads
    start, start3 = sample * (tokens * inner) + head * width, sample * (3 * tokens * inner) + head * width
    return piece, one, start3, start, (sample * pieces + piece) * (3 * inner) + head * width


@triton.jit
def towards_queries(grad_q, q, grad, share, level, k_and_v, key, column,
    factor: tl.constexpr, tokens: tl.constexpr, inner: tl.constexpr, ragged: tl.constexpr):
    """The queries' gradient with what comes through these keys added."""
    k = rows_of(k_and_v, key, tokens, 3 * inner, column, ragged)
    v = rows_of(k_and_v + inner, key, tokens, 3 * inner, column, ragged)
    weights = tl.exp2(tl.dot(q, tl.trans(k)) * (factor * LOG2E) - level[:, None])
    if ragged:
        weights = tl.where((key < tokens)[None, :], weights, 0.0)
    grad_weights = tl.dot(grad, tl.trans(v))
    return tl.dot((weights * (grad_weights - share[:, None])).to(q.dtype), k, grad_q)


@triton.jit
def queries_tile(qkv, y, lse, grad_y, grad_qkv, shares, sums, first, factor: tl.constexpr, tokens: tl.constexpr,
    inner: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, some: tl.constexpr, rest: tl.constexpr,
    ragged: tl.constexpr):
    """The gradient of some queries of one head. Pointers are at the head's first number of its first token."""
    column = tl.arange(0, width)
    query = first + tl.arange(0, rows)
    q = rows_of(qkv, query, tokens, 3 * inner, column, ragged)
    grad = rows_of(grad_y, query, tokens, inner, column, ragged)
    share = tl.sum(grad.to(tl.float32) * rows_of(y, query, tokens, inner, column, ragged).to(tl.float32), 1)
    level = numbers_of(lse, query, tokens, ragged) * LOG2E
    grad_q = tl.zeros((rows, width), tl.float32)
    whole: tl.constexpr = tokens // some * some
    for begin in range(0, whole, some):
        key = begin + tl.arange(0, some)
        grad_q = towards_queries(grad_q, q, grad, share, level, qkv + inner, key, column, factor, tokens, inner, False)
    if whole < tokens:
        key = whole + tl.arange(0, rest)
        grad_q = towards_queries(grad_q, q, grad, share, level, qkv + inner, key, column, factor, tokens, inner, True)
    grad_q *= factor
    place = grad_qkv + query[:, None] * (3 * inner) + column[None, :]
    if ragged:
        tl.store(shares + query, share, mask=query < tokens)
        tl.store(place, grad_q.to(qkv.dtype.element_ty), mask=(query < tokens)[:, None])
    else:
        tl.store(shares + query, share)
        tl.store(place, grad_q.to(qkv.dtype.element_ty))
    tl.store(sums + column, tl.sum(grad_q, 0))


@triton.jit
def queries_kernel(qkv, y, lse, grad_y, grad_qkv, shares, sums, factor: tl.constexpr, tokens: tl.constexpr,
    heads: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, last: tl.constexpr, some: tl.constexpr,
    rest: tl.constexpr):
    inner: tl.constexpr = heads * width
    piece, one, start3, start, start_sums = own_place(tokens, heads, width, rows)
    sums += start_sums
    qkv, grad_qkv, y, grad_y = qkv + start3, grad_qkv + start3, y + start, grad_y + start
    lse, shares = lse + one * tokens, shares + one * tokens
    if piece < tokens // rows:
        queries_tile(qkv, y, lse, grad_y, grad_qkv, shares, sums, piece * rows,
            factor, tokens, inner, width, rows, some, rest, False)
    elif tokens % rows:
        queries_tile(qkv, y, lse, grad_y, grad_qkv, shares, sums, piece * rows,
            factor, tokens, inner, width, last, some, rest, True)


@triton.jit
def towards_keys(grad_k, grad_v, k, v, q_rows, grad_rows, lse, shares, query, column,
    factor: tl.constexpr, tokens: tl.constexpr, inner: tl.constexpr, ragged: tl.constexpr):
    """The keys' and values' gradients with what comes from these queries added. Keys are the rows of the scores."""
    q = rows_of(q_rows, query, tokens, 3 * inner, column, ragged)
    grad = rows_of(grad_rows, query, tokens, inner, column, ragged)
    share = numbers_of(shares, query, tokens, ragged)
    level = numbers_of(lse, query, tokens, ragged) * LOG2E
    weights = tl.exp2(tl.dot(k, tl.trans(q)) * (factor * LOG2E) - level[None, :])
    grad_v = tl.dot(weights.to(k.dtype), grad, grad_v)
    grad_weights = tl.dot(v, tl.trans(grad))
    grad_k = tl.dot((weights * (grad_weights - share[None, :])).to(k.dtype), q, grad_k)
    return grad_k, grad_v


@triton.jit
def keys_tile(qkv, lse, grad_y, grad_qkv, shares, sums, first, factor: tl.constexpr, tokens: tl.constexpr,
    inner: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, some: tl.constexpr, rest: tl.constexpr,
    ragged: tl.constexpr):
    """The gradients of some keys and values of one head. Pointers are at the head's first number of its first token."""
    column = tl.arange(0, width)
    key = first + tl.arange(0, rows)
    k = rows_of(qkv + inner, key, tokens, 3 * inner, column, ragged)
    v = rows_of(qkv + 2 * inner, key, tokens, 3 * inner, column, ragged)
    grad_k, grad_v = tl.zeros((rows, width), tl.float32), tl.zeros((rows, width), tl.float32)
    whole: tl.constexpr = tokens // some * some
    for begin in range(0, whole, some):
        query = begin + tl.arange(0, some)
        grad_k, grad_v = towards_keys(grad_k, grad_v, k, v, qkv, grad_y, lse, shares, query, column,
            factor, tokens, inner, False)
    if whole < tokens:
        query = whole + tl.arange(0, rest)
        grad_k, grad_v = towards_keys(grad_k, grad_v, k, v, qkv, grad_y, lse, shares, query, column,
            factor, tokens, inner, True)
    grad_k *= factor
    place = grad_qkv + inner + key[:, None] * (3 * inner) + column[None, :]
    kind = qkv.dtype.element_ty
    if ragged:
        there = (key < tokens)[:, None]
        tl.store(place, grad_k.to(kind), mask=there)
        tl.store(place + inner, grad_v.to(kind), mask=there)
        grad_k, grad_v = tl.where(there, grad_k, 0.0), tl.where(there, grad_v, 0.0)
    else:
        tl.store(place, grad_k.to(kind))
        tl.store(place + inner, grad_v.to(kind))
    tl.store(sums + inner + column, tl.sum(grad_k, 0))
    tl.store(sums + 2 * inner + column, tl.sum(grad_v, 0))


@triton.jit
def keys_kernel(qkv, lse, grad_y, grad_qkv, shares, sums, factor: tl.constexpr, tokens: tl.constexpr,
    heads: tl.constexpr, width: tl.constexpr, rows: tl.constexpr, last: tl.constexpr, some: tl.constexpr,
    rest: tl.constexpr):
    inner: tl.constexpr = heads * width
    piece, one, start3, start, start_sums = own_place(tokens, heads, width, rows)
    sums += start_sums
    qkv, grad_qkv, grad_y = qkv + start3, grad_qkv + start3, grad_y + start
    lse, shares = lse + one * tokens, shares + one * tokens
    if piece < tokens // rows:
        keys_tile(qkv, lse, grad_y, grad_qkv, shares, sums, piece * rows,
            factor, tokens, inner, width, rows, some, rest, False)
    elif tokens % rows:
        keys_tile(qkv, lse, grad_y, grad_qkv, shares, sums, piece * rows,
            factor, tokens, inner, width, last, some, rest, True)


# fmt: on


def tile_for(rest: int) -> int:
    """The smallest tile that holds so many tokens."""
    return max(16, triton.next_power_of_2(rest))


@triton_op("frugalvit::attention_gradient", mutates_args={})
def attention_gradient(
    qkv_GNE: Tensor, y_GND: Tensor, lse_GHN: Tensor, grad_GND: Tensor, heads: int, factor: float
) -> tuple[Tensor, Tensor]:
    """The gradient of qkv_GNE (all of q, then k, then v), and its sums over pieces of tokens in fp32: [all pieces, E].

    `lse_GHN` are the logarithms of what each query's softmax was divided by.
    """
    qkv_GNE, y_GND, lse_GHN, grad_GND = (one.contiguous() for one in (qkv_GNE, y_GND, lse_GHN, grad_GND))
    samples, tokens, all_widths = qkv_GNE.shape
    pieces = triton.cdiv(tokens, ROWS)
    grad_qkv_GNE, share_GHN = torch.empty_like(qkv_GNE), torch.empty_like(lse_GHN)
    sums = torch.empty((samples * pieces, all_widths), device=qkv_GNE.device, dtype=torch.float32)
    grid = (samples * heads * pieces,)
    sizes = factor, tokens, heads, all_widths // 3 // heads, ROWS, tile_for(tokens % ROWS)
    some, warps, stages = QUERIES
    wrap_triton(queries_kernel)[grid](
        qkv_GNE, y_GND, lse_GHN, grad_GND, grad_qkv_GNE, share_GHN, sums, *sizes, some, tile_for(tokens % some),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    some, warps, stages = KEYS
    wrap_triton(keys_kernel)[grid](
        qkv_GNE, lse_GHN, grad_GND, grad_qkv_GNE, share_GHN, sums, *sizes, some, tile_for(tokens % some),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return grad_qkv_GNE, sums


class WholeAttention(torch.autograd.Function):
    """y_GND of qkv_GNE. `bias_E`, or None, is in qkv already; only its gradient is made here."""

    @staticmethod
    def forward(ctx, qkv_GNE: Tensor, bias_E: Tensor | None, heads: int, factor: float) -> Tensor:
        q_GHNK, k_GHNK, v_GHNK = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in qkv_GNE.chunk(3, -1))
        cudnn = torch.ops.aten._scaled_dot_product_cudnn_attention
        y_GHNK, lse_GHN1, *_ = cudnn(q_GHNK, k_GHNK, v_GHNK, None, True, 0.0, False, False, scale=factor)
        y_GND = y_GHNK.transpose(1, 2).flatten(2)
        ctx.save_for_backward(qkv_GNE, y_GND, lse_GHN1)
        ctx.heads, ctx.factor = heads, factor
        ctx.dtype = None if bias_E is None else bias_E.dtype
        return y_GND

    @staticmethod
    def backward(ctx, grad_GND: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        grad_qkv_GNE, sums = attention_gradient(*ctx.saved_tensors, grad_GND, ctx.heads, ctx.factor)
        return grad_qkv_GNE, None if ctx.dtype is None else sums.sum(0).to(ctx.dtype), None, None
