"""Pictures listed in a CSV file."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frugalvit.data.files import Files, listed
from frugalvit.data.folder import SPLIT_OF
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.data.split import NoSplit, Picked, held_out, refuse_impossible_share
from frugalvit.errors import DataError, suggestion

LAYOUT = "a .csv file with the columns path and label (and split: train, val or test)"
COLUMNS = {"path": ("path", "file", "filename", "image"), "label": ("label", "class"), "split": ("split",)}


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    line: int
    path: str
    label: str
    split: str
    picture: str  # the file that the path leads to: that of x.png and ./x.png is one


@dataclass(frozen=True)
class LabelTable:
    """A CSV file: path (or file, filename, image), label (or class), optionally split. Paths are relative to its folder.

    Classes are the labels, sorted; as numbers where all are. Without rows for val, `holdout` of the training pictures,
    stratified by class, are kept for validation, each with all its rows: a picture may come twice, to weigh more.
    """

    holdout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_share(self.holdout, "holdout")

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        file = needs(root, LAYOUT)
        if file.is_dir():
            raise DataError(f"a folder. Give the file itself: {LAYOUT}.", path=str(file))
        rows = read(file)
        there = {row.split for row in rows}
        if split == "test" and "test" not in there:
            raise NoSplit("there is no split 'test'. Add rows whose split is test.", path=str(file))
        if "train" not in there and split != "test":
            raise NoSplit("no row is for training. Add rows whose split is train.", path=str(file))
        classes = in_order({row.label for row in rows})
        refuse_unseen_labels(rows, file)
        own = split if split in there else "train"
        labels = {name: index for index, name in enumerate(classes)}
        chosen = [row for row in rows if row.split == own]
        source = Files(file.parent, [row.path for row in chosen], [labels[row.label] for row in chosen], classes)
        if split == "test" or "val" in there:
            return source
        number_N = numbered(row.picture for row in chosen)
        once = Picked(source, np.unique(number_N, return_index=True)[1])
        part = held_out(once, split, self.holdout, self.seed, "add rows whose split is val")
        assert isinstance(part, Picked)
        return source if part is once else Picked(source, np.flatnonzero(np.isin(number_N, part.indices)))


def read(file: Path) -> list[Row]:
    """The rows, each checked; the first mistake is an error with its line."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.reader(stream)
            columns = found_columns(next(reader, []), file)
            folders: dict[str, str] = {}
            filled = (cells for cells in reader if any(cell.strip() for cell in cells))
            rows = [row_of(cells, columns, reader.line_num, file, folders) for cells in filled]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"not a CSV file that can be read ({error}). Save it as UTF-8 text.", path=str(file)) from error
    if not rows:
        raise DataError("no rows below the header. Add one a picture.", path=str(file))
    refuse_contradictions(rows, file)
    return rows


def found_columns(header: list[str], file: Path) -> dict[str, int]:
    names = [name.strip().lower() for name in header]
    found = {}
    for column, spellings in COLUMNS.items():
        there = [names.index(word) for word in spellings if word in names]
        if there:
            found[column] = there[0]
        elif column != "split" and len(header) == 1 and ";" in header[0]:
            raise DataError("its columns are separated by ';'. Use commas.", path=f"{file}:1")
        elif column != "split":
            raise DataError(
                f"no column {' or '.join(spellings)} in its header ({', '.join(header) or 'empty'}). Expected {LAYOUT}.",
                path=f"{file}:1",
            )
    return found


def row_of(cells: list[str], columns: dict[str, int], line: int, file: Path, folders: dict[str, str]) -> Row:
    place = f"{file}:{line}"
    values = {column: cells[index].strip() if index < len(cells) else "" for column, index in columns.items()}
    for column, value in values.items():
        if not value:
            raise DataError(f"the {column} is empty. Fill it in, or remove the line.", path=place)
    split = SPLIT_OF.get(values.get("split", "train").lower())
    if split is None:
        raise DataError(f"there is no split '{values['split']}'. {suggestion(values['split'], SPLIT_OF)}", path=place)
    picture = file.parent / values["path"]
    if not picture.is_file():
        raise DataError(f"there is no file {values['path']}. Paths are relative to {file.parent}.", path=place)
    return Row(line, values["path"], values["label"], split, resolved(picture, folders))


def resolved(path: Path, folders: dict[str, str]) -> str:
    """The file that a path leads to, through links too. `folders` keeps what was found for those, since files are many."""
    if path.is_symlink():
        return str(path.resolve())
    folder = str(path.parent)
    if folder not in folders:
        folders[folder] = str(path.parent.resolve())
    return os.path.join(folders[folder], path.name)  # noqa: PTH118 -- a million times, so no Path for each


def numbered(names: Iterable[str]) -> np.ndarray:
    """Numbers in the order in which names first come; equal ones where names are."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(name, len(numbers)) for name in names], dtype=np.int64)


def refuse_contradictions(rows: list[Row], file: Path) -> None:
    """A picture may come twice (to weigh more), but not in two splits or classes."""
    first: dict[str, Row] = {}
    for row in rows:
        earlier = first.setdefault(row.picture, row)
        if (earlier.label, earlier.split) != (row.label, row.split):
            spelled = "" if earlier.path == row.path else f", as {earlier.path}"
            raise DataError(
                f"{row.path} is {row.label} for {row.split} here, but {earlier.label} for {earlier.split} on line "
                f"{earlier.line}{spelled}. It is one picture: keep one of the two.",
                path=f"{file}:{row.line}",
            )


def refuse_unseen_labels(rows: list[Row], file: Path) -> None:
    trained = {row.label for row in rows if row.split == "train"}
    unseen = [row for row in rows if row.label not in trained]
    if trained and unseen:
        names = listed(in_order({row.label for row in unseen}))
        raise DataError(
            f"the label {unseen[0].label} of {unseen[0].split} never occurs in train (missing there: {names}). "
            "Add training rows for it, or correct the label.",
            path=f"{file}:{unseen[0].line}",
        )


def in_order(labels: set[str]) -> list[str]:
    """Sorted as numbers where all of them are, else as text."""
    if all(label.isdecimal() for label in labels):
        return sorted(labels, key=lambda label: (int(label), label))
    return sorted(labels)
