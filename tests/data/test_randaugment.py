from __future__ import annotations

import math
import random

import numpy as np
import pytest
from PIL import Image as Pillow
from timm.data import auto_augment

from frugalvit.data.operations import OPERATIONS, filled
from frugalvit.data.randaugment import Choice, RandAugment
from frugalvit.errors import SpecError

FILL = (124, 116, 104)
PLAIN = ("AutoContrast", "Equalize", "Invert", "Rotate", "SolarizeAdd", "ShearX", "ShearY")
NAMES = {name: name if name in PLAIN else f"{name}Rel" if "Translate" in name else f"{name}Increasing" for name in OPERATIONS}
GEOMETRY = ("Rotate", "ShearX", "ShearY", "TranslateX", "TranslateY")


def photograph(mode: str = "RGB") -> Pillow.Image:
    noise = np.random.default_rng(0).integers(0, 256, (7, 5, 4), dtype=np.uint8)
    return Pillow.fromarray(noise).resize((41, 29), Pillow.Resampling.BILINEAR).convert(mode)


def timms(name: str, picture: Pillow.Image, magnitude: float, fill: int | tuple[int, ...]) -> Pillow.Image:
    level = auto_augment.LEVEL_TO_ARG[NAMES[name]]
    arguments = level(magnitude, {}) if level else ()
    change = auto_augment.NAME_TO_OP[NAMES[name]]
    return change(picture, *arguments, fillcolor=fill, resample=Pillow.Resampling.BICUBIC)


def test_the_operations_are_timms_increasing_set_in_its_order() -> None:
    assert list(NAMES.values()) == auto_augment._RAND_INCREASING_TRANSFORMS


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gives_timms_bytes(name: str, mode: str, sign: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """timm's coin is replaced by the sign. At magnitude 10 timm keeps 0 bits, which Pillow 13 refuses (below)."""
    monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value: -value if sign < 0 else value)
    picture = photograph(mode)
    fill = FILL if mode == "RGB" else 115
    for magnitude in (0.0, 1.3, 2.5, 5.0, 7.77, 9.0, 9.4321, *((10.0,) if name != "Posterize" else ())):
        ours = OPERATIONS[name](picture, magnitude, sign, FILL)
        assert ours.mode == mode
        assert ours.tobytes() == timms(name, picture, magnitude, fill).tobytes(), magnitude


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_posterizing_with_all_might_leaves_black(mode: str) -> None:
    assert not np.asarray(OPERATIONS["Posterize"](photograph(mode), 10.0, 1, FILL)).any()


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", OPERATIONS)
def test_alpha_moves_with_the_picture_and_keeps_its_values_under_colors(name: str, sign: int) -> None:
    for mode in ("RGBA", "LA"):
        picture = photograph(mode)
        changed = OPERATIONS[name](picture, 9.0, sign, FILL)
        assert (changed.mode, changed.size) == (mode, picture.size)
        kept = changed.getchannel("A").tobytes() == picture.getchannel("A").tobytes()
        assert kept == (name not in GEOMETRY)
        if kept:
            colors = OPERATIONS[name](picture.convert(mode[:-1]), 9.0, sign, FILL)
            assert changed.convert(mode[:-1]).tobytes() == colors.tobytes()


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_on_rgba_gives_timms_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_augment, "_randomly_negate", lambda value: value)
    picture = photograph("RGBA")
    assert OPERATIONS[name](picture, 9.0, 1, FILL).tobytes() == timms(name, picture, 9.0, (*FILL, 255)).tobytes()


@pytest.mark.parametrize(
    ("mode", "color"), [("RGB", FILL), ("L", (115,)), ("RGBA", (*FILL, 255)), ("LA", (115, 255))], ids=lambda one: str(one)
)
def test_the_fill_has_the_pictures_channels(mode: str, color: tuple[int, ...]) -> None:
    assert filled(photograph(mode), FILL) == color
    corner = OPERATIONS["TranslateX"](photograph(mode), 9.0, 1, FILL).getpixel((40, 3))
    assert corner == (color if len(color) > 1 else color[0])


