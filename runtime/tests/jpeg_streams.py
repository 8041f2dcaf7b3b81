"""JPEG files of random coefficients with any sampling, order of scans, component names and restart interval.

python jpeg_streams.py FOLDER writes a few small ones.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jpeg_entropy import FIRST, OTHER, first_bands, huffman_table, next_bands, packed, sequential, steps

Factors = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Scan:
    """Components by their index, the band of coefficients, and the bits missing before (0: all) and after."""

    components: tuple[int, ...]
    first: int = 0
    last: int = 63
    high: int = 0
    low: int = 0


@dataclass(frozen=True)
class Stream:
    """What stands in the header; `factors` are each component's blocks across and down in a unit."""

    height: int
    width: int
    factors: Factors
    ids: tuple[int, ...] = (1, 2, 3, 4)
    jfif: bool = False
    adobe: int | None = None  # the transform
    interval: int = 0  # units between restarts
    wide_tables: bool = False  # 16 bits a quantization factor
    progressive: bool = False
    scans: tuple[Scan, ...] = ()  # all components at once

    def encode(self, generator: np.random.Generator) -> bytes:
        """The file."""
        count = len(self.factors)
        parts = [b"\xff\xd8"]
        if self.jfif:
            parts.append(segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"))
        if self.adobe is not None:
            parts.append(segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([self.adobe])))
        for number in range(2):
            factors = generator.integers(1, 5 if self.progressive else 40, 64).astype(">u2" if self.wide_tables else "u1")
            parts.append(segment(0xDB, bytes([number | self.wide_tables << 4]) + factors.tobytes()))
        components = [bytes([self.ids[i], h << 4 | v, i > 0]) for i, (h, v) in enumerate(self.factors)]
        size = self.height.to_bytes(2, "big") + self.width.to_bytes(2, "big")
        parts.append(segment(0xC2 if self.progressive else 0xC1, b"\x08" + size + bytes([count]) + b"".join(components)))
        parts += [segment(0xC4, b"\x00" + huffman_table(FIRST)), segment(0xC4, b"\x10" + huffman_table(OTHER))]
        parts.append(segment(0xDD, self.interval.to_bytes(2, "big")))
        filled = [np.zeros((self.blocks(i), 64), bool) for i in range(count)]
        for scan in self.scans or (Scan(tuple(range(count))),):
            names = b"".join(bytes([self.ids[i], 0]) for i in scan.components)
            band = bytes([scan.first, scan.last, scan.high << 4 | scan.low])
            parts.append(segment(0xDA, bytes([len(scan.components)]) + names + band))
            parts.append(self.entropy(scan, filled, generator))
        return b"".join(parts) + b"\xff\xd9"

    def blocks(self, component: int) -> int:
        """Those of a component that hold parts of the picture."""
        across, down = (max(factor[axis] for factor in self.factors) for axis in (0, 1))
        h, v = self.factors[component]
        return ceil(ceil(self.width * h, across), 8) * ceil(ceil(self.height * v, down), 8)

    def entropy(self, scan: Scan, filled: list[np.ndarray], generator: np.random.Generator) -> bytes:
        alone = len(scan.components) == 1
        across, down = (max(factor[axis] for factor in self.factors) for axis in (0, 1))
        units = self.blocks(scan.components[0]) if alone else ceil(self.width, 8 * across) * ceil(self.height, 8 * down)
        blocks = 1 if alone else sum(self.factors[i][0] * self.factors[i][1] for i in scan.components)
        step = self.interval or units
        pieces = []
        for start in range(0, units, step):
            count = min(step, units - start) * blocks
            part = filled[scan.components[0]][start : start + count]
            if not self.progressive:
                bits = sequential(count, generator)
            elif scan.first == 0:
                bits = "".join(str(bit) for bit in generator.integers(0, 2, count)) if scan.high else steps(count, generator)
            else:
                bits = (next_bands if scan.high else first_bands)(part, scan.first, scan.last, generator)
            pieces.append(packed(bits))
        return b"".join(piece + bytes([0xFF, 0xD0 + i % 8]) for i, piece in enumerate(pieces[:-1])) + pieces[-1]


def ceil(value: int, unit: int) -> int:
    return -(-value // unit)


def segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(data) + 2).to_bytes(2, "big") + data


def apart(components: int) -> tuple[Scan, ...]:
    """One component after the other."""
    return tuple(Scan((i,)) for i in range(components))


def random_scans(components: int, generator: np.random.Generator) -> tuple[Scan, ...]:
    """Progressive scans that complete every coefficient, in random bands, numbers of bits and order."""
    low, everything = int(generator.integers(0, 3)), tuple(range(components))
    queues = [[Scan(everything, 0, 0, high, high - 1) for high in range(low, 0, -1)]]
    for i in everything:
        ends = sorted({63, *generator.integers(1, 64, int(generator.integers(0, 3))).tolist()})
        for first, last in zip([1, *(end + 1 for end in ends[:-1])], ends, strict=True):
            bits = int(generator.integers(0, 4))
            refined = [Scan((i,), first, last, high, high - 1) for high in range(bits, 0, -1)]
            queues.append([Scan((i,), first, last, 0, bits), *refined])
    scans = [Scan(everything, 0, 0, 0, low)]
    while queues := [queue for queue in queues if queue]:
        scans.append(queues[int(generator.integers(0, len(queues)))].pop(0))
    return tuple(scans)


if __name__ == "__main__":
    generator = np.random.default_rng(0)
    wide, narrow = ((2, 2), (1, 1), (1, 1)), ((1, 1), (1, 1), (1, 1))
    for name, stream in {
        "gray": Stream(9, 17, ((1, 1),)),
        "color": Stream(20, 17, wide, interval=2),
        "apart": Stream(20, 17, ((2, 1), (1, 1), (1, 1)), scans=apart(3)),
        "inks": Stream(9, 9, ((1, 1),) * 4, adobe=2),
        "progressive": Stream(20, 17, wide, progressive=True, scans=random_scans(3, generator)),
        "progressive_restarts": Stream(9, 33, narrow, interval=3, progressive=True, scans=random_scans(3, generator)),
    }.items():
        (Path(sys.argv[1]) / f"{name}.jpg").write_bytes(stream.encode(generator))
