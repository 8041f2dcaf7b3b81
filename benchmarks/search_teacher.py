"""How `convnet.cifar10` was chosen: candidates on 45,000 training pictures, measured on the 5,000 held out, never on test.

    python benchmarks/search_teacher.py --data CIFAR --passes 40 [NAME ...] [--together 1] [--out docs/results]

A candidate is the recipe with some overrides (CANDIDATES, or `--candidate name=a=1,b=2`). `--together` of them train at the
same time in this process; one alone shows how long it takes. Rows of earlier calls stay, so that the page shows the whole
search, failures too.
"""

from __future__ import annotations

import argparse
import json
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
from frugalvit.studies.timing import time_split

CANDIDATES: dict[str, tuple[str, ...]] = {
    "start": (),
    "muon": ("optimizer=muon",),
    "muon, lr 4e-3": ("optimizer=muon", "lr=4e-3"),
    "lr 0.2": ("lr=0.2",),
    "lr 0.8": ("lr=0.8",),
    "decay 1e-3": ("weight_decay=1e-3",),
    "batch 256": ("batch=256",),
    "batch 1024": ("batch=1024",),
    "crops and flips": ("augment=none",),
    "trivialaugment": ("augment=trivialaugment",),
    "randaugment": ("augment=randaugment",),
    "no cutout": ("cutout=0.0",),
    "mixed 0.5": ("mixed=0.5", "cutout=0.0"),
    "no smoothing": ("smoothing=0.0",),
    "no average": ("average=none",),
    "width 96": ("width=96",),
    "width 128": ("width=128",),
    "three wide stages": ("stages=3", "width=128"),
    "deep": ("depth=3",),
}


def trained(name: str, overrides: tuple[str, ...], arguments: argparse.Namespace, folder: Path, rows: dict[str, Any]) -> None:
    recipe = frugalvit.recipe("convnet.cifar10", f"passes={arguments.passes}", *overrides)
    began = time.perf_counter()
    data = opened(recipe, arguments.data)
    data.pop("test", None)
    out = folder / str(list(CANDIDATES | {name: ()}).index(name))
    run = frugalvit.train(recipe, out=out, data=data, device=arguments.device)
    split, cost = time_split(run.path), frugalvit.cost(replace(recipe.model, classes=10))
    rows[name] = {
        "name": name,
        "overrides": list(overrides),
        "passes": arguments.passes,
        "val_top1": run.summary["val_top1"],
        "best_val_top1": run.summary["best_val_top1"],
        "val_loss": run.summary["val_loss"],
        "parameters": cost.parameters,
        "macs": cost.macs,
        "images_per_second": round(split.images_per_second),
        "seconds": round(time.perf_counter() - began, 1),
        "seconds_steps": round(split.steps, 1),
        "seconds_first": round(split.first, 1),
        "together": arguments.together,
        "nonfinite": run.summary["nonfinite"],
    }
    print(json.dumps(rows[name]), flush=True)


def page(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# How `convnet.cifar10` was chosen",
        "",
        "`python benchmarks/search_teacher.py`: trained on 45,000 pictures of CIFAR-10, top-1 of the 5,000 held out (one seed; "
        "the standard error of such a figure is about 0.3). The test pictures were not read. Seconds are of all, and of that "
        "of compiling and capturing; where several trained together, they are longer than alone.",
        "",
        "| candidate | overrides | passes | val top-1 | parameters | GMACs | images/s | s | compiling, s | at once | commit |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in sorted(rows, key=lambda row: (-row["passes"], -row["val_top1"])):
        cells = [row["name"], f"`{' '.join(row['overrides']) or 'none'}`", row["passes"], f"{row['val_top1']:.2f}"]
        cells += [f"{row['parameters']:,}", f"{row['macs'] / 1e9:.2f}", f"{row['images_per_second']:,}", row["seconds"]]
        cells += [row["seconds_first"], row["together"], row["where"]["commit"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(CANDIDATES), metavar="NAME", help=", ".join(CANDIDATES))
    parser.add_argument("--candidate", action="append", default=[], metavar="NAME=A=1,B=2")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--passes", type=int, default=40)
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    own = {one.partition("=")[0]: tuple(one.partition("=")[2].split(",")) for one in arguments.candidate}
    names = [*own] if own else arguments.names
    chosen = {name: (CANDIDATES | own)[name] for name in names}
    arguments.out.mkdir(parents=True, exist_ok=True)
    saved = arguments.out / "convnet_search.json"
    earlier = json.loads(saved.read_text())["rows"] if saved.exists() else []
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    where = {"device": device, "torch": torch.__version__, "commit": arguments.commit}
    with tempfile.TemporaryDirectory() as folder:
        for start in range(0, len(names), arguments.together):
            found: dict[str, Any] = {}
            some = names[start : start + arguments.together]
            jobs = [partial(trained, name, chosen[name], arguments, Path(folder), found) for name in some]
            if torch.cuda.is_available():
                torch.compiler.reset()  # it keeps eight variants of a function, and each candidate is one
                at_once(jobs)
            else:
                for job in jobs:
                    job()
            made = [row | {"where": where} for row in found.values()]
            again = {(row["name"], row["passes"]) for row in made}
            earlier = [row for row in earlier if (row["name"], row["passes"]) not in again] + made
            saved.write_text(json.dumps({"rows": earlier}, indent=2) + "\n")
            (arguments.out / "convnet_search.md").write_text(page(earlier))
    print(page(earlier))


if __name__ == "__main__":
    main()
