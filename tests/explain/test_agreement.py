from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from frugalvit.errors import DataError
from frugalvit.explain.agreement import Disagreement, disagreement, places_of, together
from frugalvit.report.table import as_markdown

TRUTH = [0, 1, 2, 2, 1, 0, 0, 1]
TEACHER = [0, 1, 2, 1, 1, 2, 0, 1]  # differs from the truth in pictures 3 and 5
STUDENT = [0, 2, 2, 1, 1, 0, 0, 1]  # from the truth in 1 and 3, from the teacher in 1 and 5
OTHER = [1, 1, 2, 1, 0, 2, 0, 1]  # from the truth in 0, 3, 4, 5; from the teacher in 0, 4; from the student in 0, 1, 4, 5


def test_the_matrix_is_the_one_counted_by_hand() -> None:
    found = disagreement(
        {"truth": np.array(TRUTH), "teacher": torch.tensor(TEACHER), "student": STUDENT, "other": torch.tensor(OTHER).int()}
    )
    assert found.names == ("truth", "teacher", "student", "other")
    assert found.pictures == 8
    eighths = [[8 * share for share in row] for row in found.shares]
    assert eighths == [[0, 2, 2, 4], [2, 0, 2, 2], [2, 2, 0, 4], [4, 2, 4, 0]]
    assert found.between("other", "teacher") == 0.25


def test_a_classifier_differs_from_the_truth_by_its_error() -> None:
    draw = np.random.default_rng(0)
    labels_N, guess_N = draw.integers(0, 5, (2, 300))
    assert disagreement({"a": labels_N, "b": guess_N}).between("a", "b") == 1 - np.mean(labels_N == guess_N)


def test_pictures_without_a_class_are_left_out_everywhere() -> None:
    unreadable = [0, -1, 2, 2, 1, 0, -1, 1]
    found = disagreement({"truth": unreadable, "teacher": TEACHER, "student": STUDENT})
    assert found.pictures == 6
    assert found.shares == ((0, 2 / 6, 1 / 6), (2 / 6, 0, 1 / 6), (1 / 6, 1 / 6, 0))


def test_standard_errors_are_binomial() -> None:
    found = disagreement({"truth": TRUTH, "teacher": TEACHER})
    assert found.standard_errors[0][1] == pytest.approx(math.sqrt(0.25 * 0.75 / 8))
    assert found.standard_errors[0][0] == 0
    assert Disagreement(("a", "b"), ((0.0, 0.171), (0.171, 0.0)), 50_000).note() == (
        "Share of n = 50000 pictures on which two differ; binomial standard errors up to 0.0017."
    )


def test_it_is_printed_as_in_the_paper() -> None:
    assert as_markdown(disagreement({"ground truth": TRUTH, "convnet": TEACHER}).rows()) == (
        "|  | ground truth | convnet |\n| --- | --- | --- |\n| ground truth | 0.000 | 0.250 |\n| convnet | 0.250 | 0.000 |\n"
    )
    plain = disagreement({"a": TRUTH, "b": TEACHER}).plain()
    assert plain["disagreement"] == [[0.0, 0.25], [0.25, 0.0]]
    assert (plain["names"], plain["pictures"]) == (["a", "b"], 8)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(DataError, match="no classifier"):
        disagreement({})
    with pytest.raises(DataError, match=r"different numbers of pictures: a 8, b 7\."):
        disagreement({"a": TRUTH, "b": TEACHER[:7]})
    with pytest.raises(DataError, match=r"^b: float32 of shape \(8,\)"):
        disagreement({"a": TRUTH, "b": torch.zeros(8)})
    with pytest.raises(DataError, match=r"^b: int64 of shape \(2, 4\)"):
        disagreement({"a": TRUTH, "b": torch.tensor(TEACHER).view(2, 4)})
    with pytest.raises(DataError, match="no picture that all have a class for"):
        disagreement({"a": [-1, 0], "b": [0, -1]})


def test_another_order_of_classes_is_put_right_by_name() -> None:
    places = places_of(("cat", "ant", "dog"), ("ant", "cat", "dog"))
    assert places[np.array([0, 1, 1, 2])].tolist() == [1, 0, 0, 2]
    assert places_of(("a", "a", "b"), ("a", "a", "b")).tolist() == [0, 1, 2]


def test_other_classes_are_refused() -> None:
    with pytest.raises(DataError, match="2 classes against 3"):
        places_of(("a", "b"), ("a", "b", "c"))
    with pytest.raises(DataError, match="'c' is a class of one side only"):
        places_of(("b", "d"), ("c", "b"))
    with pytest.raises(DataError, match="two classes are called 'a'"):
        places_of(("a", "a", "b"), ("b", "a", "a"))


def test_two_heads_are_called_both_and_more_all() -> None:
    assert together({"class": TRUTH, "distill": OTHER}) == "both"
    assert together(("class", "distill", "more")) == "all heads"
