from __future__ import annotations

import math
import random

import numpy as np
import pytest
from PIL import Image as Pillow
from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision.transforms import functional
from torchvision.transforms.functional import InterpolationMode

from frugalvit.data.augment import (
    Augment,
    ColorJitter,
    Flip,
    PadCrop,
    Resize,
    ResizedCrop,
    Step,
    deit_augment,
    small_augment,
)
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.randaugment import RandAugment
from frugalvit.data.randomness import Stream, numpy_generator
from frugalvit.errors import DataError, SpecError
from frugalvit.slots import choices
from frugalvit.spec import check, decode, encode

HEIGHT, WIDTH = 20, 28


def photograph(width: int, height: int, mode: str = "RGB") -> Pillow.Image:
    noise = np.random.default_rng(0).integers(0, 256, (7, 5, 4), dtype=np.uint8)
    return Pillow.fromarray(noise).resize((width, height), Pillow.Resampling.BILINEAR).convert(mode)


def same(ours: Pillow.Image, theirs: Pillow.Image) -> bool:
    return ours.mode == theirs.mode and ours.size == theirs.size and ours.tobytes() == theirs.tobytes()


def draws(place: int = 0) -> np.random.Generator:
    return numpy_generator(3, 812, Stream.AUGMENT, place)


def close(ours: np.ndarray, theirs: np.ndarray, errors: float = 4.0) -> bool:
    """Whether two samples' means lie within some standard errors of each other."""
    return abs(ours.mean() - theirs.mean()) < errors * math.sqrt(ours.var() / len(ours) + theirs.var() / len(theirs))


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA"])
@pytest.mark.parametrize("filter", ["bicubic", "bilinear"])
def test_a_resized_crop_gives_torchvisions_bytes_for_the_box_it_drew(mode: str, filter: str) -> None:
    picture, crop = photograph(41, 33, mode), ResizedCrop(interpolation=filter)
    for place in range(5):
        left, top, right, bottom = crop.box(picture, draws(place))
        size = top, left, bottom - top, right - left
        theirs = functional.resized_crop(picture, *size, [HEIGHT, WIDTH], InterpolationMode(filter))
        assert same(crop.apply(picture, HEIGHT, WIDTH, draws(place)), theirs)


@pytest.mark.parametrize("crop", [ResizedCrop(), ResizedCrop((0.2, 0.6), (1.2, 2.5))], ids=["default", "wide"])
@pytest.mark.parametrize("size", [(41, 33), (90, 31)])
def test_boxes_of_crops_are_distributed_as_timms(size: tuple[int, int], crop: ResizedCrop) -> None:
    picture, draw = photograph(*size), np.random.default_rng(1)
    random.seed(2)
    found = np.array([crop.box(picture, draw) for _ in range(6000)])
    ours = np.stack([found[:, 1], found[:, 0], found[:, 3] - found[:, 1], found[:, 2] - found[:, 0]])
    theirs = [RandomResizedCropAndInterpolation.get_params(picture, crop.area, crop.ratio) for _ in range(6000)]
    for mine, other in zip(ours, np.array(theirs).T, strict=True):
        assert close(mine, other)
        assert close((mine - mine.mean()) ** 2, (other - other.mean()) ** 2)


@pytest.mark.parametrize(
    ("size", "box"),
    [((300, 5), (146, 0, 153, 5)), ((5, 300), (0, 146, 5, 153)), ((40, 40), (0, 0, 40, 40)), ((1, 1), (0, 0, 1, 1))],
)
def test_a_picture_too_narrow_for_any_box_is_cut_at_its_center(size: tuple[int, int], box: tuple[int, ...]) -> None:
    whole = ResizedCrop(area=(1.0, 1.0))
    assert whole.center_box(photograph(*size)) == box
    if max(size) == 300:
        assert whole.box(photograph(*size), draws()) == box
        theirs = RandomResizedCropAndInterpolation.get_params(photograph(*size), whole.area, whole.ratio)
        assert theirs == (box[1], box[0], box[3] - box[1], box[2] - box[0])


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA"])
def test_a_padded_crop_is_torchvisions_pad_and_crop(mode: str) -> None:
    picture, step = photograph(WIDTH, HEIGHT, mode), PadCrop(pad=3, fill=9)
    padded = functional.pad(picture, [3], fill=9)
    places = {(top, left): functional.crop(padded, top, left, HEIGHT, WIDTH) for top in range(7) for left in range(7)}
    for place in range(20):
        top, left = draws(place).integers(7, size=2).tolist()
        assert same(step.apply(picture, HEIGHT, WIDTH, draws(place)), places[top, left])


def test_padded_crops_reach_every_offset_equally_often() -> None:
    picture = Pillow.fromarray(np.arange(1, 36, dtype=np.uint8).reshape(5, 7))
    step, draw, seen = PadCrop(pad=1), np.random.default_rng(0), 4500
    found = [step.apply(picture, 5, 7, draw).tobytes() for _ in range(seen)]
    shares = np.unique(found, return_counts=True)[1] / seen
    assert len(shares) == 9
    assert abs(shares - 1 / 9).max() < 4 * math.sqrt(1 / 9 * 8 / 9 / seen)


@pytest.mark.parametrize("size", [(41, 33), (90, 30), (30, 90), (5, 400)])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA"])
def test_pictures_of_another_size_are_framed_before_padding_as_in_evaluation(size: tuple[int, int], mode: str) -> None:
    picture, channels = photograph(*size, mode), len(mode)
    evaluated = Preprocess(HEIGHT, WIDTH, (0.5,) * channels, (0.5,) * channels, crop=1.0).framed(picture)
    assert same(PadCrop(pad=0).apply(picture, HEIGHT, WIDTH, draws()), evaluated)


