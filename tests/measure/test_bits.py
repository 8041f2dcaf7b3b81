"""Operations and bytes of models of one bit, counted by hand."""

from __future__ import annotations

import pytest
from rich.console import Console

from frugalvit.measure.cost import cost
from frugalvit.measure.table import cost_line, cost_table
from frugalvit.nn.binary_linear import Binary, RealWeights
from frugalvit.nn.init import Normal
from frugalvit.nn.model import Model
from frugalvit.spec import swap
from frugalvit.zoo.binaryvit import CROSS, binaryvit

PYRAMID = binaryvit(
    dim=12, heads=(2, 3), depths=(1, 2), ratios=(4, 2), reductions=(2, 1), patch=4, image=(16, 24), classes=5, channels=2
)


def test_operations_are_those_counted_by_hand() -> None:
    found = cost(PYRAMID)
    n, d, keys = 24, 12, 6
    first = (2 * n + 3 * keys) * d * d  # q and out; reduce, k and v
    first += 2 * n * keys * d + 2 * n * d * 4 * d  # attention; MLP
    merge = 6 * 4 * d * 2 * d
    m, e = 6, 24
    second = m * (4 + 2 * 2) * e * e + 2 * m * m * e
    assert [place.bops for place in found.places] == [0, 0, 0, first, merge, 0, second, second, 0]
    assert found.bops == first + merge + 2 * second
    stem, head = n * 2 * 16 * d, e * 5
    assert found.macs == found.bops + stem + head
    affines = (2 + len(CROSS)) * (n * d + 2 * m * e)
    assert found.flops == stem + head + affines
    assert found.ops == pytest.approx(found.bops / 64 + found.flops)


def test_bits_are_the_weights_of_one_bit() -> None:
    found = cost(PYRAMID)
    assert found.bits == (5 + 2 * 4) * 12**2 + 4 * 12 * 24 + 2 * (4 + 2 * 2) * 24**2
    assert found.parameters == sum(one.numel() for one in PYRAMID.build().parameters())


def test_real_weights_are_no_products_of_one_bit() -> None:
    binary = swap(PYRAMID, Binary, lambda one: Binary(RealWeights(), Normal(0.1)))
    found, before = cost(binary), cost(PYRAMID)
    assert found.macs == before.macs
    assert 0 < found.bops < before.bops / 4  # products inside attention, and merging


def test_the_table_of_a_binary_model_says_what_is_of_one_bit(toy: Model) -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(cost_table(PYRAMID, cost(PYRAMID), 68_184))
    text = capture.get()
    found = cost(PYRAMID)
    assert f"OPs {found.ops / 1e6:,.1f} M" in text and "BOPs / 64" in text and text.count("1 bit") == 2
    assert f"packed about 0.068 MB (in float32 {4 * found.parameters / 1e6:,.2f} MB)" in " ".join(text.split())
    assert "packed" not in cost_line(found) and cost_line(found).endswith(f"in float32 {4 * found.parameters / 1e6:,.2f} MB")
    assert "packed about 7.71 MB" in cost_line(found, 7_712_168)
    with console.capture() as capture:
        console.print(cost_table(toy, cost(toy)))
    assert "1 bit" not in capture.get() and "BOPs" not in capture.get()
