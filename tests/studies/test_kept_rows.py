"""What scripts keep: rows of other calls stay, and a row of which no page can be made changes nothing."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmarks import distill_throughput
from benchmarks.kept import Kept, Row


def page(rows: list[Row]) -> str:
    return "".join(f"{row['name']} {row['value']}\n" for row in rows)


def test_calls_at_the_same_time_keep_each_others_rows(tmp_path: Path) -> None:
    def call(number: int) -> None:
        Kept(tmp_path / "results", "found", lambda row: row["name"], page).add({"name": number % 8, "value": number})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(8)))
    call(11)  # replaces the row of call 3
    rows = json.loads((tmp_path / "results" / "found.json").read_text())["rows"]
    assert {row["name"]: row["value"] for row in rows} == {number: 11 if number == 3 else number for number in range(8)}
    assert sorted((tmp_path / "results" / "found.md").read_text().split()[1::2], key=int) == [*"0124567", "11"]


def test_a_row_without_a_page_changes_nothing(tmp_path: Path) -> None:
    kept = Kept(tmp_path, "found", lambda row: row["name"], page)
    kept.add({"name": "first", "value": 1})
    with pytest.raises(KeyError):
        kept.add({"name": "second"})
    assert kept.rows() == [{"name": "first", "value": 1}]


@pytest.mark.parametrize("item", ["resnet50", "resnet50:128", "resnet50:many:whole", "resnet50:128:half:whole"])
def test_an_odd_item_of_the_throughput_is_told(
    item: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["distill_throughput.py", item, "--device", "cpu"])
    with pytest.raises(SystemExit):
        distill_throughput.main()
    assert "say TEACHER:BATCH:COMPILED" in capsys.readouterr().err
