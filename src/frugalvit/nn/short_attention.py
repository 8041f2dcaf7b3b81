"""Attention over few tokens in one pass, on CUDA: from qkv to y, with LSA's scale and mask. The definition is
`MultiHead.explained`.

The fused kernels of the libraries are made for long sequences and wide heads: over 65 tokens with heads of 16 they spend most
of their time on padding. Here a program holds all keys of one head of one sample, those that a power of two leaves over in a
tile of their own: 64 and 1, for one. What is done for every pair of tokens is little, since that is where the time goes:
forward divides results and not weights, and keeps the logarithm of what it divided by; backward needs no maximum and no sum
over keys then. Gradients are written where the projection's backward reads them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

# Up to so many tokens and so wide heads: queries at a time and warps, forward and backward. Looked up at every call, so that a
# script may try others.
PLANS: tuple[tuple[int, int, tuple[int, int], tuple[int, int]], ...] = (
    (16, 64, (16, 1), (16, 2)),
    (32, 64, (16, 1), (32, 2)),
    (64, 64, (64, 4), (64, 4)),
    (128, 32, (16, 1), (16, 1)),
    (128, 64, (64, 4), (64, 4)),
    (272, 32, (64, 4), (16, 4)),  # 256, and what they leave over in the smallest tile
    (272, 64, (64, 4), (32, 8)),
)
FEW = tl.constexpr(128)  # keys of a tile up to which queries are the rows of the scores on the way back
LOG2E = tl.constexpr(1.4426950408889634)

# fmt: off


@triton.jit
def rows(start, token, stride: tl.constexpr, tokens: tl.constexpr, width: tl.constexpr, tile_width: tl.constexpr):
    """Where the tokens' part of one head lies, and what of it is there."""
    column = tl.arange(0, tile_width)[None, :]
    return start + token[:, None] * stride + column, (token[:, None] < tokens) & (column < width)


@triton.jit
def seen_scores(raw, scale, query, key, tokens: tl.constexpr, hides: tl.constexpr, ragged: tl.constexpr):
    """Scores as powers of two; -inf for keys that are not there or not seen."""
    scores = raw * scale
    if ragged:
        scores = tl.where((key < tokens)[None, :], scores, float("-inf"))
    if hides:
        scores = tl.where(key[None, :] != query[:, None], scores, float("-inf"))
    return scores


@triton.jit
def forward_tile(qkv, out, levels, query, k, v, rest_k, rest_v, scale, tokens: tl.constexpr, inner: tl.constexpr,
    width: tl.constexpr, hides: tl.constexpr, tile_keys: tl.constexpr, tile_rest: tl.constexpr, tile_width: tl.constexpr):
    """Some queries of one head. Pointers are at the head's first number of the first token."""
    place, there = rows(qkv, query, 3 * inner, tokens, width, tile_width)
    q = tl.load(place, mask=there, other=0.0)
    key = tl.arange(0, tile_keys)
    scores = seen_scores(tl.dot(q, tl.trans(k)), scale, query, key, tokens, hides, tokens < tile_keys)
    top = tl.max(scores, 1)
    if tile_rest:
        rest_key = tile_keys + tl.arange(0, tile_rest)
        rest_scores = seen_scores(tl.dot(q, tl.trans(rest_k)), scale, query, rest_key, tokens, hides, True)
        top = tl.maximum(top, tl.max(rest_scores, 1))
    weights = tl.exp2(scores - top[:, None])
    total = tl.sum(weights, 1)
    y = tl.dot(weights.to(k.dtype), v)
    if tile_rest:
        rest_weights = tl.exp2(rest_scores - top[:, None])
        total += tl.sum(rest_weights, 1)
        y = tl.dot(rest_weights.to(k.dtype), rest_v, y)
    place, there = rows(out, query, inner, tokens, width, tile_width)
    tl.store(place, (y / total[:, None]).to(k.dtype), mask=there)
    tl.store(levels + query, top + tl.log2(total), mask=query < tokens)


