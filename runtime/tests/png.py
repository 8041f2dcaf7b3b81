"""Compares PNG decoding with Pillow, byte for byte: python png.py TEST_JPEG. Skipped without Pillow.

python png.py write FOLDER writes some small pictures, for which Pillow is not needed.
"""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # by PNG's number of a kind of color
GRAY, PALETTE = 0, 3
KINDS = [*((color, bits) for color in (GRAY, PALETTE) for bits in (1, 2, 4, 8)), (2, 8), (4, 8), (6, 8)]
SIZES = [(1, 1), (1, 2), (2, 3), (3, 5), (5, 7), (4, 8), (7, 9), (3, 15), (2, 16), (5, 17), (9, 31), (40, 33), (6, 129)]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@dataclass(frozen=True)
class Png:
    """A picture of random numbers, each row by a random filter, in some pieces."""

    height: int
    width: int
    color: int
    bits: int
    transparent: bool = False
    interlaced: bool = False

    @property
    def line(self) -> int:
        return -(-self.width * CHANNELS[self.color] * self.bits // 8)

    def rows(self, generator: np.random.Generator, colors: int) -> bytes:
        """Numbers below `colors`, or of any bits; the bits behind a row's end are random too."""
        if self.color != PALETTE:
            smooth = generator.integers(0, 2)
            values = generator.integers(0, 256, (self.height, self.line), dtype=np.uint8)
            return (np.cumsum(values // 64, axis=1, dtype=np.uint8) if smooth else values).tobytes()
        places = self.line * 8 // self.bits
        index = generator.integers(0, colors, (self.height, places), dtype=np.uint8)
        bits = np.unpackbits(index[..., None], axis=2)[..., 8 - self.bits :]
        return np.packbits(bits.reshape(self.height, -1), axis=1).tobytes()

    def filtered(self, rows: bytes, generator: np.random.Generator) -> bytes:
        """Each row as what it adds to a prediction from its left and the row above."""
        far = max(1, CHANNELS[self.color] * self.bits // 8)
        out, above = b"", np.zeros(self.line + far, dtype=int)
        for start in range(0, len(rows), self.line):
            now = np.concatenate([np.zeros(far, dtype=int), np.frombuffer(rows, np.uint8, self.line, start)])
            left, up, corner = now[:-far], above[far:], above[:-far]
            kind = int(generator.integers(0, 5))
            estimate = left + up - corner
            near = [np.abs(estimate - one) for one in (left, up, corner)]
            paeth = np.where((near[0] <= near[1]) & (near[0] <= near[2]), left, np.where(near[1] <= near[2], up, corner))
            guess = (0 * left, left, up, (left + up) // 2, paeth)[kind]
            out += bytes([kind]) + (now[far:] - guess).astype(np.uint8).tobytes()
            above = now
        return out

    def encode(self, generator: np.random.Generator) -> bytes:
        colors = int(generator.integers(1, 2**self.bits + 1))
        header = struct.pack(">IIBBBBB", self.width, self.height, self.bits, self.color, 0, 0, self.interlaced)
        parts = [chunk(b"IHDR", header)]
        if self.color == PALETTE:
            parts.append(chunk(b"PLTE", generator.bytes(3 * colors)))
        if self.transparent:
            size = {GRAY: 2, 2: 6, PALETTE: colors}[self.color]
            parts.append(chunk(b"tRNS", bytes(size) if self.color != PALETTE else generator.bytes(size)))
        packed = zlib.compress(self.filtered(self.rows(generator, colors), generator), int(generator.integers(0, 10)))
        step = int(generator.integers(1, len(packed) + 1))
        parts += [chunk(b"IDAT", packed[start : start + step]) for start in range(0, len(packed), step)]
        return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def pictures(generator: np.random.Generator) -> Iterator[tuple[Png, bytes]]:
    for height, width in SIZES:
        for color, bits in KINDS:
            for transparent in (False, True) if color in (GRAY, 2, PALETTE) else (False,):
                for _ in range(3):
                    picture = Png(height, width, color, bits, transparent)
                    yield picture, picture.encode(generator)


def expected(data: bytes) -> tuple[tuple[int, int, int], bytes]:
    """Height, width, channels and pixels as frugalvit.data.preprocess has them, gray where the file is."""
    from PIL import Image

    picture = Image.open(io.BytesIO(data))
    picture = picture.convert("RGBA") if picture.mode == "P" and "transparency" in picture.info else picture
    picture = picture.convert("L" if picture.mode in ("1", "L", "LA") else "RGB")
    return (picture.height, picture.width, len(picture.getbands())), picture.tobytes()


def compare(program: str) -> None:
    from jpeg import decoded  # leaves where there is no Pillow

    generator = np.random.default_rng(0)
    cases = list(pictures(generator))
    for (picture, data), (shape, pixels) in zip(cases, decoded(program, [data for _, data in cases]), strict=True):
        expected_shape, expected_pixels = expected(data)
        assert shape == expected_shape, f"{picture}: {shape}, but Pillow has {expected_shape}"
        assert pixels == expected_pixels, f"{picture}: not the bytes that Pillow has"
    kinds = [(GRAY, 16), (2, 16), (2, 4), (6, 1), (GRAY, 3)]
    refused = [*(Png(4, 4, color, bits) for color, bits in kinds), Png(9, 9, 2, 8, interlaced=True)]
    for picture, (shape, _) in zip(refused, decoded(program, [one.encode(generator) for one in refused]), strict=True):
        assert shape == (0, 0, 0), f"{picture}: accepted"
    print(f"{len(cases)} pictures, the same bytes as Pillow's; {len(refused)} of other kinds, refused")


def write(folder: Path) -> None:
    generator = np.random.default_rng(0)
    for color, bits in KINDS:
        (folder / f"color{color}_{bits}.png").write_bytes(Png(6, 11, color, bits).encode(generator))


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        compare(sys.argv[1])
