"""AdamW, its average and the norm of all gradients, each one kernel over all parameters, on CUDA.

The libraries' kernels take pieces of 65,536 numbers: a model of 3 M parameters keeps a fifth of a large GPU busy. Here pieces
are small, and where each lies is read from a table, so that one launch takes all. The definition is torch's AdamW.
"""

from __future__ import annotations

import triton
import triton.language as tl

PIECE, WARPS = 1024, 4  # numbers that one program changes
COLUMNS = 7  # of the table, addresses: weight, gradient, both moments, average (0: none), step, rate


@triton.jit
def squares_kernel(table, piece_tensor, piece_first, counts, sums, columns: tl.constexpr, piece: tl.constexpr):
    """The sum of squares of a piece's gradient."""
    tensor = tl.load(piece_tensor + tl.program_id(0)).to(tl.int64)
    place = tl.load(piece_first + tl.program_id(0)) + tl.arange(0, piece)
    gradient = tl.load(table + tensor * columns + 1).to(tl.pointer_type(tl.float32))
    g = tl.load(gradient + place, mask=place < tl.load(counts + tensor), other=0.0)
    tl.store(sums + tl.program_id(0), tl.sum(g * g, 0))


@triton.jit
def adamw_kernel(
    table, piece_tensor, piece_first, counts, decays, skips, shorten, share,
    log_beta1, log_beta2, beta1, beta2, eps,
    columns: tl.constexpr, piece: tl.constexpr,
):  # fmt: skip
    """A piece's update; nothing where `skips` is not 0. Steps are counted already; logarithms of betas are fp64's."""
    if tl.load(skips) == 0.0:
        tensor = tl.load(piece_tensor + tl.program_id(0)).to(tl.int64)
        row = table + tensor * columns
        weight = tl.load(row).to(tl.pointer_type(tl.float32))
        gradient = tl.load(row + 1).to(tl.pointer_type(tl.float32))
        moment1 = tl.load(row + 2).to(tl.pointer_type(tl.float32))
        moment2 = tl.load(row + 3).to(tl.pointer_type(tl.float32))
        averaged = tl.load(row + 4)
        step = tl.load(tl.load(row + 5).to(tl.pointer_type(tl.float32))).to(tl.float64)
        rate = tl.load(tl.load(row + 6).to(tl.pointer_type(tl.float32)))
        size = (rate / (1.0 - tl.exp(step * tl.load(log_beta1)))).to(tl.float32)
        root = tl.sqrt(1.0 - tl.exp(step * tl.load(log_beta2))).to(tl.float32)
        place = tl.load(piece_first + tl.program_id(0)) + tl.arange(0, piece)
        there = place < tl.load(counts + tensor)
        w = tl.load(weight + place, mask=there)
        g = tl.load(gradient + place, mask=there) * tl.load(shorten)
        m = tl.load(moment1 + place, mask=there)
        v = tl.load(moment2 + place, mask=there)
        w -= rate * tl.load(decays + tensor) * w
        m = g + beta1 * (m - g)
        v = g * g + beta2 * (v - g * g)
        w -= size * m / (tl.sqrt(v) / root + eps)
        tl.store(weight + place, w, mask=there)
        tl.store(moment1 + place, m, mask=there)
        tl.store(moment2 + place, v, mask=there)
        if averaged != 0:
            mean = averaged.to(tl.pointer_type(tl.float32)) + place
            a = tl.load(mean, mask=there)
            tl.store(mean, a + (w - a) * tl.load(share), mask=there)
