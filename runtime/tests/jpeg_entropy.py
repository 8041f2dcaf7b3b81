"""The bits of random JPEG scans, as text of zeros and ones."""

from __future__ import annotations

import numpy as np

FIRST = list(range(12))  # symbols: lengths of differences
OTHER = [0x00, 0xF0, *(run << 4 | length for length in range(1, 11) for run in range(16))]  # common ones first
OTHER += [run << 4 for run in range(1, 15)]  # ends of several blocks
SHORT, LONG, COMMON = 7, 13, 60  # bits of the common codes, and of the others


def huffman_table(symbols: list[int]) -> bytes:
    """Short codes for the first symbols and long ones for the rest."""
    counts = [0] * 16
    counts[SHORT - 1], counts[LONG - 1] = min(COMMON, len(symbols)), max(0, len(symbols) - COMMON)
    return bytes(counts) + bytes(symbols)


def code(symbols: list[int], symbol: int) -> str:
    index = symbols.index(symbol)
    return f"{index:0{SHORT}b}" if index < COMMON else f"{(COMMON << LONG - SHORT) + index - COMMON:0{LONG}b}"


def number(value: int) -> str:
    """The bits of its length; of a negative number those of itself less 1."""
    length = abs(value).bit_length()
    return f"{value if value > 0 else value + (1 << length) - 1:0{length}b}" if length else ""


def packed(bits: str) -> bytes:
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big").replace(b"\xff", b"\xff\x00")


def places(first: int, last: int, generator: np.random.Generator) -> list[int]:
    """A few low places of a band, sometimes high ones."""
    spread = generator.choice([1.0, 4.0, 30.0])
    return sorted({place for place in (first + generator.exponential(spread, 4).astype(int)).tolist() if place <= last})


def value(place: int, generator: np.random.Generator) -> int:
    return int(generator.integers(1, 2 + 60 // place)) * int(generator.choice([-1, 1]))


def coefficient(zeros: int, amount: int) -> str:
    return code(OTHER, 0xF0) * (zeros // 16) + code(OTHER, zeros % 16 << 4 | abs(amount).bit_length()) + number(amount)


def steps(blocks: int, generator: np.random.Generator) -> str:
    """First coefficients, each as the difference from the one before."""
    changes = np.diff(generator.integers(-40, 41, blocks), prepend=0)
    return "".join(code(FIRST, abs(change).bit_length()) + number(change) for change in changes.tolist())


def sequential(blocks: int, generator: np.random.Generator) -> str:
    """Whole blocks."""
    bits, level = "", 0
    for _ in range(blocks):
        change = int(generator.integers(-40, 41)) - level // 2
        level += change
        bits += code(FIRST, abs(change).bit_length()) + number(change)
        before = 0
        for place in places(1, 63, generator):
            bits += coefficient(place - before - 1, value(place, generator))
            before = place
        bits += code(OTHER, 0x00) if before < 63 else ""
    return bits


def ended(left: int, generator: np.random.Generator) -> tuple[int, str]:
    """A number of blocks, this one first, that get nothing more, and its code."""
    count = int(generator.integers(1, 1 + min(left, generator.choice([1, 3, 40]))))
    run = count.bit_length() - 1
    return count, code(OTHER, run << 4) + (f"{count - (1 << run):0{run}b}" if run else "")


def first_bands(filled: np.ndarray, first: int, last: int, generator: np.random.Generator) -> str:
    """New coefficients of some blocks; marks in `filled` (a row a block) where they are."""
    bits, at = "", 0
    while at < len(filled):
        before = first - 1
        for place in places(first, last, generator):
            bits += coefficient(place - before - 1, value(place, generator))
            filled[at, place] = True
            before = place
        count, end = ended(len(filled) - at, generator) if before < last else (1, "")
        bits += end
        at += count
    return bits


def next_bands(filled: np.ndarray, first: int, last: int, generator: np.random.Generator) -> str:
    """One more bit of the coefficients that `filled` marks, and new ones."""

    def corrections(places: np.ndarray) -> str:
        return "".join(str(bit) for bit in generator.integers(0, 2, int(places.sum())))

    bits, at = "", 0
    while at < len(filled):
        row, k = filled[at], first
        for _ in range(generator.integers(0, 4)):
            zeros = np.flatnonzero(~row[k : last + 1]) + k
            if not len(zeros):
                break
            run = int(generator.integers(0, min(16, len(zeros))))
            place = int(zeros[run])
            skips = run == 15 and bool(generator.integers(0, 2))
            bits += code(OTHER, 0xF0) if skips else code(OTHER, run << 4 | 1) + str(generator.integers(0, 2))
            bits += corrections(row[k:place])
            row[place] = not skips
            k = place + 1
        count, end = ended(len(filled) - at, generator) if k <= last else (1, "")
        bits += end + corrections(row[k : last + 1])
        bits += "".join(corrections(later[first : last + 1]) for later in filled[at + 1 : at + count])
        at += count
    return bits
