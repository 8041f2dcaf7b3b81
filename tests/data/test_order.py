from __future__ import annotations

import math

import numpy as np
import pytest
from timm.data.distributed_sampler import RepeatAugSampler

from frugalvit.data.order import Balanced, Order, Repeated, Shuffled, epoch_batches, steps_per_epoch
from frugalvit.data.randomness import Stream, numpy_generator
from frugalvit.errors import DataError, SpecError
from frugalvit.slots import choices
from frugalvit.spec import decode, encode

ORDERS = [kind() for kind in choices(Order).values()]


def labels(pictures: int, classes: int = 5) -> np.ndarray:
    return np.random.default_rng(0).integers(classes, size=pictures)


def runs(indices: np.ndarray) -> list[int]:
    """How often each index stands in a row."""
    edges = np.flatnonzero(np.diff(indices)) + 1
    return np.diff([0, *edges, len(indices)]).tolist()


def test_a_shuffled_epoch_holds_every_picture_once() -> None:
    indices = Shuffled().epoch_indices(labels(103), seed=3, epoch=2)
    assert sorted(indices) == list(range(103))
    assert list(indices) != list(range(103))
    assert list(indices) == list(numpy_generator(3, 2, Stream.ORDER).permutation(103))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_an_order_depends_on_seed_and_epoch_and_nothing_else(order: Order) -> None:
    first, again, seed, epoch = (order.epoch_indices(labels(300), *key) for key in [(3, 2), (3, 2), (4, 2), (3, 1)])
    assert np.array_equal(first, again)
    assert not np.array_equal(first, seed)
    assert not np.array_equal(first, epoch)
    assert len(first) == order.length(300)
    assert decode(encode(order), type(order)) == order


@pytest.mark.parametrize("pictures", [256, 600, 1025])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_repeated_augmentation_has_the_pattern_of_deits_sampler(pictures: int, times: int) -> None:
    """The sampler's permutation comes from torch; only lengths and repetitions can agree."""
    theirs = np.array(list(RepeatAugSampler(range(pictures), num_replicas=1, rank=0, num_repeats=times)))
    ours = Repeated(times).epoch_indices(labels(pictures), seed=3, epoch=0)
    assert len(ours) == len(theirs) == pictures // 256 * 256
    assert runs(ours) == runs(theirs)
    assert len(set(ours)) == len(set(theirs)) == math.ceil(len(ours) / times)


def test_fewer_than_256_pictures_still_make_a_repeated_epoch() -> None:
    indices = Repeated(3).epoch_indices(labels(100), seed=3, epoch=0)
    assert len(indices) == 100
    assert runs(indices) == [3] * 33 + [1]


def test_balanced_draws_reach_classes_and_their_pictures_equally_often() -> None:
    unequal = np.repeat([7, 2, 4], [1000, 30, 200])  # classes without pictures are none
    unequal = np.random.default_rng(1).permutation(unequal)
    indices = np.concatenate([Balanced().epoch_indices(unequal, seed=3, epoch=epoch) for epoch in range(12)])
    for label, size in [(7, 1000), (2, 30), (4, 200)]:
        share = (unequal[indices] == label).mean()
        assert abs(share - 1 / 3) < 4 * math.sqrt(1 / 3 * 2 / 3 / len(indices))
        counts = np.bincount(indices, minlength=len(unequal))[unequal == label]
        rate = 1 / (3 * size)
        chi2 = ((counts - len(indices) * rate) ** 2 / (len(indices) * rate)).sum()
        assert abs(chi2 - size) < 5 * math.sqrt(2 * size * (1 + 1 / (2 * len(indices) * rate)))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_the_batches_of_an_epoch_are_its_indices_without_the_incomplete_end(order: Order) -> None:
    known, batch = labels(530), 60
    steps = steps_per_epoch(order, known, batch)
    assert steps == order.length(530) // 60 == 8
    for epoch in (0, 1):
        indices = order.epoch_indices(known, 3, epoch)
        found = epoch_batches(order, known, 3, epoch, batch)
        assert found.shape == (steps, batch)
        assert np.array_equal(found.reshape(-1), indices[: steps * batch])


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: type(order).__name__)
def test_a_batch_larger_than_the_data_is_filled_by_starting_again(order: Order) -> None:
    known = labels(7)
    assert steps_per_epoch(order, known, 17) == 1
    for step in range(3):
        (indices,) = epoch_batches(order, known, 3, step, 17)
        epoch = order.epoch_indices(known, 3, step)
        assert indices.tolist() == [*epoch, *epoch, *epoch[:3]]


def test_no_pictures_and_no_repetitions_are_refused() -> None:
    with pytest.raises(DataError, match="there are no pictures"):
        epoch_batches(Shuffled(), labels(0), 3, 0, 17)
    with pytest.raises(SpecError, match="times: 0 is too small"):
        Repeated(0)
