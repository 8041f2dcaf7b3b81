from __future__ import annotations

import math

import pytest
import torch

from frugalvit.errors import WeightsError
from frugalvit.nn.shape import Shape
from frugalvit.weights.resample import Bicubic, BicubicAntialias, Bilinear, grid_of, resampled


def naive_cubic(values: list[float], size: int) -> list[float]:
    """Cubic convolution with a = -0.75 (Keys 1981), samples at pixel centers, edges repeated."""

    def kernel(t: float) -> float:
        a, t = -0.75, abs(t)
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0

    found = []
    for i in range(size):
        center = (i + 0.5) * len(values) / size - 0.5
        left = math.floor(center)
        near = range(left - 1, left + 3)
        found.append(sum(kernel(center - j) * values[min(max(j, 0), len(values) - 1)] for j in near))
    return found


def naive_bicubic(grid_HW: list[list[float]], size: tuple[int, int]) -> list[list[float]]:
    rows = [naive_cubic(row, size[1]) for row in grid_HW]
    columns = [naive_cubic([row[j] for row in rows], size[0]) for j in range(size[1])]
    return [[columns[j][i] for j in range(size[1])] for i in range(size[0])]


@pytest.mark.parametrize("size", [(7, 9), (3, 4), (5, 8)])
def test_bicubic_is_its_equation_and_leaves_summary_tokens_alone(size: tuple[int, int]) -> None:
    positions_1ND = torch.randn(1, 2 + 5 * 6, 3)
    shape = Shape(3, *size, ("class", "distill"))
    found = resampled(positions_1ND, shape, (5, 6), Bicubic())
    assert torch.equal(found[:, :2], positions_1ND[:, :2])
    for d in range(3):
        grid_HW = positions_1ND[0, 2:, d].reshape(5, 6).double().tolist()
        expected = [value for row in naive_bicubic(grid_HW, size) for value in row]
        torch.testing.assert_close(found[0, 2:, d].double().tolist(), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("rule", [Bicubic(), BicubicAntialias(), Bilinear()])
def test_an_equal_grid_is_left_alone(rule) -> None:
    positions_1ND = torch.randn(1, 1 + 35, 3)
    assert resampled(positions_1ND, Shape(3, 5, 7, ("class",)), (5, 7), rule) is positions_1ND


def test_the_three_rules_differ_where_the_grid_shrinks() -> None:
    positions_1ND = torch.randn(1, 1 + 64, 3)
    found = [
        resampled(positions_1ND, Shape(3, 3, 3, ("class",)), (8, 8), rule)
        for rule in (Bicubic(), BicubicAntialias(), Bilinear())
    ]
    assert all(not torch.allclose(a, b) for i, a in enumerate(found) for b in found[:i])


@pytest.mark.parametrize(
    ("length", "summary", "given", "grid"),
    [
        (197, ("class",), None, (14, 14)),
        (198, ("class", "distill"), None, (14, 14)),
        (196, (), None, (14, 14)),
        (36, ("class",), None, (5, 7)),
        (197, ("class",), (7, 28), (7, 28)),
    ],
)
def test_the_grid_of_a_file_is_given_or_square_or_ours(length: int, summary: tuple[str, ...], given, grid) -> None:
    assert grid_of(length, Shape(3, 5, 7, summary), given) == grid


@pytest.mark.parametrize(
    ("length", "given", "message"), [(198, None, "which are no square"), (197, (5, 5), "a grid of 5 x 5 for 196")]
)
def test_a_grid_that_cannot_be_known_is_asked_for(length: int, given, message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        grid_of(length, Shape(3, 5, 7, ("class",)), given)
