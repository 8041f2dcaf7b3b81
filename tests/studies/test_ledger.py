"""Measurements in a file: found by key and seed, replaced, and refused where they are none."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from frugalvit.errors import DataError
from frugalvit.studies.ledger import Entry, Ledger, key_of

ENTRY = Entry("hard", "0123", 1, {"val_top1": 71.25}, "runs/hard/seed-1", "feed", 12.5, {"device": "a GPU"})


def test_what_was_added_is_found_by_key_and_seed_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "study.json"
    Ledger(path).add([ENTRY, replace(ENTRY, seed=2, results={"val_top1": math.inf})])
    again = Ledger(path)
    assert again.find("0123", 1) == ENTRY
    assert again.find("0123", 2) == replace(ENTRY, seed=2, results={"val_top1": math.inf})
    assert again.find("0123", 3) is None and again.find("4567", 1) is None


def test_two_processes_that_write_in_turns_lose_nothing(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path / "ledger.json"), Ledger(tmp_path / "ledger.json")
    first.add([ENTRY])
    second.add([replace(ENTRY, seed=2)])
    assert len(Ledger(tmp_path / "ledger.json").entries) == 2 == len(second.entries)


WRITER = """
import sys
from pathlib import Path
from frugalvit.studies.ledger import Entry, Ledger

ledger = Ledger(Path(sys.argv[1]))
print("ready", flush=True)
input()
for seed in range(20):
    ledger.add([Entry("hard", sys.argv[2], seed, {"val_top1": 71.25})])
"""


def test_processes_that_write_at_the_same_moment_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    commands = [[sys.executable, "-c", WRITER, str(path), key] for key in ("a", "b", "c")]
    writers = [subprocess.Popen(one, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for one in commands]
    for one in writers:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in writers:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    for one in writers:
        one.communicate(timeout=60)
        assert one.returncode == 0
    assert sorted(Ledger(path).entries) == [(key, seed) for key in "abc" for seed in range(20)]


def test_a_ledger_that_cannot_be_written_says_so_with_a_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"study\.json: cannot be written .* choose another --out"):
        Ledger(tmp_path / "file" / "study.json").add([ENTRY])


def test_an_entry_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "study.json")
    ledger.add([ENTRY])
    ledger.add([replace(ENTRY, results={"val_top1": 80.0})])
    assert [one.results for one in Ledger(ledger.path).entries.values()] == [{"val_top1": 80.0}]


def test_the_last_entry_is_found_by_the_path_of_its_teacher_and_by_its_folder(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "study.json")
    old, new = replace(ENTRY, by_path="path"), replace(ENTRY, key="4567", by_path="path", folder="runs/token/seed-1")
    plain = replace(ENTRY, key="89ab", by_path="", seed=2)
    ledger.add([old, new, plain])
    assert ledger.find_by_path("path", 1) == new and ledger.find_by_path("path", 2) is None
    assert ledger.find_by_path("89ab", 2) == plain  # nobody taught it
    ledger.add([old])  # again
    again = Ledger(ledger.path)
    assert again.find_by_path("path", 1) == old == again.made_in(Path("runs/hard/seed-1"))
    assert again.made_in(Path("runs/token/seed-1")) == new and again.made_in(Path("runs/soft/seed-1")) is None


@pytest.mark.parametrize("found", ["a word", {"name": "hard"}, {"name": "a", "key": "b", "seed": 0, "results": {"top1": "x"}}])
def test_a_file_with_something_else_in_it_is_refused(found: object, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps({"entries": [found]}))
    with pytest.raises(DataError, match=r"study\.json: holds an entry that is none"):
        Ledger(tmp_path / "study.json")


def test_a_key_does_not_depend_on_the_order_of_fields() -> None:
    assert key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    assert len({key_of({"a": 1}), key_of({"a": 2}), key_of({"a": 1}, 0), key_of([{"a": 1}])}) == 4
