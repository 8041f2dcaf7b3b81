from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from frugalvit.data.device.draws import normal, philox, signs, uniform, whole

COUNT = 1 << 16


def key(seed: int = 3, step: int = 812) -> Tensor:
    return torch.tensor([seed, step])


@pytest.mark.parametrize(
    ("counter", "keyed", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_the_bits_are_the_known_answers_of_philox(counter: str, keyed: str, expected: str) -> None:
    words = [[torch.tensor(int(word, 16)) for word in text.split()] for text in (counter, keyed)]
    assert [f"{int(word):08x}" for word in philox(*words)] == expected.split()


def test_numbers_are_of_24_bits_and_below_one() -> None:
    draws = uniform(key(), 2, (COUNT,))
    assert draws.dtype == torch.float32
    assert 0 <= draws.min() < 1e-3 and 1 - 1e-3 < draws.max() < 1
    assert torch.equal(draws * 2**24, (draws * 2**24).round())


def test_a_number_depends_on_its_place_alone() -> None:
    few, many = uniform(key(), 2, (3, 7)), uniform(key(), 2, (50, 7))
    assert torch.equal(few, many[:3])
    assert torch.equal(uniform(key(), 2, (21,)), few.flatten())
    assert uniform(key(), 2, (0, 4)).shape == (0, 4)


def test_seed_step_and_stream_all_change_every_number() -> None:
    big = 2**32
    keys = [(key(), 2), (key(4), 2), (key(3, 813), 2), (key(), 3), (key(3 + big), 2), (key(3, 812 + big), 2), (key(-3), 2)]
    draws = [uniform(one, stream, (COUNT,)) for one, stream in keys]
    for place, first in enumerate(draws):
        for second in draws[place + 1 :]:
            assert (first == second).float().mean() < 1e-4
            assert abs(correlation(first, second)) < 4 / math.sqrt(COUNT)


def correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack((first, second)).double())[0, 1])


@pytest.mark.parametrize("stream", [0, 2, 1 << 16])
@pytest.mark.parametrize("step", [0, 1, 10**7])
def test_numbers_are_uniform_and_uncorrelated(step: int, stream: int) -> None:
    draws = uniform(key(0, step), stream, (COUNT,)).double()
    assert abs(draws.mean() - 0.5) < 4 / math.sqrt(12 * COUNT)
    assert abs(draws.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / COUNT)
    for bins in (16, 251):
        found = torch.bincount((draws * bins).long(), minlength=bins)
        square = float(((found - COUNT / bins) ** 2).sum() / (COUNT / bins))
        assert abs(square - (bins - 1)) < 4.5 * math.sqrt(2 * (bins - 1))
    for lag in (1, 2, 3, 4, 8, 32, 1000):
        assert abs(correlation(draws[lag:], draws[:-lag])) < 4.5 / math.sqrt(COUNT)


def test_neighboring_steps_and_streams_give_a_uniform_square() -> None:
    for other in (uniform(key(3, 813), 2, (COUNT,)), uniform(key(), 3, (COUNT,)), uniform(key(4), 2, (COUNT,))):
        cell = (uniform(key(), 2, (COUNT,)) * 8).long() * 8 + (other * 8).long()
        found = torch.bincount(cell, minlength=64)
        assert abs(float(((found - COUNT / 64) ** 2).sum() / (COUNT / 64)) - 63) < 4.5 * math.sqrt(2 * 63)


def test_the_first_number_of_consecutive_steps_is_uniform_too() -> None:
    """One draw a step is what mixing takes."""
    draws = torch.cat([uniform(key(7, step), 4, (1,)) for step in range(2000)]).double()
    assert abs(draws.mean() - 0.5) < 4 / math.sqrt(12 * 2000)
    assert abs(correlation(draws[1:], draws[:-1])) < 4 / math.sqrt(2000)
    found = torch.bincount((draws * 20).long(), minlength=20)
    assert float(((found - 100) ** 2 / 100).sum()) < 19 + 4.5 * math.sqrt(38)


def test_normal_numbers_have_the_moments_and_tails_of_one() -> None:
    draws = normal(key(), 3, (COUNT,)).double()
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((draws**power).mean() - moment) < 4 * math.sqrt(variance / COUNT)
    edges = torch.linspace(-3, 3, 25, dtype=torch.float64)
    expected = torch.special.ndtr(edges)
    found = (draws[:, None] < edges).double().mean(0)
    assert (found - expected).abs().max() < 1.63 / math.sqrt(COUNT)  # Kolmogorov-Smirnov, 1 %
    for lag in (1, 2, 3, 4):
        assert abs(correlation(draws[lag:], draws[:-lag])) < 4.5 / math.sqrt(COUNT)
    assert draws.isfinite().all()


def test_whole_numbers_and_signs_reach_their_ends_alike() -> None:
    edge = torch.tensor([0.0, 1 - 2**-24])
    for count in (1, 2, 3, 25, 31, 2**13):
        assert whole(edge, count).tolist() == [0, count - 1]
    assert signs(torch.tensor([0.0, 0.49, 0.5, 0.99])).tolist() == [-1, -1, 1, 1]
