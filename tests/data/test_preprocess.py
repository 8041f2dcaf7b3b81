from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from PIL import ImageOps
from timm.data import create_transform
from torchvision.transforms import v2
from torchvision.transforms.functional import _compute_resized_output_size

from frugalvit.data.preprocess import Preprocess, means_for, opened
from frugalvit.errors import DataError, SpecError
from frugalvit.weights.published import HALF, IMAGENET


def photograph(width: int, height: int, mode: str = "RGB") -> Pillow.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height // 8, width // 8, 4), dtype=np.uint8)
    return Pillow.fromarray(noise).resize((width, height), Pillow.Resampling.BILINEAR).convert(mode)


@pytest.mark.parametrize("size", [(300, 200), (200, 300), (100, 90), (640, 480), (224, 224)])
@pytest.mark.parametrize(("crop", "colors"), [(0.875, IMAGENET), (0.9, HALF), (1.0, HALF)])
def test_a_picture_becomes_what_timms_evaluation_makes_of_it(size: tuple[int, int], crop: float, colors: tuple) -> None:
    picture = photograph(*size)
    theirs = create_transform((3, 224, 224), crop_pct=crop, mean=colors[0], std=colors[1], interpolation="bicubic")
    torch.testing.assert_close(Preprocess(224, 224, *colors, crop)(picture), theirs(picture), atol=1e-6, rtol=0)


