from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from frugalvit.data.device.draws import normal, uniform
from frugalvit.data.device.erase import NOISE, erase
from frugalvit.data.erase import Erase, EraseConstant
from frugalvit.data.randomness import Stream, torch_generator
from frugalvit.errors import SpecError

HEIGHT, WIDTH = 20, 28
KEY = torch.tensor([3, 812])


def draws(count: int, rows: int, step: int = 812) -> Tensor:
    return uniform(torch.tensor([3, step]), Stream.ERASE, (rows, count))


def boxes(inside_BHW: Tensor) -> Tensor:
    """(erased, top, left, height, width) of each picture's box; zeros where there is none."""
    rows_BH, columns_BW = inside_BHW.any(2).double(), inside_BHW.any(1).double()
    assert torch.equal(inside_BHW.double(), rows_BH[:, :, None] * columns_BW[:, None, :])  # one full rectangle
    first = rows_BH.argmax(1), columns_BW.argmax(1)
    return torch.stack((inside_BHW.flatten(1).any(1), *first, rows_BH.sum(1), columns_BW.sum(1)), 1).double()


@pytest.mark.parametrize("spec", [Erase(), Erase(0.9, (0.3, 0.9), (0.2, 5.0), 2)], ids=["default", "large"])
def test_boxes_are_distributed_as_the_specs(spec: Erase) -> None:
    count, image_BCHW = 6000, torch.zeros((6000, 1, HEIGHT, WIDTH))
    step = erase(spec)
    ours = boxes(step.boxes(image_BCHW, draws(step.draws, count)))
    theirs = boxes(spec.boxes(image_BCHW, torch_generator("cpu", 3, 812, Stream.ERASE)))
    for power in (1, 2):
        mine, other = ours**power, theirs**power
        error = ((mine.var(0) + other.var(0)) / count).sqrt()
        assert ((mine.mean(0) - other.mean(0)).abs() < 4 * error).all()


def test_a_box_is_that_of_a_loop_over_its_tries() -> None:
    spec, count = Erase(0.7, (0.3, 0.9), (0.2, 5.0), tries=3), 200
    step, image_BCHW = erase(spec), torch.zeros((count, 1, HEIGHT, WIDTH))
    draws_BK = draws(step.draws, count)
    for draw, found in zip(draws_BK.tolist(), boxes(step.boxes(image_BCHW, draws_BK)).tolist(), strict=True):
        expected = [0.0] * 5
        wanted, down, right = draw[6:]
        for share, shape in zip(draw[:3], draw[3:6], strict=True):
            area = (0.3 + 0.6 * share) * HEIGHT * WIDTH
            ratio = math.exp(math.log(0.2) + (math.log(5.0) - math.log(0.2)) * shape)
            high, wide = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if high < HEIGHT and wide < WIDTH:
                if wanted < 0.7:
                    expected = [1.0, int(down * (HEIGHT - high + 1)), int(right * (WIDTH - wide + 1)), high, wide]
                break
        assert found == expected


def test_noise_fills_the_boxes_and_the_rest_stays() -> None:
    step = erase(Erase(0.5))
    image_BCHW = torch.rand((50, 3, HEIGHT, WIDTH), generator=torch.Generator().manual_seed(0))
    draws_BK = draws(step.draws, 50)
    inside = step.boxes(image_BCHW, draws_BK)[:, None].expand_as(image_BCHW)
    found = step(image_BCHW, draws_BK, KEY)
    assert torch.equal(found[~inside], image_BCHW[~inside])
    assert torch.equal(found[inside], normal(KEY, NOISE, image_BCHW.shape)[inside])
    assert abs(found[inside].mean()) < 4 / math.sqrt(int(inside.sum()))
    assert not torch.equal(found, step(image_BCHW, draws_BK, torch.tensor([3, 813])))


def test_a_constant_fills_the_boxes() -> None:
    spec = EraseConstant(1.0, color=(0.1, 0.2, 0.3))
    step, image_BCHW = erase(spec), torch.zeros((20, 3, HEIGHT, WIDTH))
    draws_BK = draws(step.draws, 20)
    inside_BHW = step.boxes(image_BCHW, draws_BK)
    for channel, color in enumerate(spec.color):
        assert torch.equal(step(image_BCHW, draws_BK, KEY)[:, channel], inside_BHW.float() * color)
    gray = erase(EraseConstant(1.0))(image_BCHW + 1, draws_BK, KEY)
    assert torch.equal(gray[:, 1] == 0, inside_BHW)
    with pytest.raises(SpecError, match=r"3 numbers for 1 channels"):
        step(image_BCHW[:, :1], draws_BK, KEY)


def test_a_picture_is_erased_by_its_own_draws() -> None:
    step, image_BCHW = erase(EraseConstant(0.5)), torch.rand((9, 3, HEIGHT, WIDTH))
    draws_BK = draws(step.draws, 9)
    alone = [step(image, draw, KEY) for image, draw in zip(image_BCHW.split(1), draws_BK.split(1), strict=True)]
    assert torch.equal(step(image_BCHW, draws_BK, KEY), torch.cat(alone))
