"""What `bench --packed` found, as text and as Markdown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from frugalvit.cli.bench_page import digits

LEAST = 0.01  # of the time; shorter steps are shown together


def table(found: dict[str, Any]) -> list[list[str]]:
    """Titles and cells."""
    packed = [row["what"] for row in found["rows"] if not row["over"]]
    titles = ["", "ms", "fastest", *(f"× {way.removeprefix('packed, ')}" for way in packed)]
    lines = [titles]
    for row in found["rows"]:
        ratios = [digits(row["over"][way]) if row["over"] else "" for way in packed]
        lines.append([row["what"], digits(row["ms"]), digits(row["fastest_ms"]), *ratios])
    return lines


def long_steps(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that take long, and the others as one."""
    shown, rest = ([row for row in found["steps"] if (row["share"] >= LEAST) is long] for long in (True, False))
    together = {name: sum(row[name] for row in rest) for name in ("ms", "share")}
    return [*shown, {"step": f"{len(rest)} others", **together}] if rest else shown


def where(found: dict[str, Any]) -> str:
    held, threads = found["memory_bytes"], found["threads"]
    memory = "" if held is None else f", {held / 1e6:.1f} MB of memory"
    return (
        f"{found['environment']['device_name']}, {threads} thread{'s' if threads > 1 else ''}, {found['kernels']} kernels, "
        f"batch {found['batch']}; file of {found['file_bytes'] / 1e6:.2f} MB{memory}"
    )


def text(found: dict[str, Any]) -> list[str]:
    lines = table(found)
    first, *others = (max(len(line[place]) for line in lines) for place in range(len(lines[0])))
    shown = [f"{found['name']}  {where(found)}"]
    for name, *cells in lines:
        right = (cell.rjust(width) for cell, width in zip(cells, others, strict=True))
        shown.append("  ".join([name.ljust(first), *right]))
    shown += [f"{name}: {why}" for name, why in found["missing"].items()]
    shown += [f"milliseconds of all threads together, by step, of {found['steps_of']}:"]
    shown += [f"{row['ms']:9.3f}  {row['share']:4.0%}  {row['step']}" for row in long_steps(found)]
    return [*(line.rstrip() for line in shown), *found["notes"]]


def write(out: Path, found: dict[str, Any]) -> None:
    from frugalvit.report.files import write_json, write_whole

    if out.suffix == ".json":
        write_json(out, found)
        return
    titles, *lines = table(found)
    rule = ["---", *["---:"] * (len(titles) - 1)]
    env = found["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in env["packages"].items() if version)
    page = [
        f"# {found['name']}, packed",
        "",
        f"`frugalvit bench --packed {found['file']}`: {where(found)}. {versions}, commit {env['commit'] or 'unknown'}. "
        f"Medians of {len(found['rows'][0]['rounds_ms'])} rounds in turns; × is how many times as fast the packed model is.",
        "",
        *(f"| {' | '.join(cells)} |" for cells in (titles, rule, *lines)),
        "",
        *([*(f"- {name}: {why}" for name, why in found["missing"].items()), ""] if found["missing"] else []),
        f"The steps are those of {found['steps_of']}.",
        "",
        "| step | ms of all threads | share |",
        "|---|---:|---:|",
        *(f"| {row['step']} | {row['ms']:.3f} | {row['share']:.0%} |" for row in long_steps(found)),
        "",
        *found["notes"],
    ]
    write_whole(out, ("\n".join(page) + "\n").encode())
