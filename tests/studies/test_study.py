"""Tables of values by row, column and seed: what they say, and which orderings of a paper they bear out."""

from __future__ import annotations

import math

import pytest

from frugalvit.errors import SpecError
from frugalvit.studies.study import Claim, Study, Verdict

TOP1 = "top-1"
HARD, SOFT = ("hard", TOP1), ("soft", TOP1)
CLAIM = Claim("hard above soft", HARD, SOFT, "+2.1")


def study(hard: dict[int, float], soft: dict[int, float]) -> Study:
    return Study(
        title="Ways",
        about="Top-1.",
        rows=("soft", "hard", "token"),
        columns=(TOP1,),
        values={HARD: hard, SOFT: soft},
        claims=(CLAIM,),
        beside={"paper": {"soft": 72.0, "hard": 74.3}},
        notes=("a note",),
    )


def verdict(hard: dict[int, float], soft: dict[int, float]) -> Verdict:
    (found,) = study(hard, soft).verdicts()
    return found


def test_a_table_has_mean_deviation_and_the_papers_figures() -> None:
    made = study({0: 71.0, 1: 73.0, 2: 72.0}, {0: 70.0, 1: 70.5, 2: 71.0})
    assert made.table() == [
        {"": "soft", TOP1: "70.50 ± 0.50", "paper": "72.0"},
        {"": "hard", TOP1: "72.00 ± 1.00", "paper": "74.3"},
        {"": "token", TOP1: "", "paper": ""},
    ]
    assert "n = 3 in every cell" in made.markdown()


def test_n_is_in_the_cells_where_they_differ_in_it() -> None:
    made = study({0: 71.0, 1: 73.0}, {0: 70.0})
    assert [row[TOP1] for row in made.table()] == ["70.00 (n = 1)", "72.00 ± 1.41 (n = 2)", ""]
    assert made.n is None and "in every cell" not in made.markdown()


def test_a_difference_is_taken_seed_by_seed() -> None:
    found = verdict({0: 71.0, 1: 73.0, 2: 75.0, 5: 0.0}, {2: 74.0, 1: 72.1, 0: 69.9, 7: 99.0})
    differences = (1.1, 0.9, 1.0)
    assert found.difference is not None and found.difference.n == 3
    assert found.difference.mean == pytest.approx(1.0)
    deviation = math.sqrt(sum((one - 1.0) ** 2 for one in differences) / 2)
    assert found.difference.standard_error == pytest.approx(deviation / math.sqrt(3))
    assert found.text(2) == "hard above soft: holds, +1.00 ± 0.06 (standard error, n = 3); the paper +2.1"


def test_a_verdict_needs_more_than_the_95_percent_interval() -> None:
    """Of three seeds the interval is ± 4.30 standard errors: differences 0.5, 1.0, 1.5 are 1.0 ± 0.289, so 3.46 of them."""
    base = dict.fromkeys(range(5), 0.0)
    assert verdict({0: 0.5, 1: 1.0, 2: 1.5}, base).word == "undecided"
    assert verdict({0: 0.7, 1: 1.0, 2: 1.3}, base).word == "holds"  # 1.0 ± 0.173: 5.77 of them
    assert verdict({0: -0.7, 1: -1.0, 2: -1.3}, base).word == "does not hold"
    assert verdict({0: 0.5, 1: 1.0, 2: 1.5, 3: 0.5, 4: 1.5}, base).word == "holds"  # more seeds tell more
    assert verdict({0: 9.0}, base).word == "undecided"
    assert verdict({0: 1.0, 1: math.nan}, base).word == "undecided"
    assert verdict({}, base).word == "not measured"
    assert verdict({}, base).text(2) == "hard above soft: not measured; the paper +2.1"


def test_json_has_every_value() -> None:
    plain = study({0: 71.0, 1: 73.0}, {0: 70.0}).plain()
    assert plain["cells"] == [
        {"row": "hard", "column": TOP1, "values": {"0": 71.0, "1": 73.0}},
        {"row": "soft", "column": TOP1, "values": {"0": 70.0}},
    ]
    assert plain["claims"] == [{"text": "hard above soft: undecided, +1.00 (n = 1); the paper +2.1", "verdict": "undecided"}]


def test_a_claim_about_a_row_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match=r"^hard above soft: no row is called 'soft'\. There is: hard\."):
        Study("", "", ("hard",), (TOP1,), {}, claims=(CLAIM,))
    with pytest.raises(SpecError, match="no column is called 'top-1'"):
        Study("", "", ("hard", "soft"), ("loss",), {}, claims=(CLAIM,))
