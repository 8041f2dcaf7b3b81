"""The time of a whole training step on small pictures: read, augment, mix, forward, backward, update.

    python benchmarks/small_step.py --data CIFAR [MODEL:ADD ...] [--batch 128] [--steps 300] [--device cuda]

CIFAR is a folder of arrays. MODEL is vit, cait, pit, swin or t2t, ADD none or spt+lsa: the published recipe `small.cifar10`
with the pictures on the device. Prints milliseconds a step and images/s, and the seconds until the first step.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

import frugalvit
from frugalvit.data.arrays import Arrays
from frugalvit.data.store_device import OneSize
from frugalvit.training.devices import place_for
from frugalvit.training.prepare import prepare
from frugalvit.training.resident import NumberedBatches, ResidentStep


def timed(item: str, data: Path, batch: int, steps: int, device: str) -> dict[str, object]:
    model, _, add = item.partition(":")
    recipe = frugalvit.recipe("small.cifar10", f"model={model}", f"add={add or 'none'}", f"batch={batch}")
    place = place_for(device, recipe.precision)
    images_NHWC, labels_N = np.load(data / "train_images.npy"), np.load(data / "train_labels.npy").astype(np.int64)
    source = Arrays(images_NHWC, labels_N, [str(label) for label in range(10)], str(data))
    training = prepare(recipe, {"train": source}, place)
    image_NCHW = torch.from_numpy(images_NHWC).permute(0, 3, 1, 2).contiguous().to(place.device)
    readable_N = torch.ones(len(labels_N), dtype=torch.bool, device=place.device)
    kept = OneSize(image_NCHW, torch.from_numpy(labels_N).to(place.device), readable_N)
    step = ResidentStep(training.recipe, training.state, place, training.clock, training.preprocess, kept)
    batches = NumberedBatches(labels_N, recipe.data.order, recipe.seed, batch)
    began = time.perf_counter()
    step.take([batches[0]])
    step.taken()
    first = time.perf_counter() - began
    for number in range(1, 20):
        step.take([batches[number]])
    step.taken()
    began = time.perf_counter()
    for number in range(20, 20 + steps):
        step.take([batches[number]])
    values = step.taken()
    seconds = (time.perf_counter() - began) / steps
    return {
        "model": item,
        "batch": batch,
        "ms": round(1e3 * seconds, 3),
        "images_per_second": round(batch / seconds),
        "first_step_s": round(first),
        "loss": round(values["loss"], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=["vit:none", "vit:spt+lsa"], metavar="MODEL:ADD")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    for item in arguments.items:
        print(json.dumps(timed(item, arguments.data, arguments.batch, arguments.steps, arguments.device)), flush=True)


if __name__ == "__main__":
    main()
