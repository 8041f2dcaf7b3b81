from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image as Pillow
from torchvision.transforms import InterpolationMode, autoaugment

from frugalvit.data.trivialaugment import BINS, STRENGTHS, Chosen, TrivialAugment

BLACK = (0, 0, 0)
UNSIGNED = ("Identity", "Posterize", "Solarize", "AutoContrast", "Equalize")


def photograph(mode: str = "RGB", size: tuple[int, int] = (41, 29)) -> Pillow.Image:
    noise = np.random.default_rng(0).integers(0, 256, (7, 5, 4), dtype=np.uint8)
    return Pillow.fromarray(noise).resize(size, Pillow.Resampling.BILINEAR).convert(mode)


def test_the_operations_are_torchvisions_in_its_order() -> None:
    assert list(STRENGTHS) == list(autoaugment.TrivialAugmentWide()._augmentation_space(BINS))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("operation", STRENGTHS)
def test_an_operation_gives_torchvisions_bytes_at_every_level(operation: str, mode: str, sign: int) -> None:
    magnitudes, signed = autoaugment.TrivialAugmentWide()._augmentation_space(BINS)[operation]
    for size in ((41, 29), (32, 32), (64, 64)):
        picture = photograph(mode, size)
        for level in range(BINS):
            value = float(magnitudes[level].item()) if magnitudes.ndim else 0.0
            value *= sign if signed else 1
            theirs = autoaugment._apply_op(picture, operation, value, InterpolationMode.NEAREST, None)
            ours = STRENGTHS[operation](picture, level, sign, BLACK)
            assert (ours.mode, ours.size) == (mode, size)
            assert ours.tobytes() == theirs.tobytes(), (size, level)


def test_the_strongest_level_changes_a_picture_in_both_directions() -> None:
    """Guards the comparison above: bytes that never change would agree with anything."""
    picture = photograph(size=(51, 43))
    for name, operation in STRENGTHS.items():
        changed = operation(picture, BINS - 1, 1, BLACK).tobytes()
        assert (changed != picture.tobytes()) == (name != "Identity")
        assert (operation(picture, BINS - 1, -1, BLACK).tobytes() != changed) == (name not in UNSIGNED)


def test_operations_levels_and_directions_are_drawn_alike() -> None:
    draw, pictures = np.random.default_rng(3), 14_000
    found: list[Chosen] = [TrivialAugment().choice(draw) for _ in range(pictures)]
    for field, values in (("operation", list(STRENGTHS)), ("level", list(range(BINS))), ("sign", [-1, 1])):
        share = 1 / len(values)
        error = math.sqrt(share * (1 - share) / pictures)
        for value in values:
            assert abs(sum(getattr(one, field) == value for one in found) / pictures - share) < 4 * error, (field, value)


def test_applying_is_carrying_out_the_choice() -> None:
    step = TrivialAugment(fill=(9, 8, 7))
    for seed in range(30):
        chosen = step.choice(np.random.default_rng(seed))
        expected = STRENGTHS[chosen.operation](photograph(), chosen.level, chosen.sign, step.fill)
        assert step.apply(photograph(), 1, 1, np.random.default_rng(seed)).tobytes() == expected.tobytes()
