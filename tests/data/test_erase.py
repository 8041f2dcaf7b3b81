from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from timm.data.random_erasing import RandomErasing
from torch import Tensor

from frugalvit.data.erase import Erase, EraseConstant, Erasing
from frugalvit.data.finish import normalize
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.randomness import Stream, torch_generator
from frugalvit.errors import SpecError
from frugalvit.slots import choices
from frugalvit.spec import decode, encode

HEIGHT, WIDTH = 20, 28


def generator(step: int = 812) -> torch.Generator:
    return torch_generator("cpu", 3, step, Stream.ERASE)


def boxes(inside_BHW: np.ndarray) -> np.ndarray:
    """(erased, top, left, height, width) of each picture's box; zeros where there is none."""
    found = []
    for inside_HW in inside_BHW:
        rows, columns = inside_HW.any(1).nonzero()[0], inside_HW.any(0).nonzero()[0]
        found.append((1, rows[0], columns[0], len(rows), len(columns)) if len(rows) else (0, 0, 0, 0, 0))
        assert inside_HW.sum() == len(rows) * len(columns)  # one full rectangle
    return np.array(found, dtype=float)


def picture(count: int, channels: int = 3) -> Tensor:
    return torch.rand((count, channels, HEIGHT, WIDTH), generator=torch.Generator().manual_seed(0))


def test_normalizing_a_batch_gives_the_numbers_of_the_evaluation() -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pixels_BHWC = np.random.default_rng(0).integers(0, 256, (2, HEIGHT, WIDTH, 3), dtype=np.uint8)
    ours = normalize(torch.from_numpy(pixels_BHWC).permute(0, 3, 1, 2), mean, std)
    theirs = [Preprocess(HEIGHT, WIDTH, mean, std).normalized(Pillow.fromarray(one)) for one in pixels_BHWC]
    assert ours.dtype == torch.float32
    assert torch.equal(ours, torch.stack(theirs))


def test_normalizing_refuses_statistics_of_another_number_of_channels() -> None:
    with pytest.raises(SpecError, match="1 means and 1 deviations for 3 channels"):
        normalize(torch.zeros(2, 3, 5, 7, dtype=torch.uint8), (0.5,), (0.5,))


@pytest.mark.parametrize("ratio", [(0.3, 1 / 0.3), (0.3, 0.9)], ids=["default", "wide"])
def test_boxes_are_distributed_as_timms(ratio: tuple[float, float]) -> None:
    count, errors = 6000, 4.0
    ours = boxes(Erase(probability=0.6, ratio=ratio).boxes(torch.zeros(count, 1, HEIGHT, WIDTH), generator()).numpy())
    random.seed(1)
    peer = RandomErasing(probability=0.6, min_aspect=ratio[0], max_aspect=ratio[1], mode="pixel", device="cpu")
    theirs = boxes((peer(torch.zeros(count, 1, HEIGHT, WIDTH)) != 0)[:, 0].numpy())
    assert abs(ours[:, 0].mean() - 0.6) < errors * math.sqrt(0.6 * 0.4 / count)
    for power in (1, 2):
        for mine, other in zip(ours.T, theirs.T, strict=True):
            error = math.sqrt(((mine**power).var() + (other**power).var()) / count)
            assert abs((mine**power).mean() - (other**power).mean()) < errors * error
    area, others = ours[:, 3] * ours[:, 4], theirs[:, 3] * theirs[:, 4]
    assert abs(area.mean() - others.mean()) < errors * math.sqrt((area.var() + others.var()) / count)


def test_the_box_is_standard_normal_noise_and_the_rest_is_untouched() -> None:
    image_BCHW, erase = picture(500), Erase(probability=1.0)
    erased_BCHW = erase.erase(image_BCHW, generator())
    inside_BHW = erase.boxes(image_BCHW, generator())
    changed = erased_BCHW != image_BCHW
    assert torch.equal(changed, inside_BHW[:, None].expand_as(changed))
    noise = erased_BCHW[changed].double()
    assert abs(noise.mean()) < 4 / math.sqrt(len(noise))
    assert abs(noise.var() - 1) < 4 * math.sqrt(2 / len(noise))
    first_B, second_B = (torch.where(inside_BHW, erased_BCHW[:, c], 0).flatten(1).sum(1) for c in (0, 1))
    assert abs(torch.corrcoef(torch.stack([first_B, second_B]))[0, 1]) < 4 / math.sqrt(500)  # channels are independent


