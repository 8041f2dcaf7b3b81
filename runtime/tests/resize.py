"""Compares framing and PNG decoding with Pillow, byte for byte: python resize.py TEST_PICTURE. Skipped without Pillow."""

from __future__ import annotations

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

FILTERS = {"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}


def framed(picture: Image.Image, height: int, width: int, cover: tuple[int, int], filtered: str) -> bytes:
    """As frugalvit.data.preprocess frames a picture."""
    scale = max(cover[0] / picture.height, cover[1] / picture.width)
    size = (max(cover[1], int(picture.width * scale)), max(cover[0], int(picture.height * scale)))
    picture = picture.resize(size, FILTERS[filtered])
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    return picture.crop((left, top, left + width, top + height)).tobytes()


def main(program: str) -> None:
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
                found = subprocess.run(arguments, check=True, stdout=subprocess.PIPE).stdout
                plain = picture.convert("RGB") if mode == "P" else picture
                assert found == framed(plain, height, width, cover, filtered), f"{high} x {wide} {mode} {filtered} {ending}"
    print(f"{len(cases)} sizes, the same bytes as Pillow's")


if __name__ == "__main__":
    main(sys.argv[1])
