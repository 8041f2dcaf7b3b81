"""Photographs on their way to a training: decoded by the host, by the device, or once into a store; which one feeds it sooner?

    python benchmarks/photo_paths.py [--photos FOLDER] [--ways sent decoded stored kept] [--workers 4 14] [--batch 256]

FOLDER has a folder a class; without it, JPEGs of smooth noise are made, as large as ImageNet's. The ways of `transfer.folder`:

- sent: `path=sent`, workers decode and augment with Pillow;
- decoded: `path=decoded`, workers read, the device decodes, crops and augments;
- stored: `path=sent` with a store of the shorter side 8/7 of the model's, 256 for 224, decoded once before the clock starts;
- kept: `path=kept` with the same store, all of it in the device's memory, cropped and augmented there.

Of each way and number of workers: images/s of the loop as it trains, the share of time that it waits for pictures, and
images/s of the same step on a batch that lies on the device, which is the most that any way could reach.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow

import frugalvit
from frugalvit.beginning import opened
from frugalvit.measure.latency import device_name
from frugalvit.report.environment import short_commit
from frugalvit.report.table import as_markdown
from frugalvit.training.devices import Place, place_for
from frugalvit.training.prepare import prepare
from frugalvit.training.throughput import fed_speeds, still_speeds
from kept import Kept
from script import started

WAYS = {
    "sent": ("path=sent",),
    "decoded": ("path=decoded",),
    "stored": ("path=sent", "data.store=Stored({limit})"),
    "kept": ("path=kept", "data.store=Stored({limit})"),
}
SIZES = ((500, 375), (375, 500), (500, 333), (640, 480))  # width and height, in turn
OCTAVES = (4, 8, 16, 32, 64, 128, 256)
KEY = ("way", "workers", "model", "image", "batch", "photos", "device")


def make_photo(number: int, folder: Path) -> int:
    """A JPEG of noise that is stronger the coarser it is, as in photographs; the bytes it takes."""
    width, height = SIZES[number % len(SIZES)]
    rng = np.random.default_rng(number)
    image_HWC = np.full((height, width, 3), 128.0)
    for side in OCTAVES:
        noise = Pillow.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).resize((width, height))
        image_HWC += (np.asarray(noise, dtype=np.float64) - 128) * (2 / side**0.5)
    place = folder / f"class {number % 10}"
    place.mkdir(parents=True, exist_ok=True)
    file = place / f"{number:06d}.jpg"
    Pillow.fromarray(image_HWC.clip(0, 255).astype(np.uint8)).save(file, quality=90)
    return file.stat().st_size


@contextmanager
def photographs(given: Path | None, count: int) -> Iterator[tuple[Path, str]]:
    """A folder of them, and what they are."""
    if given is not None:
        yield given, given.name
        return
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor() as pool:
        sizes = list(pool.map(partial(make_photo, folder=Path(folder)), range(count), chunksize=16))
        yield Path(folder), f"{count:,} made, {sum(sizes) / count / 1000:.0f} kB each"


def limit(image: int) -> int:
    """Of the shorter side of what is stored: 256 pixels for a model of 224."""
    return image * 8 // 7


def measured(way: str, workers: int, folder: Path, place: Place, arguments: argparse.Namespace) -> dict[str, Any]:
    words = [f"model={arguments.model}", f"image={arguments.image}", f"batch={arguments.batch}"]
    words += [word.format(limit=limit(arguments.image)) for word in WAYS[way]]
    recipe = frugalvit.recipe("transfer.folder", *words)
    training = prepare(recipe, opened(recipe, folder), place)
    *_, still = still_speeds(training, calls=arguments.steps)
    *_, fed = fed_speeds(training, workers, calls=arguments.steps)
    return {
        "way": way,
        "workers": workers,
        "model": arguments.model,
        "image": arguments.image,
        "batch": arguments.batch,
        "images_per_second": fed.images_per_second,
        "slowest": fed.batch / fed.quantile(1),
        "fastest": fed.batch / fed.quantile(0),
        "waiting": float(np.median(fed.waiting)),
        "still": still.images_per_second,
        "rounds": len(fed.rounds),
        "steps": fed.calls,
        "notes": [*([training.note] if training.note else []), *training.step.notes],
    }


def page(rows: list[dict[str, Any]]) -> str:
    table = [
        {
            "model": f"{row['model']}, {row['image']} pixels",
            "batch": row["batch"],
            "way": row["way"],
            "workers": row["workers"],
            "images/s (rounds)": f"{row['images_per_second']:,.0f} ({row['slowest']:,.0f} to {row['fastest']:,.0f})",
            "waiting": f"{row['waiting']:.0%}",
            "of the step alone": f"{row['images_per_second'] / row['still']:.0%} of {row['still']:,.0f}",
            "pictures": row["photos"],
            **{name: row[name] for name in ("device", "cores", "torch", "commit")},
        }
        for row in rows
    ]
    lines = [
        "# Photographs on their way to a training",
        "",
        "`python benchmarks/photo_paths.py`: `transfer.folder` on JPEG files of many sizes, batch after batch as it trains. "
        "`sent`: the workers decode and augment; `decoded`: the device does (`path=decoded`); `stored`: decoded once before "
        "the clock starts (`data.store`, a shorter side of 8/7 the model's), then `sent`; `kept`: of that store, all of it "
        "on the device, which crops and augments. The median of rounds, the slowest and the fastest; after "
        "the first round the operating system has the files in memory.",
        "",
        as_markdown(table),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="a folder a class; default: made")
    parser.add_argument("--count", type=int, default=4096, help="of photographs that are made")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--workers", nargs="+", type=int, default=[4, 14])
    parser.add_argument("--model", default="deit_tiny_patch16_224")
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, help="in a round; default: half a second's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    place = place_for(arguments.device, "auto")
    device = device_name(place.device)
    where = {"device": device, "cores": len(os.sched_getaffinity(0)), "torch": torch.__version__, "commit": arguments.commit}
    results = Kept(arguments.out, "photo_paths", lambda row: tuple(row[name] for name in KEY), page)
    with photographs(arguments.photos, arguments.count) as (folder, photos):
        for way in arguments.ways:
            for workers in arguments.workers:
                row = measured(way, workers, folder, place, arguments) | {"photos": photos, **where}
                print(json.dumps(row), flush=True)
                results.add(row)
    print(page(results.rows()))


if __name__ == "__main__":
    started(main)
