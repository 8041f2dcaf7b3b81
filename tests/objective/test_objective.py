from __future__ import annotations

import math

import pytest
import torch

from frugalvit.data.batch import Batch
from frugalvit.errors import SpecError
from frugalvit.objective.loss import CrossEntropy, SigmoidCrossEntropy, WeightedCrossEntropy
from frugalvit.objective.objective import Objective, Supervised

COUNTS = torch.tensor([10, 30, 60])
LOGITS = torch.tensor([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])


def batch(labels: list[int], target: torch.Tensor | None = None) -> Batch:
    return Batch(torch.zeros(2, 3, 4, 5), torch.tensor(labels), torch.arange(2), target)


def log_softmax(row: list[float]) -> list[float]:
    total = math.log(sum(math.exp(v) for v in row))
    return [v - total for v in row]


def test_cross_entropy_is_its_equation_with_smoothing() -> None:
    found = CrossEntropy(0.3).build(COUNTS)(LOGITS, batch([1, 0]))
    expected = 0.0
    for row, label in zip(LOGITS.tolist(), [1, 0], strict=True):
        target = [0.1 + 0.7 * (k == label) for k in range(3)]
        expected -= sum(t * v for t, v in zip(target, log_softmax(row), strict=True)) / 2
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_soft_targets_are_used_where_there_are_any() -> None:
    target = torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.5, 0.5]])
    found = CrossEntropy().build(COUNTS)(LOGITS, batch([0, 0], target))
    rows = [log_softmax(row) for row in LOGITS.tolist()]
    expected = -sum(t * v for row, ts in zip(rows, target.tolist(), strict=True) for t, v in zip(ts, row, strict=True)) / 2
    assert found.item() == pytest.approx(expected, abs=1e-6)


def test_rare_classes_weigh_more() -> None:
    found = WeightedCrossEntropy().build(COUNTS)(LOGITS, batch([0, 2]))
    rows = [log_softmax(row) for row in LOGITS.tolist()]
    assert found.item() == pytest.approx(-(100 / 30 * rows[0][0] + 100 / 180 * rows[1][2]) / 2, abs=1e-6)


def test_smoothing_gives_a_rare_class_no_more_of_other_pictures_than_any_class() -> None:
    rows = [log_softmax(row) for row in LOGITS.tolist()]
    smooth = [[0.9 * (k == label) + 0.1 / 3 for k in range(3)] for label in (0, 2)]
    each = [-sum(t * v for t, v in zip(ts, row, strict=True)) for ts, row in zip(smooth, rows, strict=True)]
    found = WeightedCrossEntropy(0.1).build(COUNTS)(LOGITS, batch([0, 2]))
    assert found.item() == pytest.approx((100 / 30 * each[0] + 100 / 180 * each[1]) / 2, abs=1e-6)
    target = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])  # a mixed picture counts by its shares
    mixed = -sum((0.9 * t + 0.1 / 3) * v for t, v in zip(target[0].tolist(), rows[0], strict=True))
    weight = 0.25 * 100 / 30 + 0.75 * 100 / (3 * COUNTS[1].item())
    found = WeightedCrossEntropy(0.1).build(COUNTS)(LOGITS, batch([0, 2], target))
    assert found.item() == pytest.approx((weight * mixed + 100 / 180 * each[1]) / 2, abs=1e-6)


@pytest.mark.parametrize("target", [None, torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.5, 0.5]])], ids=["labels", "targets"])
def test_sigmoid_cross_entropy_is_its_equation(target: torch.Tensor | None) -> None:
    found = SigmoidCrossEntropy().build(COUNTS)(LOGITS, batch([1, 0], target))
    rows = target.tolist() if target is not None else [[0, 1, 0], [1, 0, 0]]
    expected = 0.0
    for logits, wanted in zip(LOGITS.tolist(), rows, strict=True):
        for z, t in zip(logits, wanted, strict=True):
            yes = 1 / (1 + math.exp(-z))
            expected -= (t * math.log(yes) + (1 - t) * math.log(1 - yes)) / 2  # summed over classes, mean over the batch
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_terms_are_named_weighted_and_checked_against_the_heads() -> None:
    objective = Objective((Supervised("class", weight=0.5), Supervised("distill", CrossEntropy(0.1), 2.0)))
    built = objective.build(("class", "distill"), COUNTS)
    found = built({"class": LOGITS, "distill": LOGITS}, batch([1, 2]))
    assert list(found) == ["supervised_class", "supervised_distill"]
    plain = CrossEntropy().build(COUNTS)(LOGITS, batch([1, 2]))
    torch.testing.assert_close(found["supervised_class"], 0.5 * plain)
    with pytest.raises(SpecError, match=r"objective\.terms\[1\]\.head: the model has no head 'distill'. There is: class"):
        objective.build(("class",), COUNTS)
    with pytest.raises(SpecError, match="Give at least one"):
        Objective((Supervised(), Supervised())).build(("class",), COUNTS)
    with pytest.raises(SpecError, match="smoothing: a smoothing of 1"):
        CrossEntropy(1.0)
