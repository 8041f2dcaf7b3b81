from __future__ import annotations

from pathlib import Path

import pytest

from frugalvit.report.record import RunFolder
from frugalvit.studies.account import time_page
from frugalvit.studies.ledger import Entry, Ledger
from frugalvit.studies.timing import time_split


def test_what_the_first_record_took_beyond_the_usual_pace_is_told_apart(tmp_path: Path) -> None:
    """40 pictures a step, 10 steps a record: 30 s with compiling, then 2 s, 2 s, 4 s and 2 s; half as many steps at the end."""
    seconds = {10: 30.0, 20: 2.0, 30: 2.0, 40: 4.0, 50: 2.0, 55: 1.0}
    recipe = {"batch": 20, "accumulate": 2}
    with RunFolder.create(tmp_path / "run", recipe, {}) as run:
        for step, spent in seconds.items():
            count = 5 if step == 55 else 10
            run.append({"step": step, "time_images_per_second": 40 * count / spent, "time_waiting": step / 100})
    found = time_split(tmp_path / "run")
    assert found.images_per_second == pytest.approx(200)
    assert found.first == pytest.approx(28)
    assert found.steps == pytest.approx(13)
    assert found.total == pytest.approx(sum(seconds.values()))
    assert found.waiting == pytest.approx(0.35)


def test_a_training_that_went_on_in_a_later_call_is_told_with_the_seconds_of_all_its_steps(tmp_path: Path) -> None:
    """Seeds at once, of 30 s each, the last call being of 8 s; and one after the other, of 30 s in a call of 60 s."""
    times = {"time_steps": 25.0, "time_first": 5.0, "time_images_per_second": 100.0, "time_waiting": 0.0}
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.add(Entry(name, name, seed, times, "runs", seconds=spent) for name, spent in LATER.items() for seed in (0, 1))
    rows = [row.split(" | ")[:3] for row in time_page(ledger).splitlines() if "0, 1" in row]
    assert rows == [["| at once", "0, 1", "30"], ["| in turn", "0, 1", "60"]]


def test_seeds_of_two_commits_are_told_with_both(tmp_path: Path) -> None:
    times = {"time_steps": 25.0, "time_first": 5.0, "time_images_per_second": 100.0, "time_waiting": 0.0}
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.add(
        Entry("one", "one", seed, times, "runs", where={"commit": commit}) for seed, commit in enumerate(("a1", "b2", "a1"))
    )
    assert time_page(ledger).splitlines()[-1].endswith("| a1, b2 |")


LATER = {"at once": 8.0, "in turn": 60.0}