def test_magnitude_nine_is_what_the_fact_sheet_of_deit_says() -> None:
    ramp = Pillow.fromarray(np.arange(256, dtype=np.uint8)[None])
    values = {name: np.asarray(OPERATIONS[name](ramp, 9.0, 1, FILL))[0] for name in ("Posterize", "Solarize", "SolarizeAdd")}
    assert set(values["Posterize"]) == {0, 128}  # one bit
    assert list(values["Solarize"][[25, 26]]) == [25, 255 - 26]
    assert list(values["SolarizeAdd"][[0, 127, 128]]) == [99, 226, 128]


def recorded(pictures: int) -> list[Choice]:
    """What timm's policy carries out: its operations note their arguments instead of working."""
    found: list[Choice] = []
    policy = auto_augment.rand_augment_transform("rand-m9-mstd0.5-inc1", dict(interpolation=Pillow.Resampling.BICUBIC))
    scales = {"Rotate": 3.0, "ShearX": 0.03, "ShearY": 0.03, "TranslateXRel": 0.045, "TranslateYRel": 0.045}
    ours = {theirs: name for name, theirs in NAMES.items()}

    def note(name: str):
        def aug_fn(picture: Pillow.Image, *arguments: float, **_: object) -> Pillow.Image:
            value = arguments[0] / scales[name] if name in scales else 0.0
            found.append(Choice(ours[name], abs(value), -1 if value < 0 else 1))
            return picture

        return aug_fn

    for op in policy.ops:
        op.aug_fn = note(op.name)
    random.seed(5), np.random.seed(6)
    for _ in range(pictures):
        policy(photograph())
    return found


def test_the_policy_draws_operations_magnitudes_and_signs_as_timms_does() -> None:
    pictures, errors = 12_000, 4.0
    draw = np.random.default_rng(7)
    ours = [choice for _ in range(pictures) for choice in RandAugment().choices(draw)]
    theirs = recorded(pictures)
    # each of 2n places carries out a given operation with probability 1/30, independently
    place_error = math.sqrt(1 / 30 * 29 / 30 / (2 * pictures))
    for name in OPERATIONS:
        for choices in (ours, theirs):
            assert abs(sum(one.operation == name for one in choices) / (2 * pictures) - 1 / 30) < errors * place_error
    moved, others = ([one for one in choices if one.operation in GEOMETRY] for choices in (ours, theirs))
    for quantity in (
        lambda one: one.magnitude,
        lambda one: (one.magnitude - 9) ** 2,
        lambda one: one.magnitude > 9.99999,  # clipped
        lambda one: one.sign,
    ):
        mine, other = (np.array([quantity(one) for one in choices], dtype=float) for choices in (moved, others))
        error = math.sqrt(mine.var() / len(mine) + other.var() / len(other))
        assert abs(mine.mean() - other.mean()) < errors * error


def test_magnitudes_stay_within_zero_and_ten_and_places_are_independent() -> None:
    draw = np.random.default_rng(0)
    wild = [one.magnitude for _ in range(300) for one in RandAugment(deviation=30.0).choices(draw)]
    assert (min(wild), max(wild)) == (0.0, 10.0)
    pictures = 12_000
    twice = [[one.operation for one in RandAugment(probability=1.0).choices(draw)] for _ in range(pictures)]
    assert abs(np.mean([a == b for a, b in twice]) - 1 / 15) < 4 * math.sqrt(1 / 15 * 14 / 15 / pictures)  # with replacement


def test_the_edges_of_the_policy_hold() -> None:
    draw = np.random.default_rng(0)
    picture = photograph()
    assert RandAugment(probability=0.0).apply(picture, 1, 1, draw) is picture
    assert RandAugment(count=0).choices(draw) == []
    certain = RandAugment(count=5, magnitude=4.0, deviation=0.0, probability=1.0).choices(draw)
    assert [one.magnitude for one in certain] == [4.0] * 5
    with pytest.raises(SpecError, match=r"magnitude: a magnitude of 11\. Use 0 to 10"):
        RandAugment(magnitude=11)
    with pytest.raises(SpecError, match="count: -1 is too small"):
        RandAugment(count=-1)


def test_applying_is_carrying_out_the_choices_in_order() -> None:
    policy, picture = RandAugment(count=4, probability=0.9), photograph()
    for seed in range(10):
        expected = picture
        for choice in policy.choices(np.random.default_rng(seed)):
            expected = OPERATIONS[choice.operation](expected, choice.magnitude, choice.sign, policy.fill)
        assert policy.apply(picture, 20, 28, np.random.default_rng(seed)).tobytes() == expected.tobytes()
