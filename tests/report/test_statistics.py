from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from frugalvit.errors import DataError
from frugalvit.report.statistics import Summary, mean, sample_deviation, standard_error, summarize

VALUES = [97.4, 96.8, 97.1, 97.0, 97.3]


def test_mean_deviation_and_error_agree_with_the_definitions() -> None:
    assert mean(VALUES) == pytest.approx(statistics.fmean(VALUES))
    assert sample_deviation(VALUES) == pytest.approx(np.std(VALUES, ddof=1))
    assert standard_error(VALUES) == pytest.approx(np.std(VALUES, ddof=1) / 5**0.5)
    assert summarize(VALUES).standard_error == pytest.approx(standard_error(VALUES))


def test_a_summary_reads_as_the_house_writes_results() -> None:
    assert str(summarize(VALUES)) == "97.1 ± 0.2 (n = 5)"
    assert summarize(VALUES).text(2) == "97.12 ± 0.24 (n = 5)"


def test_one_value_has_no_deviation() -> None:
    assert summarize([97.1]) == Summary(97.1, None, 1)
    assert str(summarize([97.1])) == "97.1 (n = 1)"
    assert summarize([97.1]).standard_error is None


def test_a_diverged_run_is_not_left_out() -> None:
    found = summarize([97.1, math.nan])
    assert math.isnan(found.mean) and str(found) == "nan ± nan (n = 2)"
    assert math.isnan(summarize([math.inf, -math.inf]).mean)


def test_no_values_are_refused() -> None:
    with pytest.raises(DataError, match="no values to summarize"):
        summarize([])
