"""How `small.best_cifar10` was chosen: candidates on 45,000 training pictures, measured on the 5,000 held out, never on test.

    python benchmarks/search_small.py --data CIFAR --passes 60 [NAME ...] [--together 4] [--out docs/results]

A candidate is the recipe with some overrides (CANDIDATES, or `--candidate name=a=1,b=2`). `--together` of them train at the
same time in this process. Rows of earlier calls stay, so that the page shows the whole search, failures too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

import frugalvit
from frugalvit.beginning import opened
from frugalvit.report.environment import short_commit
from frugalvit.seeds import at_once

CANDIDATES: dict[str, tuple[str, ...]] = {
    "start": (),
    "adamw": ("optimizer=adamw", "lr=1e-3"),
    "lr 1e-3": ("lr=1e-3",),
    "lr 4e-3": ("lr=4e-3",),
    "batch 128": ("batch=128",),
    "batch 512": ("batch=512", "lr=3e-3"),
    "trivialaugment": ("augment=trivialaugment",),
    "randaugment": ("augment=randaugment",),
    "mixed 0.8": ("mixed=0.8",),
    "mixed 0.2": ("mixed=0.2",),
    "no SPT, no LSA": ("add=none",),
    "SPT alone": ("add=spt",),
    "GPSA in 6": ("local=6", "heads=9", "dim=252"),
    "wide": ("dim=384", "heads=12", "depth=6"),
    "deep": ("dim=192", "heads=6", "depth=16"),
    "early 3": ("early=3", "depth=7"),
    "early 3, GPSA in 3": ("early=3", "depth=7", "local=3", "heads=8", "dim=256"),
    "early 4, SPT alone": ("early=4", "depth=6", "add=spt"),
    "drop 0": ("drop_path=0.0",),
    "drop 0.2": ("drop_path=0.2",),
}


def trained(name: str, overrides: tuple[str, ...], arguments: argparse.Namespace, folder: Path, rows: dict[str, Any]) -> None:
    recipe = frugalvit.recipe("small.best_cifar10", f"passes={arguments.passes}", *overrides, "log_every=50")
    began = time.perf_counter()
    data = opened(recipe, arguments.data)
    data.pop("test", None)
    out = folder / str(len(list(folder.iterdir())))
    run = frugalvit.train(recipe, out=out / name.replace(" ", "_"), data=data, device=arguments.device)
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rows[name] = {
        "name": name,
        "overrides": list(overrides),
        "passes": arguments.passes,
        "val_top1": run.summary["val_top1"],
        "best_val_top1": run.summary["best_val_top1"],
        "loss": records[-1]["loss"],
        "parameters": frugalvit.cost(replace(recipe.model, classes=10)).parameters,
        "images_per_second": round(statistics.median(one["time_images_per_second"] for one in records)),
        "together": arguments.together,
        "seconds": round(time.perf_counter() - began),
        "nonfinite": run.summary["nonfinite"],
    }
    print(json.dumps(rows[name]), flush=True)


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# How `small.best_cifar10` was chosen",
        "",
        "`python benchmarks/search_small.py`: trained on 45,000 pictures of CIFAR-10, top-1 of the 5,000 held out (one seed; "
        "the standard error of such a figure is about 0.3). The test pictures were not read. Speeds are of candidates that "
        "share the device with others.",
        "",
        "| candidate | overrides | passes | val top-1 | parameters | images/s | commit |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for row in sorted(rows, key=lambda row: (-row["passes"], -row["val_top1"])):
        cells = [row["name"], f"`{' '.join(row['overrides']) or 'none'}`", row["passes"], f"{row['val_top1']:.2f}"]
        cells += [f"{row['parameters']:,}", f"{row['images_per_second']:,}", row["where"]["commit"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CANDIDATES), metavar="NAME", help=", ".join(CANDIDATES))
    parser.add_argument("--candidate", action="append", default=[], metavar="NAME=A=1,B=2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    own = {one.partition("=")[0]: tuple(one.partition("=")[2].split(",")) for one in arguments.candidate}
    chosen = {name: (CANDIDATES | own)[name] for name in (arguments.names if not own else [*own])}
    arguments.out.mkdir(parents=True, exist_ok=True)
    saved = arguments.out / "best_cifar10_search.json"
    earlier = json.loads(saved.read_text())["rows"] if saved.exists() else []
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    where = {"device": device, "torch": torch.__version__, "commit": arguments.commit}
    names = list(chosen)
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(names), arguments.together):
            found: dict[str, Any] = {}
            some = names[start : start + arguments.together]
            jobs = [partial(trained, name, chosen[name], arguments, Path(folder), found) for name in some]
            if torch.cuda.is_available():
                at_once(jobs)
            else:
                for job in jobs:
                    job()
            made = [row | {"where": where} for row in found.values()]
            again = {(row["name"], row["passes"]) for row in made}
            earlier = [row for row in earlier if (row["name"], row["passes"]) not in again] + made
            saved.write_text(json.dumps({"rows": earlier}, indent=2) + "\n")
            (arguments.out / "best_cifar10_search.md").write_text(page(earlier))


if __name__ == "__main__":
    main()
