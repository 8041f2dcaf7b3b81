"""Compares JPEG decoding with Pillow, byte for byte: python jpeg.py TEST_JPEG. Skipped without Pillow."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from jpeg_streams import Stream, apart, random_scans, segment

try:
    from PIL import Image, ImageFile, ImageOps
except ImportError:
    print("Pillow is not installed: nothing compared")
    sys.exit(0)

ImageFile.MAXBLOCK = 1 << 24  # else Pillow cannot write large progressive files of high quality
SIZES = [(1, 1), (1, 3), (2, 5), (9, 7), (8, 8), (16, 16), (33, 17), (5, 100), (64, 64), (65, 47)]
FACTORS = [
    ((1, 1), (1, 1), (1, 1)),  # 4:4:4
    ((2, 1), (1, 1), (1, 1)),  # 4:2:2
    ((1, 2), (1, 1), (1, 1)),  # 4:4:0
    ((2, 2), (1, 1), (1, 1)),  # 4:2:0
    ((4, 1), (1, 1), (1, 1)),  # 4:1:1
    ((4, 2), (1, 1), (1, 1)),
    ((2, 4), (1, 1), (1, 1)),
    ((1, 4), (1, 2), (1, 1)),
    ((4, 1), (2, 1), (1, 1)),
    ((3, 1), (1, 1), (3, 1)),
    ((1, 1), (2, 2), (1, 2)),
    ((2, 2), (2, 1), (1, 2)),
    ((2, 2), (2, 2), (2, 2)),
]


def photo(generator: np.random.Generator, height: int, width: int, channels: int) -> Image.Image:
    """Smooth colors, noise, and edges."""
    y, x = np.mgrid[:height, :width]
    planes = []
    for _ in range(channels):
        a, b, phase, noise = generator.uniform(0.01, 0.3, 4)
        plane = 128 + 100 * np.sin(a * x + b * y + 20 * phase) + generator.normal(0, 60 * noise, (height, width))
        plane[(x + 2 * y) // 23 % 5 == 0] = generator.integers(0, 2) * 255
        planes.append(plane)
    pixels = np.clip(np.stack(planes, axis=-1), 0, 255).astype(np.uint8)
    return Image.frombytes({1: "L", 3: "RGB", 4: "CMYK"}[channels], (width, height), pixels.tobytes())


def saved(
    picture: Image.Image,
    quality: int = 75,
    subsampling: int = 2,
    progressive: bool = False,
    optimize: bool = False,
    restart: int = 0,
    keep_rgb: bool = False,
    exif: bytes = b"",
) -> bytes:
    """By Pillow; `restart` is a number of blocks."""
    file = io.BytesIO()
    picture.save(
        file,
        "JPEG",
        quality=quality,
        subsampling=subsampling,
        progressive=progressive,
        optimize=optimize,
        restart_marker_blocks=restart,
        keep_rgb=keep_rgb,
        exif=exif,
    )
    return file.getvalue()


def tiff(orientation: int, order: str) -> bytes:
    """An EXIF block with a tag before the orientation; `order` is II or MM, from the little or the big end."""
    end = {"II": "<", "MM": ">"}[order]
    header = order.encode() + struct.pack(f"{end}HIH", 42, 8, 2)
    entries = struct.pack(f"{end}HHI4s", 0x010F, 2, 4, b"cam") + struct.pack(f"{end}HHIHH", 0x0112, 3, 1, orientation, 0)
    return b"Exif\0\0" + header + entries + bytes(4)


def of_pillow(generator: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    kinds = [
        (quality, progressive, restart) for quality in (10, 75, 95, 100) for progressive in (False, True) for restart in (0, 3)
    ]
    for height, width in [*SIZES, (427, 640)]:
        for channels in (1, 3, 4):
            picture = photo(generator, height, width, channels)
            for quality, progressive, restart in kinds if height < 427 else kinds[4:8]:
                for subsampling in (0, 1, 2) if channels == 3 else (2,):
                    name = f"{height} x {width} x {channels}, {quality=} {subsampling=} {progressive=} {restart=}"
                    yield name, saved(picture, quality, subsampling, progressive, quality == 95, restart)
        yield f"{height} x {width} RGB", saved(photo(generator, height, width, 3), 90, 0, keep_rgb=True)


def without_codes(data: bytes) -> bytes:
    """As in Motion JPEG: the standard's Huffman tables are left out."""
    at, kept = 2, data[:2]
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        kept += b"" if data[at + 1] == 0xC4 else data[at:end]
        at = end
    return kept + data[at:]


