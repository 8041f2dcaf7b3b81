"""Every operation at every strength against Pillow's bytes, and whole policies at the same decisions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.data.device.pictures import SIZES, batch, pillow, tensor
from torch import Tensor

from frugalvit.data import autoaugment, operations, tf_operations, trivialaugment
from frugalvit.data.autoaugment import POLICIES, AutoAugment
from frugalvit.data.device.affine import nearest
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.layer import Colors, Operation, OperationTable
from frugalvit.data.device.policies import (
    DeviceAutoAugment,
    DeviceRandAugment,
    DeviceTfRandAugment,
    DeviceTrivialAugment,
    autoaugment_operation,
    trivial_operation,
)
from frugalvit.data.device.size import MapSize
from frugalvit.data.randaugment import RandAugment
from frugalvit.data.tf_operations import Chance
from frugalvit.data.tf_randaugment import TfRandAugment
from frugalvit.data.trivialaugment import BINS, TrivialAugment

FILL = (124, 116, 104)
SIGNS = (-1, 1)
Strength = Callable[[str, int, int, MapSize], Operation]


def changed(image_CHW: Tensor, operations: list[Operation]) -> Tensor:
    """image_BCHW: the picture after each of the operations."""
    size = MapSize(*image_CHW.shape[1:], len(image_CHW))
    chosen = OperationTable(operations)(torch.arange(len(operations)))
    image_BCHW = image_CHW.expand(len(operations), -1, -1, -1)
    fill_C11 = torch.tensor(size.filled(FILL), dtype=torch.uint8)[:, None, None]
    return Colors(13)(image_BCHW, nearest(image_BCHW, chosen.affine_B6, fill_C11), chosen)


@pytest.mark.parametrize(
    ("strength", "changes", "levels"),
    [(autoaugment_operation, autoaugment.STRENGTHS, 10), (trivial_operation, trivialaugment.STRENGTHS, BINS)],
    ids=["autoaugment", "trivialaugment"],
)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_operations_of_few_strengths_give_pillows_bytes_at_all_levels(
    channels: int, size: tuple[int, int], strength: Strength, changes: dict, levels: int
) -> None:
    places = [(name, level, sign) for name in changes for level in range(levels) for sign in SIGNS]
    for image_CHW in batch(channels, *size):
        found, picture = changed(image_CHW, [strength(*place, MapSize(*size, channels)) for place in places]), pillow(image_CHW)
        assert found.dtype == torch.uint8
        for (name, level, sign), one in zip(places, found, strict=True):
            assert torch.equal(one, tensor(changes[name](picture, level, sign, FILL))), (name, level, sign)


def chosen(place: int, count: int) -> float:
    """A draw that chooses one of `count`."""
    return (place + 0.5) / count


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_augregs_operations_give_pillows_bytes_at_all_magnitudes(channels: int, size: tuple[int, int]) -> None:
    names = list(tf_operations.OPERATIONS)
    chances = [(1, 0.0, 0.0), (-1, 0.5, 0.3125), (1, 0.875, 0.75)]
    places = [(name, Chance(*chance)) for name in names for chance in chances]
    rows = [(chosen(names.index(name), len(names)), (one.sign + 1.5) / 4, one.down, one.right) for name, one in places]
    for magnitude in (0.0, 0.7, 5.0, 12.3, 20.0):
        step = DeviceTfRandAugment(TfRandAugment(1, magnitude, FILL), MapSize(*size, channels))
        for image_CHW in batch(channels, *size)[:3]:
            found, picture = step(image_CHW.expand(len(rows), -1, -1, -1), torch.tensor(rows)), pillow(image_CHW)
            for (name, chance), one in zip(places, found, strict=True):
                change = tf_operations.OPERATIONS[name](picture, magnitude, chance, FILL)
                assert torch.equal(one, tensor(change)), (name, magnitude, chance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_timms_operations_give_pillows_bytes_at_all_magnitudes(channels: int, size: tuple[int, int]) -> None:
    names = list(operations.OPERATIONS)
    places = [(name, sign) for name in names for sign in SIGNS]
    rows = [(chosen(names.index(name), len(names)), 0.5, 0.3, 0.3, (sign + 1.5) / 4) for name, sign in places]
    for magnitude in (0.0, 1.3, 5.0, 9.4321, 10.0):
        step = DeviceRandAugment(RandAugment(1, magnitude, 0.0, 1.0, FILL), MapSize(*size, channels))
        for image_CHW in batch(channels, *size)[:3]:
            found, picture = step(image_CHW.expand(len(rows), -1, -1, -1), torch.tensor(rows)), pillow(image_CHW)
            for (name, sign), one in zip(places, found, strict=True):
                change = operations.OPERATIONS[name](picture, magnitude, sign, FILL)
                assert torch.equal(one, tensor(change)), (name, magnitude, sign)


# ------------------------------------------------------------------------------------------------ whole policies

SIZE = MapSize(29, 41, 3)
COUNT = 200


def some(channels: int = 3) -> Tensor:
    """image_BCHW: many pictures of one size, each moved a little from the last."""
    image_CHW = batch(channels, SIZE.height, SIZE.width)
    return torch.stack([image_CHW[place % 3].roll(place, -1) for place in range(COUNT)])


def draws(count: int, seed: int = 0) -> Tensor:
    return uniform(torch.tensor([seed, 1]), 2, (COUNT, count))


@pytest.mark.parametrize("policy", POLICIES)
def test_autoaugment_equals_the_cpus_at_equal_decisions(policy: str) -> None:
    step = DeviceAutoAugment(AutoAugment(policy, FILL), SIZE)
    image_BCHW, draws_BK = some(), draws(step.draws)
    found, unchanged = step(image_BCHW, draws_BK), 0
    for image_CHW, draw, one in zip(image_BCHW, draws_BK.tolist(), found, strict=True):
        picture = pillow(image_CHW)
        for trial, chance, turn in zip(POLICIES[policy][int(25 * draw[0])], draw[1:3], draw[3:5], strict=True):
            if chance < trial.probability:
                picture = autoaugment.STRENGTHS[trial.operation](picture, trial.level, 1 if turn >= 0.5 else -1, FILL)
        assert torch.equal(one, tensor(picture))
        unchanged += torch.equal(one, image_CHW)
    assert unchanged < 0.6 * COUNT


def test_trivialaugment_equals_the_cpus_at_equal_decisions() -> None:
    step, names = DeviceTrivialAugment(TrivialAugment(FILL), SIZE), list(trivialaugment.STRENGTHS)
    image_BCHW, draws_BK = some(), draws(step.draws)
    for image_CHW, draw, one in zip(image_BCHW, draws_BK.tolist(), step(image_BCHW, draws_BK), strict=True):
        change, level, sign = names[int(14 * draw[0])], int(31 * draw[1]), 1 if draw[2] >= 0.5 else -1
        assert torch.equal(one, tensor(trivialaugment.STRENGTHS[change](pillow(image_CHW), level, sign, FILL)))


def test_augregs_randaugment_equals_the_cpus_at_equal_decisions() -> None:
    step, names = DeviceTfRandAugment(TfRandAugment(2, 6.0, FILL), SIZE), list(tf_operations.OPERATIONS)
    image_BCHW, draws_BK = some(), draws(step.draws)
    assert step.draws == 8
    for image_CHW, draw, one in zip(image_BCHW, draws_BK.tolist(), step(image_BCHW, draws_BK), strict=True):
        picture = pillow(image_CHW)
        for name, turn, down, right in (draw[:4], draw[4:]):
            chance = Chance(1 if turn >= 0.5 else -1, down, right)
            picture = tf_operations.OPERATIONS[names[int(16 * name)]](picture, 6.0, chance, FILL)
        assert torch.equal(one, tensor(picture))


def test_timms_randaugment_equals_the_cpus_at_equal_decisions() -> None:
    step, names = DeviceRandAugment(RandAugment(fill=FILL), SIZE), list(operations.OPERATIONS)
    image_BCHW, draws_BK = some(), draws(step.draws)
    assert step.draws == 10
    for image_CHW, draw, one in zip(image_BCHW, draws_BK.tolist(), step(image_BCHW, draws_BK), strict=True):
        picture = pillow(image_CHW)
        for name, chance, far, turn, sign in (draw[:5], draw[5:]):
            magnitude = 9.0 + 0.5 * math.sqrt(-2 * math.log1p(-far)) * math.cos(2 * math.pi * turn)
            if chance < 0.5:
                change = operations.OPERATIONS[names[int(15 * name)]]
                picture = change(picture, min(10.0, max(0.0, magnitude)), 1 if sign >= 0.5 else -1, FILL)
        assert torch.equal(one, tensor(picture))


def test_magnitudes_are_normal_and_clipped() -> None:
    wild = DeviceRandAugment(RandAugment(1, 5.0, 30.0), SIZE).magnitudes(draws(5))
    assert (wild.min(), wild.max()) == (0, 10)
    tame = DeviceRandAugment(RandAugment(1, 5.0, 0.5), SIZE).magnitudes(draws(5, 1))
    assert abs(tame.mean() - 5) < 4 * 0.5 / math.sqrt(COUNT)
    assert abs(tame.std() - 0.5) < 4 * 0.5 / math.sqrt(2 * COUNT)


def test_no_layers_need_no_draws_and_change_nothing() -> None:
    image_BCHW = some()
    for step in (DeviceTfRandAugment(TfRandAugment(0), SIZE), DeviceRandAugment(RandAugment(0), SIZE)):
        assert step.draws == 0
        assert torch.equal(step(image_BCHW, draws(0)), image_BCHW)
