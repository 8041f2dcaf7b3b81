"""a · b + c rounded once to float32, as processors do it, from PyTorch's operations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

CACHED = 1 << 15  # numbers of which a few copies fit into a cache
TIE, LOW_BITS = 1 << 28, (1 << 29) - 1  # of the 29 bits that float64 has more than float32
LEAST_NORMAL = 2.0**-126


def fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a · b + c rounded once to float32, a few rows at a time, so that they stay in the cache."""
    whole = torch.broadcast_tensors(a, b, c)
    shape, rows = whole[0].shape, max(1, CACHED // whole[0].shape[-1])
    parts = zip(*(one.flatten(0, -2).split(rows) for one in whole), strict=True)
    return torch.cat([rounded_sum(x.double() * y.double(), z) for x, y, z in parts]).view(shape)


def rounded_sum(product: Tensor, c: Tensor) -> Tensor:
    """product + c rounded once to float32, of a product that float64 holds exactly.

    float64 rounds the sum first. That changes the result only where it makes a tie, and there (and where float32 has fewer
    bits, below its least normal number) the sum is rounded to odd: of the two neighbors the one whose last bit is 1, which
    a second rounding cannot mistake (Boldo & Melquiond 2008).
    """
    total = product + c
    doubtful = (total.view(torch.int64) & LOW_BITS) == TIE
    doubtful |= total.abs() < LEAST_NORMAL
    found = total.float()
    places = doubtful.flatten().nonzero()[:, 0]
    if len(places):
        few, a, b = (one.expand_as(total).flatten()[places].double() for one in (total, product, c))
        found.view(-1)[places] = odd(few, a, b).float()
    return found


def odd(total: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a + b rounded to odd, `total` being the nearest."""
    part = total - a
    error = (a - (total - part)) + (b - part)  # exact (Knuth)
    even = (total.view(torch.int64) & 1) == 0
    beside = torch.nextafter(total, error.sign() * math.inf)
    return torch.where((error != 0) & even, beside, total)