@triton.jit
def forward_kernel(qkv, scales, out, levels, tokens: tl.constexpr, heads: tl.constexpr, width: tl.constexpr,
    hides: tl.constexpr, tile_keys: tl.constexpr, tile_rest: tl.constexpr, tile_queries: tl.constexpr,
    tile_last: tl.constexpr, tile_width: tl.constexpr):
    inner: tl.constexpr = heads * width
    one = tl.program_id(0).to(tl.int64)
    sample, head = one // heads, one % heads
    qkv += sample * (tokens * 3 * inner) + head * width
    out += sample * (tokens * inner) + head * width
    levels += one * tokens
    scale = tl.load(scales + head) * LOG2E
    place, there = rows(qkv + inner, tl.arange(0, tile_keys), 3 * inner, tokens, width, tile_width)
    k, v = tl.load(place, mask=there, other=0.0), tl.load(place + inner, mask=there, other=0.0)
    rest_k, rest_v = k, v
    if tile_rest:
        place, there = rows(qkv + inner, tile_keys + tl.arange(0, tile_rest), 3 * inner, tokens, width, tile_width)
        rest_k, rest_v = tl.load(place, mask=there, other=0.0), tl.load(place + inner, mask=there, other=0.0)
    whole: tl.constexpr = tokens // tile_queries * tile_queries
    for first in range(0, whole, tile_queries):
        query = first + tl.arange(0, tile_queries)
        forward_tile(qkv, out, levels, query, k, v, rest_k, rest_v, scale, tokens, inner, width, hides, tile_keys, tile_rest,
            tile_width)
    if whole < tokens:
        query = whole + tl.arange(0, tile_last)
        forward_tile(qkv, out, levels, query, k, v, rest_k, rest_v, scale, tokens, inner, width, hides, tile_keys, tile_rest,
            tile_width)


@triton.jit
def towards(q, grad, k, v, grad_k, grad_v, grad_q, share, level, scale, query, key, tokens: tl.constexpr,
    hides: tl.constexpr, ragged: tl.constexpr):
    """The gradients of q, k and v with what passes between these queries and keys; those of q and k not scaled.

    A key that is not there has a score of 0, which may be infinitely more than those that are: its weight has to be put to 0.
    """
    weights = tl.exp2(tl.dot(q, tl.trans(k)) * scale - level[:, None])
    if ragged:
        weights = tl.where((key < tokens)[None, :], weights, 0.0)
    if hides:
        weights = tl.where(key[None, :] != query[:, None], weights, 0.0)
    grad_v = tl.dot(tl.trans(weights.to(k.dtype)), grad, grad_v)
    grad_scores = (weights * (tl.dot(grad, tl.trans(v)) - share[:, None])).to(k.dtype)
    return tl.dot(tl.trans(grad_scores), q, grad_k), grad_v, tl.dot(grad_scores, k, grad_q)


@triton.jit
def towards_many(q, grad, k, v, grad_k, grad_v, grad_q, share, level, scale, query, key, tokens: tl.constexpr,
    hides: tl.constexpr, ragged: tl.constexpr):
    """As `towards`, with keys as the rows of the scores.

    Many keys leave registers for few queries only. So turned, all but the last product have enough rows for the tensor cores'
    large tiles, and weights stay in registers on their way into the sums of k and v.
    """
    weights = tl.exp2(tl.dot(k, tl.trans(q)) * scale - level[None, :])
    if ragged:
        weights = tl.where((key < tokens)[:, None], weights, 0.0)
    if hides:
        weights = tl.where(key[:, None] != query[None, :], weights, 0.0)
    grad_v = tl.dot(weights.to(k.dtype), grad, grad_v)
    grad_scores = (weights * (tl.dot(v, tl.trans(grad)) - share[None, :])).to(k.dtype)
    return tl.dot(grad_scores, q, grad_k), grad_v, tl.dot(tl.trans(grad_scores), k, grad_q)