def of_streams(generator: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    for height, width in SIZES:
        for factors in FACTORS:
            interval, together = int(generator.integers(0, 4)), sum(across * down for across, down in factors) <= 10
            scans = apart(3) if not together or generator.integers(0, 4) == 0 else ()
            stream = Stream(height, width, factors, interval=interval, scans=scans, wide_tables=height == 9)
            yield str(stream), stream.encode(generator)
            if together:
                stream = replace(stream, progressive=True, scans=random_scans(3, generator))
                yield str(stream), stream.encode(generator)
    full = ((1, 1),) * 4
    for stream in [
        Stream(20, 30, ((2, 2),)),
        Stream(20, 30, full[:3], ids=(82, 71, 66)),
        Stream(20, 30, full[:3], ids=(82, 71, 66), jfif=True),
        Stream(20, 30, full[:3], ids=(82, 71, 66), adobe=1),
        Stream(20, 30, full[:3], ids=(7, 7, 7)),
        Stream(20, 30, full[:3], adobe=0),
        Stream(20, 30, full[:3], adobe=1),
        Stream(20, 30, full[:3], adobe=2),
        Stream(20, 30, full[:3], adobe=0, jfif=True),
        Stream(20, 30, full, adobe=0),
        Stream(20, 30, full, adobe=1),
        Stream(20, 30, full, adobe=2),
        Stream(20, 30, full, jfif=True),
        Stream(37, 41, ((2, 2), (1, 1), (1, 1), (2, 2)), adobe=2),
    ]:
        yield str(stream), stream.encode(generator)


def of_orientations(generator: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    picture = photo(generator, 13, 22, 3)
    plain = saved(picture)
    for orientation in range(10):
        yield f"EXIF {orientation}", saved(picture, exif=tiff(orientation, "II" if orientation % 2 else "MM"))
        xmp = b"http://ns.adobe.com/xap/1.0/\0<x:xmpmeta><rdf tiff:Orientation" + (b'="%d"' % orientation)
        yield f"XMP {orientation}", plain[:2] + segment(0xE1, xmp) + plain[2:]
        both = segment(0xE1, tiff(6, "II")) + segment(0xE1, xmp)
        yield f"EXIF 6 before XMP {orientation}", plain[:2] + both + plain[2:]
        file = io.BytesIO()
        picture.save(file, "PNG", exif=tiff(orientation, "MM"))
        yield f"PNG {orientation}", file.getvalue()
    yield "two EXIF", plain[:2] + segment(0xE1, tiff(3, "II")) + segment(0xE1, tiff(6, "II")) + plain[2:]
    yield "no Huffman tables", without_codes(plain)
    yield "bytes before a marker and behind the end", plain[:2] + segment(0xFE, b"text") + b"\xff\xff" + plain[2:] + b"more"


def expected(data: bytes) -> tuple[tuple[int, int, int], bytes]:
    """Height, width, channels and pixels, as frugalvit.data.preprocess opens a picture."""
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    picture = picture if picture.mode == "L" else picture.convert("RGB")
    return (picture.height, picture.width, len(picture.getbands())), picture.tobytes()


def decoded(program: str, files: list[bytes]) -> Iterator[tuple[tuple[int, int, int], bytes]]:
    """Height, width, channels and pixels by the program; zeros and nothing where it refuses a file."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{index}.jpg" for index in range(len(files))]
        for path, data in zip(paths, files, strict=True):
            path.write_bytes(data)
        process = subprocess.run([program, *paths], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = io.BytesIO(process.stdout)
    for _ in files:
        height, width, channels = map(int, found.readline().split())
        yield (height, width, channels), found.read(height * width * channels)


def main(program: str) -> None:
    generator = np.random.default_rng(0)
    cases = [*of_pillow(generator), *of_streams(generator), *of_orientations(generator)]
    for (name, data), (shape, pixels) in zip(cases, decoded(program, [data for _, data in cases]), strict=True):
        expected_shape, expected_pixels = expected(data)
        assert shape == expected_shape, f"{name}: {shape}, but Pillow has {expected_shape}"
        off = np.frombuffer(pixels, np.uint8) != np.frombuffer(expected_pixels, np.uint8)
        assert not off.any(), f"{name}: {off.sum()} of {off.size} bytes differ from Pillow's"
    whole = [data for name, data in cases if name.startswith("33 x 17 x 3, quality=75")]
    cut = [data[:size] for data in whole for size in np.linspace(0, len(data) - 1, 40).astype(int)]
    for data, (shape, _) in zip(cut, decoded(program, cut), strict=True):
        assert shape == (0, 0, 0), f"accepted though it ends after {len(data)} bytes"
    print(f"{len(cases)} pictures, the same bytes as Pillow's; {len(cut)} that end too early, refused")


if __name__ == "__main__":
    main(sys.argv[1])