def test_pictures_of_all_proportions_get_the_size_that_torchvision_gives_them() -> None:
    ours = Preprocess(224, 224, (0.5,), (0.5,))
    for high in range(30, 330, 7):
        for wide in (*range(high // 3, 3 * high, 11), high * 3 // 2, high * 4 // 3, 2 * high):
            height, width = _compute_resized_output_size((high, wide), [256])
            assert ours.covering(wide, high) == (width, height), f"{wide} x {high}"


@pytest.mark.parametrize("size", [(294, 196), (196, 294), (147, 98), (245, 49)])
def test_a_picture_of_an_exact_ratio_becomes_what_torchvisions_evaluation_makes_of_it(size: tuple[int, int]) -> None:
    theirs = v2.Compose([v2.Resize(256, v2.InterpolationMode.BICUBIC), v2.CenterCrop(224)])
    picture = photograph(*size)
    np.testing.assert_array_equal(np.asarray(Preprocess(224, 224, *HALF).framed(picture)), np.asarray(theirs(picture)))


def test_a_picture_just_covers_what_is_not_square() -> None:
    ours = Preprocess(20, 28, (0.5,), (0.5,), crop=1.0)
    for wide in range(1, 90):
        for high in range(1, 90):
            assert ours.framed(Pillow.new("L", (wide, high), 255)).getextrema() == (255, 255)  # black where nothing covers


@pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA")])
@pytest.mark.parametrize("source", ["RGB", "L", "RGBA", "CMYK", "P", "LA", "1"])
def test_any_kind_of_picture_becomes_any_number_of_channels(channels: int, mode: str, source: str) -> None:
    image_CHW = Preprocess(20, 28, *means_for(channels, *IMAGENET))(photograph(64, 48, source))
    assert image_CHW.shape == (channels, 20, 28)
    assert image_CHW.isfinite().all()


def test_sixteen_bit_pictures_are_scaled_and_not_clipped() -> None:
    values = np.linspace(0, 65535, 64 * 48, dtype=np.uint16).reshape(48, 64)
    gray = np.asarray(opened(Pillow.fromarray(values)))
    assert gray.dtype == np.uint8
    assert (gray.min(), gray.max()) == (0, 255)
    assert abs(gray.mean() - 127.5) < 0.1


def test_sixteen_bits_are_what_the_file_says_and_not_what_its_brightest_pixel_does(tmp_path: Path) -> None:
    Pillow.fromarray(np.full((4, 4), 250, np.uint16)).save(tmp_path / "dark.png")
    assert np.asarray(opened(tmp_path / "dark.png")).max() == 1


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("size", [(108, 234), (234, 108), (40, 40), (29, 59), (3, 90), (200, 30)])
def test_rows_are_resized_before_columns_whichever_pillow_begins_with(size: tuple[int, int], mode: str) -> None:
    noise_HWC = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    picture = Pillow.fromarray(noise_HWC).convert(mode)
    ours = Preprocess(28, 20, *means_for(len(mode), *IMAGENET))
    wide, high = ours.covering(*size)
    weighted = picture.convert({"LA": "La", "RGBA": "RGBa"}.get(mode, mode))
    rows = weighted.resize((wide, size[1]), Pillow.Resampling.BICUBIC)
    whole = rows.resize((wide, high), Pillow.Resampling.BICUBIC).convert(mode)
    left, top = round((wide - 20) / 2), round((high - 28) / 2)
    assert ours.framed(picture).tobytes() == whole.crop((left, top, left + 20, top + 28)).tobytes()


def test_a_picture_that_would_fill_the_memory_is_refused() -> None:
    ours = Preprocess(224, 224, (0.5,), (0.5,))
    for size in ((30000, 1), (1, 30000)):
        with pytest.raises(DataError, match=f"a picture of {size[0]} x {size[1]} pixels is too thin"):
            ours.framed(Pillow.new("L", size))
    assert ours.framed(Pillow.new("L", (4000, 1))).size == (224, 224)


def test_exif_rotation_is_honored(tmp_path: Path) -> None:
    picture = photograph(64, 32)
    exif = Pillow.Exif()
    exif[0x0112] = 6  # turn a quarter to the right
    picture.save(tmp_path / "turned.jpg", exif=exif, quality=95)
    assert opened(tmp_path / "turned.jpg").size == (32, 64)


@pytest.mark.parametrize("turn", range(1, 9))
def test_pictures_are_turned_as_pillow_turns_them_and_once(tmp_path: Path, turn: int) -> None:
    exif = Pillow.Exif()
    exif[0x0112] = turn
    photograph(64, 32).save(tmp_path / "turned.jpg", exif=exif, quality=95)
    with Pillow.open(tmp_path / "turned.jpg") as file:
        right = ImageOps.exif_transpose(file)
    once = opened(tmp_path / "turned.jpg")
    assert np.array_equal(np.asarray(once), np.asarray(right)) and np.array_equal(np.asarray(opened(once)), np.asarray(right))


def test_a_mistyped_tag_beside_the_orientation_does_no_harm(tmp_path: Path) -> None:
    """A width of two numbers, which cannot be written again."""
    entries = struct.pack("<HHII", 0x100, 5, 1, 38) + struct.pack("<HHIHH", 0x112, 3, 1, 6, 0)
    exif = b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", 2) + entries + struct.pack("<I", 0) + struct.pack("<II", 30, 1)
    Pillow.new("RGB", (30, 24)).save(tmp_path / "odd.jpg", exif=exif)
    assert opened(tmp_path / "odd.jpg").size == (24, 30)


def test_arrays_are_taken_with_channels_last() -> None:
    image_CHW = Preprocess(4, 6, (0.0,) * 3, (1.0,) * 3, crop=1.0)(np.full((8, 12, 3), 255, np.uint8))
    torch.testing.assert_close(image_CHW, torch.ones(3, 4, 6))
    assert opened(np.zeros((3, 5, 1), np.uint8)).mode == "L"
    with pytest.raises(DataError, match=r"an array of shape \(3, 5, 7\) and type float64"):
        opened(np.zeros((3, 5, 7)))


def test_what_is_no_picture_is_named(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("not a picture")
    photograph(64, 64).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:500])
    for name in ("text.jpg", "cut.jpg", "missing.jpg"):
        with pytest.raises(DataError, match=name):
            opened(tmp_path / name)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(mean=(0.5,), std=(0.5, 0.5)), "1 means and 2 deviations"),
        (dict(mean=(0.5,), std=(0.0,)), "std: a deviation of 0.0"),
        (dict(mean=(0.5,), std=(0.5,), crop=1.5), "crop: a crop of 1.5"),
    ],
)
def test_impossible_preprocessing_is_refused(values: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Preprocess(224, 224, **values)