@triton.jit
def backward_tile(qkv, y, levels, grad_y, grad_qkv, query, k, v, rest_k, rest_v, grad_k, grad_v, rest_grad_k, rest_grad_v,
    grad_factor, factor, tokens: tl.constexpr, inner: tl.constexpr, width: tl.constexpr, hides: tl.constexpr,
    learned: tl.constexpr, tile_keys: tl.constexpr, tile_rest: tl.constexpr, tile_width: tl.constexpr):
    place, there = rows(qkv, query, 3 * inner, tokens, width, tile_width)
    q = tl.load(place, mask=there, other=0.0)
    place, there_y = rows(grad_y, query, inner, tokens, width, tile_width)
    grad = tl.load(place, mask=there_y, other=0.0)
    place, there_y = rows(y, query, inner, tokens, width, tile_width)
    share = tl.sum(grad.to(tl.float32) * tl.load(place, mask=there_y, other=0.0).to(tl.float32), 1)
    level = tl.load(levels + query, mask=query < tokens, other=0.0)
    grad_q = tl.zeros(q.shape, tl.float32)
    key, scale = tl.arange(0, tile_keys), factor * LOG2E
    if tile_keys > FEW:
        grad_k, grad_v, grad_q = towards_many(q, grad, k, v, grad_k, grad_v, grad_q, share, level, scale, query, key,
            tokens, hides, tokens < tile_keys)
    else:
        grad_k, grad_v, grad_q = towards(q, grad, k, v, grad_k, grad_v, grad_q, share, level, scale, query, key,
            tokens, hides, tokens < tile_keys)
    if tile_rest:
        key = tile_keys + tl.arange(0, tile_rest)
        rest_grad_k, rest_grad_v, grad_q = towards(
            q, grad, rest_k, rest_v, rest_grad_k, rest_grad_v, grad_q, share, level, scale, query, key,
            tokens, hides, tokens < tile_keys + tile_rest)
    if learned:
        grad_factor += tl.sum(tl.sum(q.to(tl.float32) * grad_q, 1), 0)
    place, there = rows(grad_qkv, query, 3 * inner, tokens, width, tile_width)
    tl.store(place, (grad_q * factor).to(k.dtype), mask=there)
    return grad_k, grad_v, rest_grad_k, rest_grad_v, grad_factor


@triton.jit
def backward_kernel(qkv, scales, y, levels, grad_y, grad_qkv, grad_scales, tokens: tl.constexpr, heads: tl.constexpr,
    width: tl.constexpr, hides: tl.constexpr, learned: tl.constexpr, tile_keys: tl.constexpr, tile_rest: tl.constexpr,
    tile_queries: tl.constexpr, tile_last: tl.constexpr, tile_width: tl.constexpr):
    inner: tl.constexpr = heads * width
    one = tl.program_id(0).to(tl.int64)
    sample, head = one // heads, one % heads
    start, start3 = sample * (tokens * inner) + head * width, sample * (tokens * 3 * inner) + head * width
    qkv, y, grad_y, grad_qkv, levels = qkv + start3, y + start, grad_y + start, grad_qkv + start3, levels + one * tokens
    factor, grad_factor = tl.load(scales + head), 0.0
    place, there = rows(qkv + inner, tl.arange(0, tile_keys), 3 * inner, tokens, width, tile_width)
    k, v = tl.load(place, mask=there, other=0.0), tl.load(place + inner, mask=there, other=0.0)
    grad_k, grad_v = tl.zeros((tile_keys, tile_width), tl.float32), tl.zeros((tile_keys, tile_width), tl.float32)
    rest_k, rest_v, rest_grad_k, rest_grad_v = k, v, grad_factor, grad_factor
    if tile_rest:
        place, there = rows(qkv + inner, tile_keys + tl.arange(0, tile_rest), 3 * inner, tokens, width, tile_width)
        rest_k, rest_v = tl.load(place, mask=there, other=0.0), tl.load(place + inner, mask=there, other=0.0)
        rest_grad_k, rest_grad_v = tl.zeros((tile_rest, tile_width), tl.float32), tl.zeros((tile_rest, tile_width), tl.float32)
    whole: tl.constexpr = tokens // tile_queries * tile_queries
    for first in range(0, whole, tile_queries):
        query = first + tl.arange(0, tile_queries)
        grad_k, grad_v, rest_grad_k, rest_grad_v, grad_factor = backward_tile(qkv, y, levels, grad_y, grad_qkv, query,
            k, v, rest_k, rest_v, grad_k, grad_v, rest_grad_k, rest_grad_v, grad_factor,
            factor, tokens, inner, width, hides, learned, tile_keys, tile_rest, tile_width)
    if whole < tokens:
        query = whole + tl.arange(0, tile_last)
        grad_k, grad_v, rest_grad_k, rest_grad_v, grad_factor = backward_tile(qkv, y, levels, grad_y, grad_qkv, query,
            k, v, rest_k, rest_v, grad_k, grad_v, rest_grad_k, rest_grad_v, grad_factor,
            factor, tokens, inner, width, hides, learned, tile_keys, tile_rest, tile_width)
    kind = qkv.dtype.element_ty
    place, there = rows(grad_qkv + inner, tl.arange(0, tile_keys), 3 * inner, tokens, width, tile_width)
    tl.store(place, (grad_k * factor).to(kind), mask=there)
    tl.store(place + inner, grad_v.to(kind), mask=there)
    if tile_rest:
        place, there = rows(grad_qkv + inner, tile_keys + tl.arange(0, tile_rest), 3 * inner, tokens, width, tile_width)
        tl.store(place, tl.cast(rest_grad_k * factor, kind), mask=there)
        tl.store(place + inner, tl.cast(rest_grad_v, kind), mask=there)
    if learned:
        tl.store(grad_scales + one, grad_factor)


