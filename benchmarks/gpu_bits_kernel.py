"""The kernel of gpu_bits.py, in a file of its own since Triton is not everywhere."""

import triton
import triton.language as tl

TILE = 64  # rows and outputs of a program: 32 sums a thread, and so bound by popcounts, 16 a clock and multiprocessor

# fmt: off


@triton.jit
def differing_signs(x, weight, y, rows, outputs, words: tl.constexpr, tile: tl.constexpr):
    """y = 32 words - 2 popcount(x ^ weight), for a tile; both sides have words first."""
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    output = tl.program_id(1) * tile + tl.arange(0, tile)
    differ = tl.zeros((tile, tile), dtype=tl.int32)
    for word in range(words):
        mine = tl.load(x + word * rows + row, mask=row < rows, other=0)
        theirs = tl.load(weight + word * outputs + output, mask=output < outputs, other=0)
        both = mine[:, None] ^ theirs[None, :]
        differ += tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [both], dtype=tl.int32, is_pure=True, pack=1)
    there = (row < rows)[:, None] & (output < outputs)[None, :]
    tl.store(y + row[:, None].to(tl.int64) * outputs + output[None, :], (32 * words - 2 * differ).to(tl.int16), mask=there)
