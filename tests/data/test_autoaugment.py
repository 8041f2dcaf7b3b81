from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torchvision.transforms import InterpolationMode, autoaugment

from frugalvit.data.augment import Augment, Resize
from frugalvit.data.autoaugment import POLICIES, STRENGTHS, AutoAugment, Chosen
from frugalvit.errors import SpecError
from frugalvit.spec import decode

GRAY = (128, 128, 128)
UNSIGNED = ("Posterize", "Solarize", "AutoContrast", "Equalize", "Invert")


def photograph(mode: str = "RGB", size: tuple[int, int] = (41, 29)) -> Pillow.Image:
    noise = np.random.default_rng(0).integers(0, 256, (7, 5, 4), dtype=np.uint8)
    return Pillow.fromarray(noise).resize(size, Pillow.Resampling.BILINEAR).convert(mode)


def peer(policy: str, mode: str = "RGB") -> autoaugment.AutoAugment:
    fill = list(GRAY) if mode == "RGB" else [128]
    return autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(policy), InterpolationMode.NEAREST, fill)


def strength(operation: str, level: int, sign: int, picture: Pillow.Image) -> float:
    """What torchvision makes of a level."""
    magnitudes, signed = peer("imagenet")._augmentation_space(10, (picture.height, picture.width))[operation]
    if not magnitudes.ndim:
        return 0.0
    return magnitudes[level].item() * (sign if signed else 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_policies_are_torchvisions(policy: str) -> None:
    theirs = peer(policy).policies
    ours = POLICIES[policy]
    assert len(ours) == len(theirs) == 25
    for pair, other in zip(ours, theirs, strict=True):
        assert [(one.operation, one.probability, one.level) for one in pair] == [(a, b, c or 0) for a, b, c in other]


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("operation", STRENGTHS)
def test_an_operation_gives_torchvisions_bytes_at_every_level(operation: str, mode: str, sign: int) -> None:
    for size in ((41, 29), (32, 32), (64, 64)):
        picture = photograph(mode, size)
        for level in range(10):
            value = strength(operation, level, sign, picture)
            fill = list(GRAY) if mode == "RGB" else [128]
            theirs = autoaugment._apply_op(picture, operation, value, InterpolationMode.NEAREST, fill)
            ours = STRENGTHS[operation](picture, level, sign, GRAY)
            assert (ours.mode, ours.size) == (mode, size)
            assert ours.tobytes() == theirs.tobytes(), (size, level)


def test_every_operation_but_those_of_level_zero_changes_a_picture() -> None:
    """Guards the comparison above: bytes that never change would agree with anything."""
    for name, operation in STRENGTHS.items():
        assert operation(photograph(), 9, 1, GRAY).tobytes() != photograph().tobytes(), name
        if name not in UNSIGNED:
            assert operation(photograph(), 9, -1, GRAY).tobytes() != operation(photograph(), 9, 1, GRAY).tobytes(), name


@pytest.mark.parametrize("policy", POLICIES)
def test_a_whole_policy_gives_torchvisions_bytes_at_equal_draws(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision is lent our draws: the pair, two chances, two directions."""
    picture, ours, theirs = photograph(), AutoAugment(policy), peer(policy)
    for seed in range(150):
        draw = np.random.default_rng(seed)
        pair, chances, signs = int(draw.integers(25)), torch.tensor(draw.random(2)), torch.tensor(draw.integers(2, size=2))
        monkeypatch.setattr(theirs, "get_params", lambda count, drawn=(pair, chances, signs): drawn)
        assert ours.apply(picture, 1, 1, np.random.default_rng(seed)).tobytes() == theirs(picture).tobytes()


def test_pairs_operations_and_directions_are_drawn_as_often_as_the_policy_says() -> None:
    draw, pictures = np.random.default_rng(3), 20_000
    found: list[Chosen] = [one for _ in range(pictures) for one in AutoAugment("cifar10").choices(draw)]
    for operation in STRENGTHS:
        expected = sum(one.probability / 25 for pair in POLICIES["cifar10"] for one in pair if one.operation == operation)
        error = math.sqrt(max(expected, 1e-9) / pictures)
        assert abs(sum(one.operation == operation for one in found) / pictures - expected) <= 4 * error
    assert abs(np.mean([one.sign for one in found])) < 4 / math.sqrt(len(found))


@pytest.mark.parametrize("operation", STRENGTHS)
def test_alpha_keeps_its_values_under_colors_and_moves_with_geometry(operation: str) -> None:
    for mode in ("RGBA", "LA"):
        picture = photograph(mode)
        changed = STRENGTHS[operation](picture, 9, 1, GRAY)
        assert (changed.mode, changed.size) == (mode, picture.size)
        kept = changed.getchannel("A").tobytes() == picture.getchannel("A").tobytes()
        assert kept == (operation not in ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"))


def test_what_geometry_uncovers_is_gray() -> None:
    moved = STRENGTHS["TranslateX"](photograph(), 9, 1, GRAY)
    assert moved.getpixel((0, 3)) == GRAY
    other = Augment((Resize(), AutoAugment("svhn", fill=(1, 2, 3))))
    assert other.steps[1] == AutoAugment("svhn", (1, 2, 3))


def test_an_unknown_policy_is_refused_with_its_choices() -> None:
    with pytest.raises(SpecError, match=r"policy: .*cifar10"):
        decode({"format": 1, "policy": "cifar"}, AutoAugment)