# fmt: on


def plan(tokens: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(queries at a time, warps), forward and backward."""
    return next((forward, backward) for most, wide, forward, backward in PLANS if tokens <= most and width <= wide)


def least(count: int) -> int:
    """The smallest tile for so many that the tensor cores multiply: a power of two."""
    return max(16, triton.next_power_of_2(count))


def tiles(tokens: int, width: int, queries: int) -> tuple[int, int, int, int, int]:
    """Keys in one tile and the rest in another (0: none), queries at a time and in the last tile, and the width of all."""
    keys = least(tokens)
    half = keys // 2
    rest = least(tokens - half) if half >= 16 and least(tokens - half) < half else 0
    return half if rest else keys, rest, queries, min(least(tokens % queries), queries), least(width)


@triton_op("frugalvit::short_attention", mutates_args={})
def short_attention(qkv: Tensor, scale: Tensor, hides: bool) -> tuple[Tensor, Tensor]:
    """y_GND of qkv_GNE (E: all of q, then k, then v) and a scale for each head, and levels_GHN: log2 of what it divided by.

    `hides`: no token sees itself.
    """
    qkv = qkv.contiguous()
    groups, tokens, all_widths = qkv.shape
    heads = len(scale)
    width = all_widths // 3 // heads
    out = qkv.new_empty(groups, tokens, heads * width)
    levels = torch.empty(groups, heads, tokens, device=qkv.device, dtype=torch.float32)
    (queries, warps), _ = plan(tokens, width)
    wrap_triton(forward_kernel)[(groups * heads,)](
        qkv, scale, out, levels, tokens, heads, width, hides, *tiles(tokens, width, queries), num_warps=warps
    )
    return out, levels


@triton_op("frugalvit::short_attention_backward", mutates_args={})
def short_attention_backward(
    qkv: Tensor, scale: Tensor, y: Tensor, levels: Tensor, grad_y: Tensor, hides: bool, learned: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of qkv_GNE and, where it is learned, of the scale for each sample: [G, H]."""
    qkv, y, grad_y = qkv.contiguous(), y.contiguous(), grad_y.contiguous()
    groups, tokens, all_widths = qkv.shape
    heads = len(scale)
    width = all_widths // 3 // heads
    grad_qkv = torch.empty_like(qkv)
    grad_scale = torch.empty((groups, heads) if learned else (0, heads), device=qkv.device, dtype=torch.float32)
    _, (queries, warps) = plan(tokens, width)
    wrap_triton(backward_kernel)[(groups * heads,)](
        qkv, scale, y, levels, grad_y, grad_qkv, grad_scale, tokens, heads, width, hides, learned,
        *tiles(tokens, width, queries), num_warps=warps,
    )  # fmt: skip
    return grad_qkv, grad_scale


class ShortAttention(torch.autograd.Function):
    """y_GND of qkv_GNE and a scale for each head."""

    @staticmethod
    def forward(ctx, qkv_GNE: Tensor, scale_H: Tensor, hides: bool) -> Tensor:
        y_GND, levels_GHN = short_attention(qkv_GNE, scale_H, hides)
        ctx.save_for_backward(qkv_GNE, scale_H, y_GND, levels_GHN)
        ctx.hides = hides
        return y_GND

    @staticmethod
    def backward(ctx, grad_GND: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        scale_H, learned = ctx.saved_tensors[1], ctx.needs_input_grad[1]
        grad_qkv_GNE, grad_GH = short_attention_backward(*ctx.saved_tensors, grad_GND, ctx.hides, learned)
        return grad_qkv_GNE, grad_GH.sum(0).to(scale_H.dtype) if learned else None, None
