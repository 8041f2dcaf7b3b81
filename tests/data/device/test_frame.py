"""Crops, flips, sizes and jittered colors against Pillow's bytes at the same decisions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from PIL import ImageEnhance
from tests.data.device.pictures import SIZES, batch, natural, noisy, pillow, tensor
from torch import Tensor

from frugalvit.data.augment import ColorJitter, Flip, PadCrop, Resize, ResizedCrop
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.frame import DeviceFlip, DevicePadCrop, DeviceResize, DeviceResizedCrop
from frugalvit.data.device.jitter import DeviceColorJitter
from frugalvit.data.device.resample import shares
from frugalvit.data.device.size import MapSize
from frugalvit.data.preprocess import FILTERS
from frugalvit.errors import SpecError

COUNT = 24


def some(channels: int, height: int, width: int) -> Tensor:
    image_BCHW = batch(channels, height, width)
    return torch.stack([image_BCHW[place % 3].roll(place, -1) for place in range(COUNT)])


def draws(count: int, seed: int = 0, rows: int = COUNT) -> Tensor:
    return uniform(torch.tensor([seed, 1]), 2, (rows, count))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_flip_is_pillows(channels: int, size: tuple[int, int]) -> None:
    image_BCHW, draws_B1 = some(channels, *size), draws(1)
    found = DeviceFlip(Flip(0.4))(image_BCHW, draws_B1)
    for image_CHW, draw, one in zip(image_BCHW, draws_B1[:, 0].tolist(), found, strict=True):
        flipped = pillow(image_CHW).transpose(Pillow.Transpose.FLIP_LEFT_RIGHT)
        assert torch.equal(one, tensor(flipped) if draw < 0.4 else image_CHW)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_a_padded_crop_is_pillows(channels: int, size: tuple[int, int]) -> None:
    spec, image_BCHW = PadCrop(3, fill=9), some(channels, *size)
    draws_B2 = draws(2)
    found = DevicePadCrop(spec, MapSize(*size, channels), size)(image_BCHW, draws_B2)
    for image_CHW, (down, right), one in zip(image_BCHW, draws_B2.tolist(), found, strict=True):
        padded = torch.nn.functional.pad(image_CHW, (3, 3, 3, 3), value=9)
        top, left = int(7 * down), int(7 * right)
        assert torch.equal(one, padded[:, top : top + size[0], left : left + size[1]])


@pytest.mark.parametrize("size", [(47, 33), (20, 90), (90, 20), (35, 25)])
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_of_another_size_are_framed_before_padding_as_on_the_cpu(channels: int, size: tuple[int, int]) -> None:
    image_BCHW, target = some(channels, *size), (36, 24)
    found = DevicePadCrop(PadCrop(0), MapSize(*size, channels), target)(image_BCHW, draws(2))
    expected = [tensor(PadCrop(0).apply(pillow(one), *target, np.random.default_rng(0))) for one in image_BCHW]
    assert torch.equal(found, torch.stack(expected))


def resized(image_CHW: Tensor, target: tuple[int, int], filter: str) -> Tensor:
    """Pillow's, the width first: Pillow 13 begins with the height where that shrinks much more."""
    between = pillow(image_CHW).resize((target[1], image_CHW.shape[1]), FILTERS[filter])
    return tensor(between.resize((target[1], target[0]), FILTERS[filter]))


def goes_our_way(height: int, width: int, target: tuple[int, int]) -> bool:
    """Whether Pillow, 13 and later, begins with the width."""
    return height <= target[0] or height - target[0] <= 2 * (width - target[1])


@pytest.mark.parametrize("filter", ["bicubic", "bilinear"])
def test_where_pillow_begins_with_the_height_smooth_pictures_differ_by_two_levels_at_most(filter: str) -> None:
    shares = []
    for size, target in (((64, 64), (47, 70)), ((47, 33), (20, 28)), ((64, 64), (32, 60))):
        assert not goes_our_way(*size, target)
        image_BCHW = natural(3, *size)[None]
        found = DeviceResize(Resize(filter), MapSize(*size, 3), target)(image_BCHW, draws(0, rows=1))[0]
        expected = tensor(pillow(image_BCHW[0]).resize((target[1], target[0]), FILTERS[filter]))
        apart = (found.int() - expected.int()).abs()
        assert apart.max() <= 2
        shares.append(float((apart > 0).double().mean()))
    assert max(shares) < 0.15, shares


@pytest.mark.parametrize("filter", ["bicubic", "bilinear"])
@pytest.mark.parametrize("target", [(20, 28), (64, 64), (47, 70), (9, 8), (100, 33)])
@pytest.mark.parametrize("channels", [1, 3])
def test_resizing_gives_pillows_bytes(channels: int, target: tuple[int, int], filter: str) -> None:
    for size in SIZES:
        image_BCHW = batch(channels, *size)
        found = DeviceResize(Resize(filter), MapSize(*size, channels), target)(image_BCHW, draws(0, rows=4))
        for image_CHW, one in zip(image_BCHW, found, strict=True):
            assert torch.equal(one, resized(image_CHW, target, filter))
            if goes_our_way(*size, target):
                assert torch.equal(one, tensor(pillow(image_CHW).resize((target[1], target[0]), FILTERS[filter])))


