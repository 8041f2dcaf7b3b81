"""How bench shows what it measures: a line while it does, then a table, as JSON, or as a page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frugalvit.cli.console import stderr

if TYPE_CHECKING:
    from frugalvit.measure.latency import Speed

Row = dict[str, Any]


class Line:
    """One line that changes on a terminal; elsewhere a line for each thing that was measured."""

    def __init__(self, quiet: bool):
        self.quiet = quiet

    def say(self, text: str) -> None:
        if not self.quiet and stderr.is_terminal:
            stderr.print(f"{text} ...".ljust(stderr.width - 1)[: stderr.width - 1], end="\r", markup=False)

    def follow(self, what: str, speeds: Iterator[Speed]) -> Speed:
        """The last of them."""
        self.say(f"{what}: first step")
        found = None
        for found in speeds:
            self.say(f"{what}, batch {found.batch}: round {len(found.rounds)}, {found.images_per_second:,.0f} images/s")
        assert found is not None
        if not self.quiet and not stderr.is_terminal:
            stderr.print(f"{what}, batch {found.batch}: {found.images_per_second:,.0f} images/s", markup=False)
        return found

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.quiet and stderr.is_terminal:
            stderr.print(" " * (stderr.width - 1), end="\r")


def row(speed: Speed) -> Row:
    """A measurement as JSON."""
    import statistics

    return {
        "what": speed.what,
        "batch": speed.batch,
        "images_per_second": speed.images_per_second,
        "ms": 1e3 * speed.seconds,
        "ms_p10": 1e3 * speed.quantile(0.1),
        "ms_p90": 1e3 * speed.quantile(0.9),
        "rounds": len(speed.rounds),
        "steps": speed.calls,
        "waiting": statistics.median(speed.waiting) if speed.waiting else None,
        "peak_memory_bytes": speed.memory,
        "first_step_s": speed.first,
    }


def cells(one: Row) -> dict[str, str]:
    """A row as a reader wants it; what was not measured is left empty."""
    texts = {
        "": one["what"],
        "batch": str(one["batch"]),
        "images/s": digits(one["images_per_second"]),
        "ms (p10 to p90)": f"{digits(one['ms'])} ({digits(one['ms_p10'])} to {digits(one['ms_p90'])})",
    }
    optional = {
        "of peak": ("share_of_peak", lambda share: f"{share:.1%}"),
        "memory": ("peak_memory_bytes", lambda held: f"{held / 2**30:.2f} GiB"),
        "1st step": ("first_step_s", lambda first: f"{first:.2f} s"),
    }
    for title, (key, text) in optional.items():
        texts[title] = "" if one.get(key) is None else text(one[key])
    return texts


def digits(value: float) -> str:
    """Three of them at least."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def columns(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Titles and cells, without columns that are empty in every row."""
    shown = [cells(one) for one in rows]
    titles = [title for title in shown[0] if any(one[title] for one in shown)]
    return titles, [[one[title] for title in titles] for one in shown]


def table(rows: list[Row]) -> Any:
    from rich.table import Table

    titles, lines = columns(rows)
    found = Table(box=None, pad_edge=False)
    for title in titles:
        found.add_column(title, justify="right" if title else "left")
    for line in lines:
        found.add_row(*line)
    return found


def where(found: dict[str, Any]) -> str:
    env, compiled = found["environment"], ", compiled" if found.get("compiled") else ""
    threads = f", {env['threads']} thread{'s' if env['threads'] > 1 else ''}" if env["device"] == "cpu" else ""
    path = f", path={found['path']}" if "path" in found else ""
    torch = f"torch {env['packages']['torch']}"
    return f"{env['device_name']} ({env['device']}{threads}), {env['precision']}{compiled}{path}, {torch}"


def write(out: Path, found: dict[str, Any]) -> None:
    from frugalvit.report.files import write_json, write_whole

    if out.suffix == ".json":
        write_json(out, found)
        return
    titles, lines = columns(found["rows"])
    env = found["environment"]
    described = " ".join([found["name"], *found["overrides"]])
    rule = ["---", *["---:"] * (len(titles) - 1)]
    text = [
        f"# {described}",
        "",
        f"`{shlex.join(env['command'])}`: {where(found)}, commit {env['commit'] or 'unknown'}. "
        f"Medians of {found['rows'][0]['rounds']} rounds.",
        "",
        *(f"| {' | '.join(cells)} |" for cells in (titles, rule, *lines)),
        "",
        *found["notes"],
    ]
    write_whole(out, ("\n".join(text) + "\n").encode())
