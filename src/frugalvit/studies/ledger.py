"""What a study has measured, in a JSON file: each entry by a key, which says what it is of, and a seed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from frugalvit.errors import DataError
from frugalvit.report.files import in_turn, number, read_json, write_json, writing


@dataclass(frozen=True)
class Entry:
    """One measurement. `seconds` are those of all seeds that were measured together."""

    name: str
    key: str
    seed: int
    results: Mapping[str, float]
    folder: str = ""  # of its run
    teacher: str = ""  # the fingerprint of who taught
    seconds: float = 0.0
    where: Mapping[str, str] | None = None  # device, torch, commit
    by_path: str = ""  # the key with a teacher's path instead of its weights; empty: it is the key itself
    weights: str = ""  # a digest of the classifier that it made


class Ledger:
    """The entries of a file, which is written whole whenever some are added; a missing file holds none."""

    def __init__(self, path: Path):
        self.path = path
        self.entries = self.found()

    def found(self) -> dict[tuple[str, int], Entry]:
        given = read_json(self.path).get("entries", ()) if self.path.exists() else ()
        return {(one.key, one.seed): one for one in (read_entry(each, self.path) for each in given)}

    def find(self, key: str, seed: int) -> Entry | None:
        return self.entries.get((key, seed))

    def find_by_path(self, by_path: str, seed: int) -> Entry | None:
        """The last whose teacher lay at that path, whatever it was."""
        found = [one for one in self.entries.values() if one.seed == seed and (one.by_path or one.key) == by_path]
        return found[-1] if found else None

    def made_in(self, folder: Path) -> Entry | None:
        """The last whose run was in that folder, which may be gone."""
        found = [one for one in self.entries.values() if one.folder and Path(one.folder) == folder]
        return found[-1] if found else None

    def add(self, entries: Iterable[Entry]) -> None:
        """An entry that was there makes way for the new one, at the end.

        What other processes write meanwhile stays: each waits for its turn.
        """
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with in_turn(self.path):
            new = {(one.key, one.seed): one for one in entries}
            before = self.entries | self.found()
            self.entries = {place: one for place, one in before.items() if place not in new} | new
            write_json(self.path, {"entries": [asdict(one) for one in self.entries.values()]})


def read_entry(found: Any, path: Path) -> Entry:
    try:
        known = {one.name for one in fields(Entry)}
        entry = Entry(**{name: value for name, value in found.items() if name in known})
        results = {str(name): float(number(value)) for name, value in entry.results.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"holds an entry that is none ({error}). Remove it, or use another file.", path=str(path)) from error
    return Entry(**(asdict(entry) | {"results": results}))


def key_of(*described: Any) -> str:
    """Sixteen hexadecimal digits of anything that JSON can hold."""
    return hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=8).hexdigest()
