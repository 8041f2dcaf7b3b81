"""Each operation against a reference in numpy, pixel by pixel, written from its description."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image as Pillow

from frugalvit.data.tf_operations import OPERATIONS, Chance
from frugalvit.data.tf_randaugment import TfRandAugment
from frugalvit.errors import SpecError

GRAY = (128, 128, 128)
MAGNITUDES = (0.0, 3.0, 5.0, 10.0, 15.0, 20.0)
HEIGHT, WIDTH = 29, 41
GEOMETRY = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY", "Cutout")


def photograph(mode: str = "RGB") -> Pillow.Image:
    noise = np.random.default_rng(0).integers(0, 256, (7, 5, 4), dtype=np.uint8)
    return Pillow.fromarray(noise).resize((WIDTH, HEIGHT), Pillow.Resampling.BILINEAR).convert(mode)


def ours(name: str, magnitude: float, chance: Chance = Chance(), mode: str = "RGB") -> np.ndarray:
    return np.asarray(OPERATIONS[name](photograph(mode), magnitude, chance, GRAY)).astype(int)


def pixels() -> np.ndarray:
    return np.asarray(photograph()).astype(int)


def test_the_operations_are_augregs_sixteen() -> None:
    names = "AutoContrast Equalize Invert Rotate Posterize Solarize Color Contrast Brightness Sharpness ShearX ShearY"
    assert set(OPERATIONS) == {*names.split(), "TranslateX", "TranslateY", "Cutout", "SolarizeAdd"}


# ------------------------------------------------------------------------------------------------ geometry

Read = Callable[[float, int, int, int], tuple[float, float]]


def rotated(magnitude: float, sign: int, x: int, y: int) -> tuple[float, float]:
    angle = sign * math.pi / 180 * 30 * magnitude / 10
    middle = (WIDTH - 1) / 2, (HEIGHT - 1) / 2
    dx, dy = x - middle[0], y - middle[1]
    return (
        middle[0] + math.cos(angle) * dx - math.sin(angle) * dy,
        middle[1] + math.sin(angle) * dx + math.cos(angle) * dy,
    )


READS: dict[str, Read] = {
    "Rotate": rotated,
    "ShearX": lambda m, sign, x, y: (x + sign * 0.03 * m * y, y),
    "ShearY": lambda m, sign, x, y: (x, y + sign * 0.03 * m * x),
    "TranslateX": lambda m, sign, x, y: (x + sign * 10 * m, y),
    "TranslateY": lambda m, sign, x, y: (x, y + sign * 10 * m),
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", READS)
def test_geometry_reads_the_nearest_pixel_and_leaves_gray(name: str, sign: int) -> None:
    given = pixels()
    for magnitude in (0.0, 0.7, 1.3, 3.0, 10.0, 15.0, 20.0):
        found, compared = ours(name, magnitude, Chance(sign)), 0
        for y in range(HEIGHT):
            for x in range(WIDTH):
                at = READS[name](magnitude, sign, x, y)
                if any(abs(abs(one) % 1 - 0.5) < 1e-3 for one in at):
                    continue  # halfway between pixels: rounding decides
                column, row = (math.floor(one + 0.5) for one in at)
                inside = 0 <= row < HEIGHT and 0 <= column < WIDTH
                assert found[y, x].tolist() == (given[row, column].tolist() if inside else list(GRAY)), (magnitude, x, y)
                compared += 1
        assert compared > 0.7 * HEIGHT * WIDTH


def test_magnitude_zero_moves_nothing_and_twenty_moves_small_pictures_away() -> None:
    for name in READS:
        assert (ours(name, 0.0) == pixels()).all()
    assert (ours("TranslateX", 20.0) == 128).all()


def test_translation_counts_pixels_of_large_pictures_too() -> None:
    wide = Pillow.fromarray(np.arange(256, dtype=np.uint8)[None])
    for name, picture in (("TranslateX", wide), ("TranslateY", wide.transpose(Pillow.Transpose.ROTATE_270))):
        values = np.asarray(OPERATIONS[name](picture, 15.0, Chance(1), GRAY)).ravel().tolist()
        assert values == [*range(150, 256), *[128] * 150]


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_cutout_is_a_gray_square_around_its_place(magnitude: float) -> None:
    for down, right in ((0.0, 0.0), (0.5, 0.31), (0.999, 0.999)):
        expected, half = pixels(), int(4 * magnitude)
        center = math.floor(down * HEIGHT), math.floor(right * WIDTH)
        for y in range(HEIGHT):
            for x in range(WIDTH):
                if -half <= y - center[0] < half and -half <= x - center[1] < half:
                    expected[y, x] = 128
        assert (ours("Cutout", magnitude, Chance(1, down, right)) == expected).all()


# ------------------------------------------------------------------------------------------------ colors


def table(change: Callable[[int], int]) -> np.ndarray:
    return np.vectorize(change)(pixels())


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_solarizing_inverts_from_a_threshold_that_grows(magnitude: float) -> None:
    threshold = int(25.6 * magnitude)
    assert (ours("Solarize", magnitude) == table(lambda v: v if v < threshold else 255 - v)).all()


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_solarize_add_lightens_the_dark_half(magnitude: float) -> None:
    assert (ours("SolarizeAdd", magnitude) == table(lambda v: min(255, v + int(11 * magnitude)) if v < 128 else v)).all()


@pytest.mark.parametrize(("magnitude", "bits"), [(0.0, 1), (2.4, 1), (2.5, 1), (5.0, 2), (10.0, 4), (15.0, 6), (20.0, 8)])
def test_posterizing_keeps_more_bits_as_the_magnitude_grows(magnitude: float, bits: int) -> None:
    """At no bits one is left, since TensorFlow shifts a byte by 7 at most."""
    assert (ours("Posterize", magnitude) == table(lambda v: v // 2 ** (8 - bits) * 2 ** (8 - bits))).all()


def test_stronger_is_weaker_for_posterize_and_solarize() -> None:
    for name in ("Posterize", "Solarize"):
        changed = [abs(ours(name, magnitude) - pixels()).mean() for magnitude in (0.0, 5.0, 10.0)]
        assert changed[0] > changed[1] > changed[2]
    assert (ours("Posterize", 20.0) == pixels()).all()
    assert (ours("Solarize", 10.0) == pixels()).all()


def blended(dull: np.ndarray, magnitude: float) -> np.ndarray:
    """dull + f (picture − dull), clipped and cut off to whole numbers."""
    factor = 0.1 + 0.18 * magnitude
    return np.clip(dull + factor * (pixels() - dull), 0, 255)


def near(found: np.ndarray, expected: np.ndarray) -> bool:
    """Cut off to whole numbers, with room for single precision at the edges of one."""
    return bool(((found <= expected + 1e-3) & (found >= np.floor(expected - 1e-3))).all())


def dull_of(name: str) -> np.ndarray:
    given = pixels()
    if name == "Brightness":
        return np.zeros_like(given)
    if name == "Contrast":
        return np.full_like(given, HEIGHT * WIDTH // 256)
    if name == "Color":
        gray = np.floor(given @ np.array([0.299, 0.587, 0.114]) + 0.5)
        return np.repeat(gray[:, :, None], 3, axis=2)
    smooth = given.copy()
    for y in range(1, HEIGHT - 1):
        for x in range(1, WIDTH - 1):
            smooth[y, x] = (given[y - 1 : y + 2, x - 1 : x + 2].sum((0, 1)) + 4 * given[y, x]) // 13
    return smooth


@pytest.mark.parametrize("magnitude", MAGNITUDES)
@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Sharpness"])
def test_enhancing_is_its_equation(name: str, magnitude: float) -> None:
    assert near(ours(name, magnitude), blended(dull_of(name), magnitude))
    assert not near(ours(name, 10.0), blended(dull_of(name), 5.0))


@pytest.mark.parametrize("magnitude", MAGNITUDES)
def test_color_is_its_equation_up_to_a_gray_level_of_rounding(magnitude: float) -> None:
    expected = blended(dull_of("Color"), magnitude)
    assert abs(ours("Color", magnitude) - expected).max() <= 1 + abs(1 - (0.1 + 0.18 * magnitude))
    assert np.mean(ours("Color", magnitude) != np.floor(expected)) < 0.05


def test_magnitude_five_enhances_nothing_and_zero_nearly_blackens() -> None:
    for name in ("Brightness", "Contrast", "Color", "Sharpness"):
        assert abs(ours(name, 5.0) - pixels()).max() <= 1
    assert ours("Brightness", 0.0).max() <= 25


def test_the_gray_of_contrast_is_the_number_of_pixels_by_256() -> None:
    white = Pillow.new("RGB", (224, 224), (255, 255, 255))
    assert OPERATIONS["Contrast"](white, 0.0, Chance(), GRAY).getpixel((0, 0)) == (int(196 + 0.1 * 59),) * 3
    large = Pillow.new("RGB", (384, 384))
    assert OPERATIONS["Contrast"](large, 0.0, Chance(), GRAY).getpixel((0, 0)) == (int(255 * 0.9),) * 3


def test_auto_contrast_stretches_each_channel() -> None:
    given = pixels()
    low, high = given.min((0, 1)), given.max((0, 1))
    assert near(ours("AutoContrast", 3.0), (given - low) * 255 / (high - low))


def test_equalize_is_its_equation() -> None:
    expected = pixels()
    for channel in range(3):
        counts = np.bincount(expected[:, :, channel].ravel(), minlength=256)
        step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
        values = [min(255, (int(counts[:value].sum()) + step // 2) // step) for value in range(256)]
        expected[:, :, channel] = np.array(values)[expected[:, :, channel]]
    assert (ours("Equalize", 3.0) == expected).all()


def test_invert_is_255_minus_the_value() -> None:
    assert (ours("Invert", 3.0) == 255 - pixels()).all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_other_modes_keep_size_and_mode_and_alpha_keeps_its_values_under_colors(name: str) -> None:
    for mode in ("L", "LA", "RGBA"):
        picture = photograph(mode)
        for magnitude in (0.0, 3.0, 20.0):
            changed = OPERATIONS[name](picture, magnitude, Chance(1, 0.5, 0.5), GRAY)
            assert (changed.mode, changed.size) == (mode, picture.size)
            if mode != "L" and name not in GEOMETRY:
                assert changed.getchannel("A").tobytes() == picture.getchannel("A").tobytes()


def test_a_given_picture_stays_as_it_is() -> None:
    picture = photograph()
    for operation in OPERATIONS.values():
        operation(picture, 15.0, Chance(-1, 0.4, 0.4), GRAY)
    assert picture.tobytes() == photograph().tobytes()


# ------------------------------------------------------------------------------------------------ the policy


def test_every_layer_is_carried_out_each_operation_alike() -> None:
    draw, pictures = np.random.default_rng(5), 12_000
    found = [one for _ in range(pictures) for one in TfRandAugment(2, 15.0).choices(draw)]
    assert len(found) == 2 * pictures
    error = math.sqrt(1 / 16 * 15 / 16 / len(found))
    for name in OPERATIONS:
        assert abs(sum(one == name for one, _ in found) / len(found) - 1 / 16) < 4 * error
    for quantity, mean, deviation in (
        (lambda chance: chance.sign, 0.0, 1.0),
        (lambda chance: chance.down, 0.5, 12**-0.5),
        (lambda chance: chance.right, 0.5, 12**-0.5),
    ):
        assert abs(np.mean([quantity(chance) for _, chance in found]) - mean) < 4 * deviation / math.sqrt(len(found))


def test_applying_is_carrying_out_the_choices_in_order() -> None:
    policy, picture = TfRandAugment(3, 15.0), photograph()
    for seed in range(10):
        expected = picture
        for name, chance in policy.choices(np.random.default_rng(seed)):
            expected = OPERATIONS[name](expected, 15.0, chance, GRAY)
        assert policy.apply(picture, 1, 1, np.random.default_rng(seed)).tobytes() == expected.tobytes()


def test_two_layers_of_magnitude_zero_are_not_the_identity() -> None:
    draw = np.random.default_rng(0)
    changed = [TfRandAugment(2, 0.0).apply(photograph(), 1, 1, draw).tobytes() != photograph().tobytes() for _ in range(200)]
    assert 0.6 < np.mean(changed) < 0.95
    assert TfRandAugment(0, 10.0).apply(photograph(), 1, 1, draw).tobytes() == photograph().tobytes()


def test_impossible_policies_are_refused() -> None:
    with pytest.raises(SpecError, match="layers: -1 is too small"):
        TfRandAugment(layers=-1)
    with pytest.raises(SpecError, match=r"magnitude: -1.0 is too small"):
        TfRandAugment(magnitude=-1.0)