def test_pictures_are_erased_independently_of_each_other() -> None:
    found = boxes(Erase(probability=0.5).boxes(torch.zeros(8000, 1, HEIGHT, WIDTH), generator()).numpy())
    both = found[:-1, 0] * found[1:, 0]
    assert abs(both.mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / len(both))
    assert len({tuple(one) for one in found[:300]}) > 100


def test_equal_keys_give_equal_bits_and_other_steps_other_ones() -> None:
    image_BCHW = picture(9)
    before = image_BCHW.clone()
    first, again, other = (Erase(1.0).erase(image_BCHW, generator(step)) for step in (812, 812, 813))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(image_BCHW, before)


def test_a_box_that_cannot_fit_leaves_the_picture_whole() -> None:
    image_BCHW = picture(50)
    assert torch.equal(Erase(1.0, area=(1.0, 1.0)).erase(image_BCHW, generator()), image_BCHW)
    assert torch.equal(Erase(0.0).erase(image_BCHW, generator()), image_BCHW)


def test_a_constant_box_is_zero() -> None:
    image_BCHW = picture(50) + 1
    erased_BCHW = EraseConstant(probability=1.0).erase(image_BCHW, generator())
    inside_BHW = Erase(probability=1.0).boxes(image_BCHW, generator())
    assert torch.equal(erased_BCHW == 0, inside_BHW[:, None].expand_as(erased_BCHW))


def test_a_constant_box_has_the_color_that_is_given() -> None:
    """Lee et al. write the data set's mean, not its zero, into normalized pictures."""
    mean = (0.4914, 0.4822, 0.4465)
    image_BCHW, erase = picture(50) + 1, EraseConstant(1.0, (0.02, 0.4), (0.3, 1 / 0.3), color=mean)
    erased_BCHW, inside_BHW = erase.erase(image_BCHW, generator()), erase.boxes(image_BCHW, generator())
    assert inside_BHW.any()
    for channel, value in enumerate(mean):
        assert torch.equal(erased_BCHW[:, channel][inside_BHW], torch.full((int(inside_BHW.sum()),), value))
        assert torch.equal(erased_BCHW[:, channel][~inside_BHW], image_BCHW[:, channel][~inside_BHW])
    gray = EraseConstant(1.0, color=(0.5,)).erase(image_BCHW, generator())
    assert set(gray[gray < 1].tolist()) == {0.5}
    with pytest.raises(SpecError, match=r"erase\.color: 2 numbers for 3 channels. Give one for all, or 3."):
        EraseConstant(1.0, color=(0.1, 0.2)).erase(image_BCHW, generator())


@pytest.mark.parametrize("kind", choices(Erasing).values(), ids=lambda kind: kind.__name__)
def test_erasing_keeps_type_and_shape_and_survives_json(kind: type) -> None:
    image_BCHW = picture(2, channels=1).bfloat16()
    erased_BCHW = kind(1.0).erase(image_BCHW, generator())
    assert (erased_BCHW.dtype, erased_BCHW.shape) == (torch.bfloat16, image_BCHW.shape)
    assert decode(encode(kind(0.5)), kind) == kind(0.5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (dict(probability=-0.1), "probability: -0.1 is not a probability"),
        (dict(area=(0.5, 0.02)), "area: .* is not a range"),
        (dict(ratio=(-1.0, 1.0)), "ratio: .* is not a range"),
        (dict(tries=0), "tries: 0 is too small. Use 1 or more."),
    ],
)
def test_impossible_erasing_is_refused(values: dict, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Erase(**values)