def test_a_resized_picture_gives_its_aspect_ratio_up() -> None:
    picture = photograph(41, 33)
    resized = picture.resize((WIDTH, HEIGHT), Pillow.Resampling.BICUBIC)
    assert same(Resize().apply(picture, HEIGHT, WIDTH, draws()), resized)
    assert Resize().apply(resized, HEIGHT, WIDTH, draws()) is resized


def test_a_flip_exchanges_left_and_right_as_often_as_it_says() -> None:
    picture, draw, seen = photograph(7, 5), np.random.default_rng(0), 4000
    mirrored = functional.hflip(picture).tobytes()
    found = [Flip(0.3).apply(picture, 5, 7, draw).tobytes() for _ in range(seen)]
    assert set(found) == {picture.tobytes(), mirrored}
    assert abs(found.count(mirrored) / seen - 0.3) < 4 * math.sqrt(0.3 * 0.7 / seen)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_color_jitter_gives_torchvisions_bytes_for_the_factors_it_drew(mode: str) -> None:
    picture, step = photograph(41, 33, mode), ColorJitter(0.3, 0.4, 1.5)
    orders = set()
    for place in range(20):
        theirs, factors = picture, step.factors(draws(place))
        for name, factor in factors:
            theirs = getattr(functional, f"adjust_{name}")(theirs, factor)
        assert same(step.apply(picture, HEIGHT, WIDTH, draws(place)), theirs)
        orders.add(tuple(name for name, _ in factors))
    assert len(orders) == 6


def test_color_factors_fill_their_ranges_and_a_reach_of_zero_is_left_out() -> None:
    draw = np.random.default_rng(0)
    found = [dict(ColorJitter(0.3, 0.0, 1.5).factors(draw)) for _ in range(3000)]
    for name, low, high in [("brightness", 0.7, 1.3), ("saturation", 0.0, 2.5)]:
        values = np.array([one[name] for one in found])
        assert low <= values.min() < low + 0.01 and high - 0.01 < values.max() <= high
        assert abs(values.mean() - (low + high) / 2) < 4 * (high - low) / math.sqrt(12 * len(values))
    assert "contrast" not in found[0]


def test_color_jitter_leaves_alpha_alone() -> None:
    picture = photograph(41, 33, "RGBA")
    jittered = ColorJitter(0.9, 0.9, 0.9).apply(picture, HEIGHT, WIDTH, draws())
    assert jittered.getchannel("A").tobytes() == picture.getchannel("A").tobytes()
    assert not same(jittered, picture)


@pytest.mark.parametrize("augment", [deit_augment(), small_augment()], ids=["deit", "small"])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA"])
def test_a_picture_leaves_at_the_wanted_size_and_equal_draws_give_equal_bytes(augment: Augment, mode: str) -> None:
    picture = photograph(41, 33, mode)
    before = picture.tobytes()
    first = [augment.apply(picture, HEIGHT, WIDTH, draws(place)) for place in range(8)]
    again = [augment.apply(picture, HEIGHT, WIDTH, draws(place)) for place in range(8)]
    assert all(same(*pair) for pair in zip(first, again, strict=True))
    assert {(one.size, one.mode) for one in first} == {((WIDTH, HEIGHT), mode)}
    assert len({one.tobytes() for one in first}) > 4
    assert picture.tobytes() == before


def test_augmenting_leaves_the_global_generators_alone() -> None:
    random.seed(0), np.random.seed(0)
    states = random.getstate(), np.random.get_state()[1].tobytes()
    deit_augment().apply(photograph(41, 33), HEIGHT, WIDTH, draws())
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == states


def test_the_published_augmentations_are_what_the_papers_say() -> None:
    crop = ResizedCrop((0.08, 1.0), (0.75, 4 / 3), "bicubic")
    assert deit_augment() == Augment((crop, Flip(0.5), RandAugment(2, 9.0, 0.5, 0.5, (124, 116, 104))))
    assert small_augment() == Augment((PadCrop(4, fill=0), Flip(0.5)))


@pytest.mark.parametrize("kind", choices(Step).values(), ids=lambda kind: kind.__name__)
def test_every_step_survives_json_and_changes_no_size_but_the_wanted_one(kind: type) -> None:
    augment = Augment((Resize(), kind()))
    check(augment, Augment)
    assert decode(encode(augment), Augment) == augment
    assert augment.apply(photograph(41, 33), HEIGHT, WIDTH, draws()).size == (WIDTH, HEIGHT)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ResizedCrop(area=(0.5, 0.1)), r"area: \(0.5, 0.1\) is not a range"),
        (lambda: ResizedCrop(area=(0.5, 1.1)), "area: .* above 0, up to 1.0"),
        (lambda: ResizedCrop(ratio=(0.0, 1.0)), "ratio: .* is not a range"),
        (lambda: Flip(1.5), "probability: 1.5 is not a probability. Use 0 to 1."),
        (lambda: PadCrop(-1), "pad: -1 is too small. Use 0 or more."),
        (lambda: ColorJitter(saturation=-0.1), "saturation: -0.1 is too small"),
        (lambda: Augment((Flip(),)), "steps: no step brings pictures to the model's size. Begin with ResizedCrop"),
    ],
)
def test_impossible_steps_are_refused_with_place_and_cure(make, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        make()


def test_a_picture_with_a_palette_is_refused_before_its_indices_are_blended() -> None:
    with pytest.raises(DataError, match=r"mode 'P'\. Convert it to one of L, LA, RGB, RGBA"):
        small_augment().apply(photograph(WIDTH, HEIGHT).convert("P"), HEIGHT, WIDTH, draws())
