from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest

from frugalvit.errors import DataError
from frugalvit.report.record import RunFolder
from frugalvit.report.statistics import Summary
from frugalvit.report.table import as_csv, as_json, as_latex, as_markdown, grouped, run_rows

ROWS = [
    {"model": "deit_tiny|x", "accuracy": Summary(97.1, 0.3, 5), "share": 50},
    {"model": "100 %", "accuracy": Summary(math.nan, None, 1), "macs": 1 / 3},
]


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    for name, lr, seed, accuracy in (("a", 0.1, 0, 70.0), ("b", 0.1, 1, 72.0), ("c", 0.2, 0, math.nan), ("d", 0.2, 1, None)):
        with RunFolder.create(tmp_path / name, {"lr": lr, "seed": seed, "layers": [{"heads": 3}]}, {"commit": "f00"}) as run:
            if accuracy is not None:
                run.summary({"accuracy": accuracy})
    return sorted(tmp_path.iterdir())


def test_runs_become_rows_with_the_chosen_columns(runs: list[Path]) -> None:
    rows = run_rows(runs[:2], ["recipe.lr", "recipe.layers[0].heads", "environment.commit", "summary.accuracy"])
    assert list(rows[0].values()) == ["a", 0.1, 3, "f00", 70.0]
    assert list(run_rows(runs)[0]) == [
        "run",
        "recipe.lr",
        "recipe.seed",
        "recipe.layers[0].heads",
        "environment.commit",
        "summary.accuracy",
    ]
    assert run_rows(runs, ["summary.accuracy"])[3] == {"run": "d", "summary.accuracy": None}


def test_a_column_that_no_run_has_is_refused_with_the_nearest(runs: list[Path]) -> None:
    with pytest.raises(DataError, match=r"no run has 'summary\.acuracy'\. Did you mean 'summary\.accuracy'\?"):
        run_rows(runs, ["summary.acuracy"])


def test_seeds_are_averaged_and_neither_nan_nor_a_missing_run_is_hidden(runs: list[Path]) -> None:
    rows = run_rows(runs, ["recipe.lr", "summary.accuracy"])
    first, second = grouped(rows[:3], ["recipe.lr"], ["summary.accuracy"])
    assert str(first["summary.accuracy"]) == "71.0 ± 1.4 (n = 2)"
    assert str(second["summary.accuracy"]) == "nan (n = 1)"
    with pytest.raises(DataError, match=r"^d: there is no 'summary\.accuracy' to average"):
        grouped(rows, ["recipe.lr"], ["summary.accuracy"])


def test_markdown_keeps_its_columns() -> None:
    assert as_markdown(ROWS) == (
        "| model | accuracy | share | macs |\n"
        "| --- | --- | --- | --- |\n"
        "| deit_tiny\\|x | 97.1 ± 0.3 (n = 5) | 50 |  |\n"
        "| 100 % | nan (n = 1) |  | 0.3333 |\n"
    )


def test_latex_escapes_what_it_would_trip_over() -> None:
    text = as_latex(ROWS)
    assert r"deit\_tiny|x & 97.1 $\pm$ 0.3 (n = 5) & 50 &  \\" in text
    assert r"100 \% & nan (n = 1)" in text
    assert text.startswith("\\begin{tabular}{llll}\n\\toprule\n") and text.endswith("\\bottomrule\n\\end{tabular}\n")


def test_csv_and_json_keep_numbers_in_full() -> None:
    first, second = csv.DictReader(io.StringIO(as_csv(ROWS)))
    assert (first["accuracy"], first["accuracy sd"], first["accuracy n"]) == ("97.1", "0.3", "5")
    assert (second["accuracy"], second["accuracy sd"], float(second["macs"])) == ("nan", "", 1 / 3)
    data = json.loads(as_json(ROWS))
    assert data[0]["accuracy"] == {"mean": 97.1, "sd": 0.3, "n": 5}
    assert data[1]["accuracy"] == {"mean": "nan", "sd": None, "n": 1}
    assert data[1]["macs"] == 1 / 3


def test_no_rows_make_an_empty_table() -> None:
    assert run_rows([]) == [] and as_json([]) == "[]\n" and as_csv([]).strip() == ""
