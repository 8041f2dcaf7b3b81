"""Packed one-bit models beside the trained models they are made of: classes, accuracy and signs, on real pictures.

    python benchmarks/packed_agreement.py RUN [RUN ...] [--data CIFAR] [--split test] [--pictures 10000] [--watched 256]
        [--half] [--out docs/results]

RUN is the folder of a training of ours, DATA the data it was trained on. The trained model computes in fp32 in PyTorch; the
packed one in the runtime that is built here. On `--watched` of the pictures every one-bit activation of the two is compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import frugalvit
from frugalvit.beginning import opened
from frugalvit.data.batches import evenly
from frugalvit.deploy.native import load_packed
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import read_packed
from frugalvit.deploy.simulated import Simulation
from frugalvit.deploy.verify import answers, compared, pack
from frugalvit.errors import SpecError
from frugalvit.measure.latency import device_name
from frugalvit.report.environment import short_commit
from frugalvit.report.files import read_json
from frugalvit.report.table import as_markdown
from kept import Kept
from script import started


def pictures_of(run: Path, arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """image_BHWC and label_B, spread evenly over the split."""
    sources, preprocess = opened(frugalvit.recipe(str(run)), arguments.data), frugalvit.load(run).preprocess
    if arguments.split not in sources:
        raise SpecError(f"there is no such split. There are: {', '.join(sources)}.", path=f"--split {arguments.split}")
    return evenly(sources[arguments.split], preprocess, arguments.pictures)


def measured(run: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    image_BHWC, label_B = pictures_of(run, arguments)
    classifier = frugalvit.load(run).cpu().float().eval()
    precision = "half" if arguments.half else "single"
    few = image_BHWC[np.linspace(0, len(image_BHWC) - 1, min(arguments.watched, len(image_BHWC))).round().astype(int)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.fvit"
        written = pack(classifier, file, image_BHWC=image_BHWC[:1], precision=precision, least=0.0)
        packed_BC = load_packed(file).logits(image_BHWC)
        places = packed_model(classifier, file.stem, precision).places
        _, _, (signs, flips, attended, attended_flips) = compared(classifier, Simulation(read_packed(file)), places, few)
    trained_BC = answers(classifier, image_BHWC, batch=100)
    guesses = {"trained": trained_BC.argmax(1), "packed": packed_BC.argmax(1)}
    recipe = read_json(run / "recipe.json")
    return {
        "run": run.parent.name if run.name.startswith("seed-") else run.name,
        "seed": recipe["seed"],
        "parameters": sum(one.numel() for one in classifier.parameters()),
        "precision": precision,
        "bytes": written.bytes,
        "kernels": written.kernels,
        "split": arguments.split,
        "pictures": len(image_BHWC),
        "same": int((guesses["trained"] == guesses["packed"]).sum()),
        **{f"{who}_top1": 100 * float((guess_B == label_B).mean()) for who, guess_B in guesses.items()},
        "largest": float(np.abs(trained_BC - packed_BC).max()),
        "watched": len(few),
        "signs": signs,
        "flips": flips,
        "attended": attended,
        "attended_flips": attended_flips,
        "trained_at": read_json(run / "environment.json").get("commit", ""),
        "where": {
            "cpu": device_name(torch.device("cpu")),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "commit": arguments.commit,
        },
    }


def page(rows: list[dict[str, Any]]) -> str:
    results = [
        {
            "run": row["run"],
            "seed": row["seed"],
            "parameters": f"{row['parameters']:,}",
            "file, MB": f"{row['bytes'] / 1e6:.3f} ({row['precision']})",
            "pictures": f"{row['pictures']:,} of {row['split']}",
            "same class": f"{row['same'] / row['pictures']:.2%}",
            "trained, top-1": f"{row['trained_top1']:.2f}",
            "packed, top-1": f"{row['packed_top1']:.2f}",
            "largest difference of logits": f"{row['largest']:.2g}",
            "signs that differ": f"{row['flips']:,} of {row['signs']:,} in {row['watched']:,} pictures",
            "attended keys that differ": f"{row['attended_flips']:,} of {row['attended']:,}",
        }
        for row in rows
    ]
    where = [{"run": row["run"], "kernels": row["kernels"], "trained at": row["trained_at"], **row["where"]} for row in rows]
    head = (
        "`python benchmarks/packed_agreement.py`: packed models beside the trained ones they are made of, in fp32 in PyTorch. "
        "Sums of floats are added in another order there, so that a sign whose argument is next to zero may differ, and what "
        "follows from it."
    )
    return "\n".join(["# Packed models beside the trained ones\n", f"{head}\n", as_markdown(results), as_markdown(where)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--split", default="test", choices=("train", "val", "test"))
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--watched", type=int, default=256, help="pictures whose bits are compared")
    parser.add_argument("--half", action="store_true", help="positions and heads in 16 bits")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    if min(arguments.pictures, arguments.watched) < 1:
        parser.error("--pictures and --watched are 1 or more.")
    kept = Kept(arguments.out, "packed_agreement", lambda row: (row["run"], row["seed"], row["precision"], row["split"]), page)
    for run in arguments.runs:
        row = measured(run, arguments)
        print(json.dumps(row), flush=True)
        kept.add(row)
    print(page(kept.rows()))


if __name__ == "__main__":
    started(main)
