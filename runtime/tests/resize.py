"""Compares framing by every kernel of this CPU, and PNG decoding, with Pillow, byte for byte: python resize.py TEST_PICTURE.

Skipped without Pillow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

try:
    from PIL import Image
except ImportError:
    print("Pillow is not installed: nothing compared")
    sys.exit(0)

# height, width and cover, where int(height * (cover / width)) or the same of the other side is one too few
SIDES_THAT_FLOATS_MISS = [(33, 55, 36), (49, 196, 64), (78, 52, 146), (98, 49, 64)]
FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def framed(picture: Image.Image, height: int, width: int, cover: tuple[int, int], filtered: str) -> bytes:
    """As frugalvit.data.preprocess frames a picture."""
    tall = cover[0] * picture.width <= cover[1] * picture.height
    wide = cover[1] if tall else cover[0] * picture.width // picture.height
    high = cover[1] * picture.height // picture.width if tall else cover[0]
    left, top = round((wide - width) / 2), round((high - height) / 2)
    strip = picture.resize((wide, picture.height), FILTERS[filtered])  # rows first, whatever Pillow would begin with
    return strip.resize((wide, high), FILTERS[filtered]).crop((left, top, left + width, top + height)).tobytes()


def main(program: str) -> None:
    kernels = subprocess.run([program, "kernels"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    assert kernels[0] == "reference", kernels
    generator = np.random.default_rng(0)
    cases = [
        (375, 500, 224, 224, (256, 256), "bicubic", "RGB"),
        (500, 333, 224, 224, (256, 256), "bilinear", "RGB"),
        (256, 256, 224, 224, (256, 256), "bicubic", "RGB"),
        (300, 256, 224, 224, (256, 256), "bicubic", "L"),
        (31, 47, 32, 32, (36, 36), "bicubic", "RGB"),
        (7, 200, 24, 16, (27, 18), "bilinear", "L"),
        (1, 1, 8, 8, (8, 8), "bicubic", "RGB"),
        (64, 64, 33, 47, (47, 65), "bicubic", "P"),
        (400, 30, 24, 24, (27, 27), "bicubic", "RGB"),
        (3, 200, 16, 16, (32, 18), "bilinear", "RGB"),
        *((high, wide, 32, 32, (side, side), "bicubic", "L") for high, wide, side in SIDES_THAT_FLOATS_MISS),
    ]
    with tempfile.TemporaryDirectory() as folder:
        for high, wide, height, width, cover, filtered, mode in cases:
            shape = (high, wide) if mode != "RGB" else (high, wide, 3)
            picture = Image.fromarray(generator.integers(0, 256, shape, dtype=np.uint8))
            if mode == "P":
                picture = picture.convert("RGB").quantize(64)
            for ending in ("png", "ppm"):
                path = Path(folder) / f"picture.{ending}"
                (picture.convert("RGB") if mode == "P" and ending == "ppm" else picture).save(path)
                arguments = [program, *map(str, (height, width, *cover)), filtered, str(path)]
                plain = picture.convert("RGB") if mode == "P" else picture
                expected = framed(plain, height, width, cover, filtered)
                for kernel in kernels:
                    environment = {**os.environ, "FRUGALVIT_KERNEL": kernel}
                    found = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, env=environment).stdout
                    assert found == expected, f"{kernel}: {high} x {wide} {mode} {filtered} {ending}"
    print(f"{len(cases)} sizes by {', '.join(kernels)}: the same bytes as Pillow's")


if __name__ == "__main__":
    main(sys.argv[1])
