"""Attention over few tokens in one pass, on CUDA: from qkv to y, with LSA's scale and mask. The definition is
`MultiHead.explained`.

The fused kernels of the libraries are made for long sequences and wide heads: over 65 tokens with heads of 16 they spend most
of their time on padding. Here a program holds all keys of one head of one sample; backward computes the softmax anew, so that
nothing is kept, and gradients are written where the projection's backward reads them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

PLANS = (  # up to so many tokens: queries at a time and warps, forward and backward, as measured on an H200
    (16, (16, 2), (16, 2)),
    (64, (64, 2), (64, 4)),
    (128, (32, 2), (32, 2)),
    (256, (64, 4), (32, 8)),
)
LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def rows(
    start,
    token,
    heads: tl.constexpr,
    width: tl.constexpr,
    tokens: tl.constexpr,
    tile_width: tl.constexpr,
    strides: tl.constexpr,
):
    """Where the tokens' part of one head lies, and what of it is there."""
    column = tl.arange(0, tile_width)[None, :]
    place = start + token[:, None] * (strides * heads * width) + column
    return place, (token[:, None] < tokens) & (column < width)


@triton.jit
def softmax(raw, factor, query, key, tokens: tl.constexpr, hides: tl.constexpr):
    """Rows of softmax(factor · raw) over the keys that are there; a query sees itself unless `hides`."""
    seen = (key < tokens)[None, :]
    if hides:
        seen = seen & (key[None, :] != query[:, None])
    scores = tl.where(seen, raw * (factor * LOG2E), float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@triton.jit
def forward_kernel(
    qkv,
    scale,
    out,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    hides: tl.constexpr,
    tile_keys: tl.constexpr,
    tile_queries: tl.constexpr,
    tile_width: tl.constexpr,
):
    kind = qkv.dtype.element_ty
    sample, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    start = sample * (tokens * 3 * heads * width) + head * width
    key = tl.arange(0, tile_keys)
    place_k, there_k = rows(start, key, heads, width, tokens, tile_width, 3)
    k = tl.load(qkv + place_k + heads * width, mask=there_k, other=0.0)
    v = tl.load(qkv + place_k + 2 * heads * width, mask=there_k, other=0.0)
    factor = tl.load(scale + head)
    for first in range(0, tokens, tile_queries):
        query = first + tl.arange(0, tile_queries)
        place, there = rows(start, query, heads, width, tokens, tile_width, 3)
        q = tl.load(qkv + place, mask=there, other=0.0)
        weights = softmax(tl.dot(q, tl.trans(k)), factor, query, key, tokens, hides)
        y = tl.dot(weights.to(kind), v)
        place_y, there_y = rows(sample * (tokens * heads * width) + head * width, query, heads, width, tokens, tile_width, 1)
        tl.store(out + place_y, y.to(kind), mask=there_y)


@triton.jit
def backward_kernel(
    qkv,
    scale,
    grad_out,
    grad_qkv,
    grad_scale,
    tokens: tl.constexpr,
    heads: tl.constexpr,
    width: tl.constexpr,
    hides: tl.constexpr,
    tile_keys: tl.constexpr,
    tile_queries: tl.constexpr,
    tile_width: tl.constexpr,
):
    kind = qkv.dtype.element_ty
    sample, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    start = sample * (tokens * 3 * heads * width) + head * width
    key = tl.arange(0, tile_keys)
    place_k, there_k = rows(start, key, heads, width, tokens, tile_width, 3)
    k = tl.load(qkv + place_k + heads * width, mask=there_k, other=0.0)
    v = tl.load(qkv + place_k + 2 * heads * width, mask=there_k, other=0.0)
    factor = tl.load(scale + head)
    grad_k, grad_v = tl.zeros((tile_keys, tile_width), tl.float32), tl.zeros((tile_keys, tile_width), tl.float32)
    grad_factor = tl.zeros((tile_queries,), tl.float32)
    for first in range(0, tokens, tile_queries):
        query = first + tl.arange(0, tile_queries)
        place, there = rows(start, query, heads, width, tokens, tile_width, 3)
        q = tl.load(qkv + place, mask=there, other=0.0)
        place_y, there_y = rows(sample * (tokens * heads * width) + head * width, query, heads, width, tokens, tile_width, 1)
        grad_y = tl.load(grad_out + place_y, mask=there_y, other=0.0)
        raw = tl.dot(q, tl.trans(k))
        weights = softmax(raw, factor, query, key, tokens, hides)
        grad_v += tl.dot(tl.trans(weights.to(kind)), grad_y)
        grad_weights = tl.dot(grad_y, tl.trans(v))
        grad_scores = weights * (grad_weights - tl.sum(weights * grad_weights, 1)[:, None])
        grad_factor += tl.sum(grad_scores * raw, 1)
        grad_raw = (grad_scores * factor).to(kind)
        grad_k += tl.dot(tl.trans(grad_raw), q)
        tl.store(grad_qkv + place, tl.dot(grad_raw, k).to(kind), mask=there)
    tl.store(grad_qkv + place_k + heads * width, grad_k.to(kind), mask=there_k)
    tl.store(grad_qkv + place_k + 2 * heads * width, grad_v.to(kind), mask=there_k)
    tl.store(grad_scale + tl.program_id(0), tl.sum(grad_factor, 0))


def plan(tokens: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """(queries at a time, warps), forward and backward."""
    return next((forward, backward) for most, forward, backward in PLANS if tokens <= most)


def tile(tokens: int, width: int) -> tuple[int, int]:
    """Keys and width of a tile: powers of two that the tensor cores multiply."""
    return triton.next_power_of_2(max(tokens, 16)), triton.next_power_of_2(max(width, 16))


@triton_op("frugalvit::short_attention", mutates_args={})
def short_attention(qkv: Tensor, scale: Tensor, hides: bool) -> Tensor:
    """y_GND of qkv_GNE (E: all of q, then k, then v) and a scale for each head. `hides`: no token sees itself."""
    qkv = qkv.contiguous()
    groups, tokens, all_widths = qkv.shape
    heads = len(scale)
    width = all_widths // 3 // heads
    out = qkv.new_empty(groups, tokens, heads * width)
    (queries, warps), _ = plan(tokens)
    keys, wide = tile(tokens, width)
    wrap_triton(forward_kernel)[(groups * heads,)](
        qkv, scale, out, tokens, heads, width, hides, keys, queries, wide, num_warps=warps
    )
    return out


@triton_op("frugalvit::short_attention_backward", mutates_args={})
def short_attention_backward(qkv: Tensor, scale: Tensor, grad_out: Tensor, hides: bool) -> tuple[Tensor, Tensor]:
    """The gradients of qkv_GNE and, for each sample, of the scales: [G, H]."""
    qkv, grad_out = qkv.contiguous(), grad_out.contiguous()
    groups, tokens, all_widths = qkv.shape
    heads = len(scale)
    width = all_widths // 3 // heads
    grad_qkv = torch.empty_like(qkv)
    grad_scale = torch.empty(groups, heads, device=qkv.device, dtype=torch.float32)
    _, (queries, warps) = plan(tokens)
    keys, wide = tile(tokens, width)
    wrap_triton(backward_kernel)[(groups * heads,)](
        qkv, scale, grad_out, grad_qkv, grad_scale, tokens, heads, width, hides, keys, queries, wide, num_warps=warps
    )
    return grad_qkv, grad_scale


def remember(ctx, inputs, output) -> None:
    qkv, scale, hides = inputs
    ctx.save_for_backward(qkv, scale)
    ctx.hides = hides


def backward(ctx, grad_out: Tensor) -> tuple[Tensor | None, ...]:
    qkv, scale = ctx.saved_tensors
    grad_qkv, grad_scale = short_attention_backward(qkv, scale, grad_out, ctx.hides)
    return grad_qkv, grad_scale.sum(0).to(scale.dtype) if ctx.needs_input_grad[1] else None, None


short_attention.register_autograd(backward, setup_context=remember)
