"""Run folders as rows, and rows as Markdown, CSV, LaTeX or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from frugalvit.errors import DataError, join, suggestion
from frugalvit.report.files import number, plain, read_json
from frugalvit.report.record import ENVIRONMENT, RunFolder
from frugalvit.report.statistics import Summary, summarize

Row = dict[str, Any]

LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "×": r"$\times$"}
LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}


def run_rows(paths: Iterable[Path], columns: Sequence[str] = ()) -> list[Row]:
    """A row a run: its folder and the chosen columns, such as `summary.accuracy`, `recipe.seed`, `environment.commit`.

    What a run does not have yet is None; a column that none of them has is an error."""
    found = {path: leaves(run_data(path)) for path in paths}
    known = columns_of(list(found.values()))
    for column in columns:
        if found and column not in known:
            raise DataError(f"no run has '{column}'. {suggestion(column, known)}", path="columns")
    return [{"run": path.name} | {name: data.get(name) for name in columns or known} for path, data in found.items()]


def run_data(path: Path) -> dict[str, Any]:
    run = RunFolder(path)
    return {"recipe": run.recipe(), "environment": read_json(path / ENVIRONMENT), "summary": run.results()}


def leaves(data: Any, path: str = "") -> Row:
    """Every leaf of JSON under its path."""
    if isinstance(data, dict):
        return {name: one for key, value in data.items() for name, one in leaves(value, join(path, key)).items()}
    if isinstance(data, list):
        return {name: one for i, value in enumerate(data) for name, one in leaves(value, f"{path}[{i}]").items()}
    return {path: number(data)}


def grouped(rows: Sequence[Row], by: Sequence[str], over: Sequence[str]) -> list[Row]:
    """Rows that agree in `by` as one, with a Summary (mean, sd, n) for each column in `over`."""
    for name in over:
        for row in rows:
            if row.get(name) is None:
                raise DataError(
                    f"there is no '{name}' to average. Leave the run out, or finish it.", path=str(row.get("run", ""))
                )
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in by), []).append(row)
    return [
        dict(zip(by, key, strict=True)) | {name: summarize([row[name] for row in members]) for name in over}
        for key, members in groups.items()
    ]


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def as_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = columns_of(rows)
    lines = [columns, ["---"] * len(columns), *([cell(row.get(name)) for name in columns] for row in rows)]
    return "".join("| " + " | ".join(escaped(one) for one in line) + " |\n" for line in lines)


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Numbers in full; a Summary as its mean, with its sd and n in columns of their own."""
    spread = [{name: one for key, value in row.items() for name, one in spread_out(key, value).items()} for row in rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns_of(spread), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(spread)
    return text.getvalue()


def spread_out(name: str, value: Any) -> Row:
    if isinstance(value, Summary):
        return {name: value.mean, f"{name} sd": value.sd, f"{name} n": value.n}
    return {name: value}


def as_latex(rows: Sequence[Mapping[str, Any]]) -> str:
    """A tabular with booktabs rules."""
    columns = columns_of(rows)
    head = " & ".join(map(in_latex, columns))
    body = [" & ".join(in_latex(cell(row.get(name))) for name in columns) for row in rows]
    lines = [f"\\begin{{tabular}}{{{'l' * len(columns)}}}", r"\toprule", f"{head} \\\\", r"\midrule"]
    return "\n".join([*lines, *(f"{line} \\\\" for line in body), r"\bottomrule", r"\end{tabular}"]) + "\n"


def in_latex(text: str) -> str:
    return "".join(LATEX.get(sign, sign) for sign in text.replace("\n", " "))


def as_json(rows: Sequence[Mapping[str, Any]]) -> str:
    data = [{name: asdict(one) if isinstance(one, Summary) else one for name, one in row.items()} for row in rows]
    return json.dumps(plain(data), indent=2) + "\n"
