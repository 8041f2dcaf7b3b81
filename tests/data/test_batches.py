from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
from PIL import Image as Pillow

from frugalvit.data.augment import Augment, PadCrop, Resize
from frugalvit.data.batches import EvaluationBatches, TrainingBatches, read, telling_lost_workers
from frugalvit.data.numbered import NumberedBatches
from frugalvit.data.order import Order, Shuffled, epoch_batches
from frugalvit.data.preprocess import Preprocess
from frugalvit.errors import DataError

PREPROCESS = Preprocess(4, 6, (0.5,), (0.5,), crop=1.0)


class Spotted:
    """Seven gray pictures, each of its own brightness; the third cannot be read."""

    classes = ("a", "b")
    labels = np.array([0, 1, 0, 1, 0, 1, 1])

    def __len__(self) -> int:
        return 7

    def picture(self, index: int) -> Pillow.Image:
        if index == 2:
            raise DataError("broken", path=self.name(index))
        return Pillow.new("L", (6, 4), 10 * index)

    def name(self, index: int) -> str:
        return f"picture {index}"

    def fingerprint(self) -> str:
        return "0" * 16


def batches(unreadable: str = "replaced") -> TrainingBatches:
    return TrainingBatches(Spotted(), Augment((Resize(),)), Shuffled(), 3, 7, PREPROCESS, unreadable)


def test_an_unreadable_picture_is_replaced_by_the_next_with_its_own_label() -> None:
    batch = batches()[0]
    assert batch.bad == ("picture 2",)
    assert sorted(batch.index_B.tolist()) == [0, 1, 3, 3, 4, 5, 6]
    assert batch.image_BCHW.shape == (7, 1, 4, 6)
    for index, label, image_CHW in zip(batch.index_B.tolist(), batch.label_B.tolist(), batch.image_BCHW, strict=True):
        assert label == Spotted.labels[index]
        assert (image_CHW == 10 * index).all()


def test_an_unreadable_picture_ends_the_training_where_that_is_asked_for() -> None:
    with pytest.raises(DataError, match=r"picture 2: cannot be read, and the recipe refuses such pictures"):
        batches("refused")[0]


def test_a_source_without_any_readable_picture_is_refused() -> None:
    broken = Spotted()
    broken.picture = lambda index: Spotted.picture(broken, 2)  # type: ignore[method-assign]
    with pytest.raises(DataError, match="not one of the 7 pictures can be read"):
        TrainingBatches(broken, Augment((Resize(),)), Shuffled(), 3, 2, PREPROCESS)[0]


class Odd(Spotted):
    """The third picture opens, and its colors do not become gray; the fifth is too thin to be framed."""

    def picture(self, index: int) -> Pillow.Image:
        odd = {2: Pillow.new("LAB", (6, 4)), 4: Pillow.new("L", (1, 1 << 20), 40)}
        return odd[index] if index in odd else super().picture(index)


def test_a_picture_that_cannot_be_converted_is_replaced_as_one_that_cannot_be_read() -> None:
    odd, wanted = replace(batches(), source=Odd())[0], batches()[0]
    assert odd.bad == wanted.bad == ("picture 2",)
    assert odd.index_B.tolist() == wanted.index_B.tolist()
    assert (odd.image_BCHW == wanted.image_BCHW).all()
    with pytest.raises(DataError, match=r"picture 2: cannot be read, and the recipe refuses such pictures"):
        replace(batches("refused"), source=Odd())[0]


def test_a_picture_that_is_too_thin_is_replaced_or_named() -> None:
    thin = replace(batches(), source=Odd(), augment=Augment((PadCrop(0),)))[0]
    assert set(thin.bad) == {"picture 2", "picture 4"} and len(thin.index_B) == 7
    assert not {2, 4} & set(thin.index_B.tolist())
    one = replace(batches("refused"), source=Thin(), augment=Augment((PadCrop(0),)))
    with pytest.raises(DataError, match=r"picture 4: .* too thin to be resized"):
        one[0]


