"""Random numbers as functions of where they are used: Philox-4x32-10 (Salmon et al. 2011) on a key that lives on the device.

The key (seed, step) is a tensor, so a CUDA graph reads it anew at every replay. Integers are held in int64 and never leave it,
so the bits are the same on every device, compiled or not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

ROUNDS = 10
FACTORS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the two key words grow by from round to round
WORD = 0xFFFFFFFF

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def uniform(key: Tensor, stream: int, shape: Sequence[int]) -> Tensor:
    """float32 in [0, 1), multiples of 2⁻²⁴. `key` is int64 (seed, step); two streams of one key share nothing.

    A number depends on its place in reading order alone: more rows leave the first ones as they are.
    """
    return placed([fraction(word_N) for word_N in words(key, stream, shape)], shape)


def normal(key: Tensor, stream: int, shape: Sequence[int]) -> Tensor:
    """float32 ~ N(0, 1), within ±5.8 (Box & Muller 1958). Between devices the last bits may differ, as logarithms do."""
    a_N, b_N, c_N, d_N = (fraction(word_N) for word_N in words(key, stream, shape))
    pairs = [(radius(one_N), 2.0 * math.pi * other_N) for one_N, other_N in ((a_N, b_N), (c_N, d_N))]
    return placed([far_N * turned for far_N, angle_N in pairs for turned in (angle_N.cos(), angle_N.sin())], shape)


def radius(draw: Tensor) -> Tensor:
    """√(−2 ln(1 − u)): 1 − u is never 0."""
    return (-2.0 * torch.log1p(-draw)).sqrt()


def whole(draw: Tensor, count: int) -> Tensor:
    """0 to count − 1 alike, of a draw in [0, 1). Doubles, in which the product is exact and stays below `count`."""
    return (draw.double() * count).to(torch.int64)


def signs(draw: Tensor) -> Tensor:
    """−1 or 1 alike, of a draw in [0, 1)."""
    return 2 * whole(draw, 2) - 1


def words(key: Tensor, stream: int, shape: Sequence[int]) -> Words:
    """Four times 32 random bits for every four numbers of `shape`: counters (block, stream, step), keyed by the seed."""
    seed, step = key.unbind(0)
    block_N = torch.arange(-(-math.prod(shape) // 4), dtype=torch.int64, device=key.device)
    counter = (
        block_N,
        torch.full_like(block_N, stream),
        (step & WORD).expand_as(block_N),
        (step >> 32 & WORD).expand_as(block_N),
    )
    return philox(counter, (seed & WORD, seed >> 32 & WORD))


def philox(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """Ten rounds of products and exclusive ors (Salmon et al. 2011, sec. 3.3); all words are int64 of 0 to 2³² − 1."""
    (a, b, c, d), (low, high) = counter, key
    for _ in range(ROUNDS):
        (top_a, rest_a), (top_c, rest_c) = product(a, FACTORS[0]), product(c, FACTORS[1])
        a, b, c, d = top_c ^ b ^ low, rest_c, top_a ^ d ^ high, rest_a
        low, high = low + WEYL[0] & WORD, high + WEYL[1] & WORD
    return a, b, c, d


def product(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """The high and the low word of word · factor, by halves of 16 bits: nothing exceeds 2⁴⁹."""
    upper, lower = (word >> 16) * factor, (word & 0xFFFF) * factor
    middle = upper + (lower >> 16)
    return middle >> 16, (middle & 0xFFFF) << 16 | lower & 0xFFFF


def fraction(word: Tensor) -> Tensor:
    """The high 24 of 32 bits, as float32 in [0, 1)."""
    return (word >> 8).to(torch.float32) * 2.0**-24


def placed(number_N: list[Tensor], shape: Sequence[int]) -> Tensor:
    """Blocks of four, one after the other."""
    return torch.stack(number_N, 1).flatten()[: math.prod(shape)].reshape(tuple(shape))
