"""What scripts keep of their measurements: rows as JSON and a page of them, side by side."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frugalvit.report.files import in_turn, read_json, write_json, write_whole

Row = dict[str, Any]


@dataclass(frozen=True)
class Kept:
    """`name`.json and `name`.md in a folder. Rows of other calls stay, also of simultaneous calls; equal keys are replaced."""

    folder: Path
    name: str
    key: Callable[[Row], Hashable]
    page: Callable[[list[Row]], str]
    what: str = "rows"
    order: Callable[[Row], Any] = lambda row: 0  # by which rows are sorted; equal ones stay as they came

    @property
    def path(self) -> Path:
        return self.folder / f"{self.name}.json"

    def rows(self) -> list[Row]:
        return read_json(self.path)[self.what] if self.path.exists() else []

    def add(self, *new: Row) -> str:
        """Keep them; the page of all. Where no page can be made of a row, nothing changes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with in_turn(self.path):
            known = {self.key(row): row for row in [*self.rows(), *new]}
            rows = sorted(known.values(), key=self.order)
            text = self.page(rows)
            write_json(self.path, {self.what: rows})
            write_whole(self.path.with_suffix(".md"), text.encode())
        return text