class Thin(Odd):
    def picture(self, index: int) -> Pillow.Image:
        return super().picture(index) if index == 4 else Pillow.new("L", (6, 4), 10 * index)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_ours_is_the_same_from_a_process_of_its_own(workers: int) -> None:
    with pytest.raises(DataError) as error:
        list(read(batches("refused"), range(1), workers))
    assert str(error.value) == "picture 2: cannot be read, and the recipe refuses such pictures (data.unreadable)."


def test_the_end_of_a_process_that_reads_is_told() -> None:
    with (
        pytest.raises(
            DataError, match=r"--workers: a process that reads pictures has ended \(.*killed by signal.*--resume goes on"
        ),
        telling_lost_workers(),
    ):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")
    with pytest.raises(RuntimeError, match="something else"), telling_lost_workers():
        raise RuntimeError("something else")


def test_evaluation_marks_pictures_that_cannot_be_converted_or_framed() -> None:
    (batch,) = read(EvaluationBatches(Odd(), 7, PREPROCESS), range(1), 0)
    assert batch.label_B.tolist() == [0, 1, -1, 1, -1, 1, 1]
    assert batch.bad == ("picture 2", "picture 4")
    assert not batch.image_BCHW[[2, 4]].any() and batch.image_BCHW[[1, 3, 5]].all()


ORDERED: Counter[int] = Counter()  # how often each epoch was ordered


@dataclass(frozen=True)
class Counted(Shuffled):
    def epoch_indices(self, labels: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        ORDERED[epoch] += 1
        return super().epoch_indices(labels, seed, epoch)


def in_order(order: Order) -> list[TrainingBatches | NumberedBatches]:
    """Two pictures a batch and three batches an epoch, as pictures and as numbers."""
    return [
        TrainingBatches(Spotted(), Augment((Resize(),)), order, 3, 2, PREPROCESS),
        NumberedBatches(Spotted.labels, order, 3, 2, np.array([0, 1, 3, 3, 4, 5, 6])),
    ]


@pytest.mark.parametrize("kind", [0, 1])
def test_an_epoch_is_ordered_once(kind: int) -> None:
    ORDERED.clear()
    reader = in_order(Counted())[kind]
    stand_ins = np.array([0, 1, 3, 3, 4, 5, 6])
    for epoch in (0, 1, 4):
        wanted = stand_ins[epoch_batches(Shuffled(), Spotted.labels, 3, epoch, 2)]
        assert [reader[3 * epoch + row].index_B.tolist() for row in range(3)] == wanted.tolist()
    assert ORDERED == {0: 1, 1: 1, 4: 1}
    other = replace(reader, seed=4)[12].index_B.tolist()
    assert other == stand_ins[epoch_batches(Shuffled(), Spotted.labels, 4, 4, 2)][0].tolist()


@pytest.mark.parametrize("kind", [0, 1])
def test_threads_at_different_epochs_share_a_reader(kind: int) -> None:
    reader, alone = (in_order(Shuffled())[kind] for _ in range(2))
    steps = [step for row in range(3) for step in range(row, 120, 3)] * 3
    with ThreadPoolExecutor(4) as pool:
        found = [batch.index_B.tolist() for batch in pool.map(reader.__getitem__, steps)]
    assert found == [alone[step].index_B.tolist() for step in steps]


@pytest.mark.parametrize("workers", [1, 2])
def test_batches_are_the_same_whoever_reads_them(workers: int) -> None:
    alone, helped = (list(read(batches(), range(3, 8), count)) for count in (0, workers))
    for one, two in zip(alone, helped, strict=True):
        assert (one.image_BCHW == two.image_BCHW).all()
        assert one.index_B.tolist() == two.index_B.tolist()


def test_evaluation_reads_every_picture_once_and_marks_the_unreadable() -> None:
    reader = EvaluationBatches(Spotted(), 3, PREPROCESS)
    found = list(read(reader, range(len(reader)), 0))
    assert [len(batch.label_B) for batch in found] == [3, 3, 1]
    assert [label for batch in found for label in batch.label_B.tolist()] == [0, 1, -1, 1, 0, 1, 1]
