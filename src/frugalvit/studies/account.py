"""What the trainings of a ledger recorded on their way, and where their time went."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from frugalvit.report.record import RunFolder
from frugalvit.report.table import as_markdown
from frugalvit.studies.ledger import Entry, Ledger

SHARED = (
    "On CUDA the seeds of a training share the device, and other trainings may have used it at the same time; those that went "
    "on in a later call compiled twice. So these rows tell what was spent, not which training is faster."
)
TIMES = ("steps", "first", "images_per_second", "waiting")


def write_logs(ledger: Ledger, folder: Path, kept: Sequence[str]) -> None:
    """A file a run, a line a record: those numbers of it that are kept, to five digits. Logs of runs that are gone stay."""
    for entry in ledger.entries.values():
        run = Path(entry.folder)
        if not (entry.folder and (run / "recipe.json").exists()):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{run.parent.name}-{run.name}.jsonl").open("w", encoding="utf-8") as file:
            for record in RunFolder(run).metrics():
                line = {name: rounded(record[name]) for name in kept if name in record}
                file.write(json.dumps({"run": f"{run.parent.name}/{run.name}", **line}) + "\n")


def rounded(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def time_page(ledger: Ledger) -> str:
    """Markdown, a row a training: the means over its seeds."""
    groups: dict[str, list[Entry]] = {}
    for entry in ledger.entries.values():
        if entry.folder:
            groups.setdefault(entry.key, []).append(entry)
    return f"## Time\n\n{SHARED}\n\n{as_markdown([time_row(entries) for entries in groups.values()])}"


def time_row(entries: list[Entry]) -> dict[str, Any]:
    """Of a training that went on in another call, the entries have that call's seconds and the results all steps'."""
    longest = max(max(one.seconds, one.results["time_steps"] + one.results["time_first"]) for one in entries)
    mean = {name: statistics.mean(one.results[f"time_{name}"] for one in entries) for name in TIMES}
    where = [one.where or {} for one in entries]
    return {
        "training": entries[0].name,
        "seeds": ", ".join(str(one.seed) for one in entries),
        "seconds, all seeds": f"{longest:.0f}",
        "of steps": f"{mean['steps']:.0f}",
        "of compiling": f"{mean['first']:.0f}",
        "images/s each": f"{mean['images_per_second']:,.0f}",
        "waiting": f"{mean['waiting']:.1%}",
        "not finite": f"{sum(one.results.get('nonfinite', 0) for one in entries):.0f}",
        **{name: ", ".join(dict.fromkeys(one.get(name, "") for one in where)) for name in ("device", "torch", "commit")},
    }