@pytest.mark.parametrize("filter", ["bicubic", "bilinear"])
@pytest.mark.parametrize("target", [200, 224])
def test_the_places_that_are_read_are_exact(target: int, filter: str) -> None:
    """Rounded ones could be rounded apart from their weights, in a compiled step."""
    reach, longest = {"bicubic": 2, "bilinear": 1}[filter], 600
    length_B = torch.arange(1, longest + 1)
    first_BL = shares(length_B, longest, target, filter).index_BLT[:, :, 0].tolist()
    for length, first_L in zip(length_B.tolist(), first_BL, strict=True):
        scale = Fraction(length, target)
        begins = [(Fraction(2 * place + 1, 2) * scale - reach * max(scale, 1) + Fraction(1, 2)) for place in range(target)]
        assert first_L == [max(math.floor(one), 0) for one in begins], length


def box(spec: ResizedCrop, height: int, width: int, draw: list[float]) -> tuple[int, int, int, int]:
    """`ResizedCrop.box` by the same draws: areas, ratios, place."""
    for share, shape in zip(draw[:10], draw[10:20], strict=True):
        area = (spec.area[0] + (spec.area[1] - spec.area[0]) * share) * width * height
        low, high = (math.log(one) for one in spec.ratio)
        ratio = math.exp(low + (high - low) * shape)
        wide, high = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < high <= height:
            top, left = int(draw[20] * (height - high + 1)), int(draw[21] * (width - wide + 1))
            return left, top, left + wide, top + high
    return spec.center_box(Pillow.new("L", (width, height)))


@pytest.mark.parametrize("spec", [ResizedCrop(), ResizedCrop((0.3, 0.9), (0.5, 3.0), "bilinear")], ids=["default", "bilinear"])
@pytest.mark.parametrize("target", [(20, 28), (64, 64)])
@pytest.mark.parametrize("size", [*SIZES, (15, 90)])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_resized_crop_gives_pillows_bytes(channels: int, size: tuple[int, int], target: tuple[int, int], spec) -> None:
    step, image_BCHW = DeviceResizedCrop(spec, MapSize(*size, channels), target), some(channels, *size)
    draws_BK = draws(step.draws)
    boxes = [box(spec, *size, draw) for draw in draws_BK.tolist()]
    top_B, left_B, high_B, wide_B = step.boxes(draws_BK)
    assert torch.stack((left_B, top_B, left_B + wide_B, top_B + high_B), 1).tolist() == [list(one) for one in boxes]
    for image_CHW, (left, top, right, bottom), one in zip(image_BCHW, boxes, step(image_BCHW, draws_BK), strict=True):
        assert torch.equal(one, resized(image_CHW[:, top:bottom, left:right], target, spec.interpolation))


def test_boxes_are_distributed_as_the_cpus() -> None:
    spec, picture, count = ResizedCrop((0.2, 1.0), (0.6, 2.5)), Pillow.new("L", (90, 31)), 4000
    step = DeviceResizedCrop(spec, MapSize(31, 90, 1), (20, 28))
    ours = torch.stack(step.boxes(draws(step.draws, 5, count)), 1).double().numpy()
    drawn, generator = [], np.random.default_rng(0)
    for _ in range(count):
        left, top, right, bottom = spec.box(picture, generator)
        drawn.append((top, left, bottom - top, right - left))
    theirs = np.array(drawn, dtype=float)
    for power in (1, 2):
        mine, other = ours**power, theirs**power
        error = np.sqrt(mine.var(0) / count + other.var(0) / count)
        assert (abs(mine.mean(0) - other.mean(0)) < 4 * error).all()


def test_a_picture_too_narrow_for_any_box_is_cut_at_its_center() -> None:
    step = DeviceResizedCrop(ResizedCrop((1.0, 1.0)), MapSize(5, 150, 1), (20, 28))
    assert [one.tolist() for one in step.boxes(draws(22, rows=1))] == [[0], [71], [5], [7]]


def test_shrinking_beyond_the_taps_is_refused_with_a_cure() -> None:
    with pytest.raises(SpecError, match=r"1000 pixels become 20, which takes 201 weights .* augment on the CPU"):
        DeviceResizedCrop(ResizedCrop(), MapSize(32, 1000, 3), (20, 20))


@pytest.mark.parametrize("channels", [1, 3])
def test_color_jitter_gives_pillows_bytes_at_equal_factors(channels: int) -> None:
    spec, image_BCHW = ColorJitter(0.3, 0.4, 1.5), some(channels, 47, 33)
    step = DeviceColorJitter(spec)
    draws_BK, orders = draws(step.draws), list(itertools.permutations(range(3)))
    for image_CHW, draw, one in zip(image_BCHW, draws_BK.tolist(), step(image_BCHW, draws_BK), strict=True):
        low, high = (0.7, 0.6, 0.0), (1.3, 1.4, 2.5)
        factors = [a + (b - a) * u for a, b, u in zip(low, high, draw, strict=False)]
        picture = pillow(image_CHW)
        for change in orders[int(6 * draw[3])]:
            enhancer = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[change]
            picture = enhancer(picture).enhance(factors[change])
        assert torch.equal(one, tensor(picture))


def test_a_reach_of_zero_changes_nothing() -> None:
    image_BCHW = noisy(3, 28, 28).expand(COUNT, -1, -1, -1)
    assert torch.equal(DeviceColorJitter(ColorJitter(0.0, 0.0, 0.0))(image_BCHW, draws(4)), image_BCHW)
