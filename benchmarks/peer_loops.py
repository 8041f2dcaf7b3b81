"""Our training loop on small pictures beside the loops that others write, with the same model on every side, in one run.

    python benchmarks/peer_loops.py [MODEL:ADD ...] [--data CIFAR] [--batch 128] [--workers 4] [--steps 300] [--rounds 5]

MODEL is vit, cait, pit, swin or t2t, ADD none, spt, lsa or spt+lsa: the published recipe `small.cifar10` (Lee et al. 2021).
CIFAR is a folder with train_images.npy [N, 32, 32, 3] and train_labels.npy; without it, noise of that shape. The loops:

- frugalvit: pictures, augmentation, mixing and update on the device (`path=kept`);
- torchvision: worker processes that augment with torchvision's v2 transforms on Pillow's pictures, pinned batches, timm's Mixup
  on the device, fused AdamW, autocast, the model as it is; on CUDA a second time with the model compiled;
- release: as the paper's published script (github.com/aanna0701/SPT_LSA_ViT, main.py): fp32, the model as it is, AdamW not
  fused, workers that start anew each epoch (of three passes), loss and accuracy read after every step.

All use our module, so a ratio tells of the loop and not of the model. A round runs every loop once, after steps that are not
timed and use up what its workers read ahead meanwhile; the ratio is ours / theirs within a round: median, lowest and highest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torchvision
from PIL import Image as Pillow
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset
from torchvision.transforms import v2

import frugalvit
from frugalvit.data.arrays import Arrays
from frugalvit.data.erase import EraseConstant
from frugalvit.data.mix import SwitchMix
from frugalvit.measure.latency import device_name, wait
from frugalvit.report.environment import short_commit
from frugalvit.training.devices import Place, place_for
from frugalvit.training.optimizer import AdamW, peak_lr
from frugalvit.training.prepare import prepare
from frugalvit.training.recipe import Recipe
from kept import Kept
from script import started

OURS = "frugalvit"
PICTURES = 50_000  # of noise, as many as CIFAR-10 has
PASSES = 3  # of an epoch of the release
LONG = 100_000  # steps that the schedules are made for
PREFETCH = 2  # batches that each worker reads ahead, torch's default
SMOOTHING = 0.1

Step = Callable[[], object]


class Pictures(Dataset[tuple[Tensor, int]]):
    """Arrays as torchvision's CIFAR10 gives them: a Pillow picture through the transforms, and its label."""

    def __init__(self, images_NHWC: np.ndarray, labels_N: np.ndarray, transform: Callable[[Pillow.Image], Tensor]):
        self.images_NHWC, self.labels_N, self.transform = images_NHWC, labels_N, transform

    def __len__(self) -> int:
        return len(self.labels_N)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Pillow.fromarray(self.images_NHWC[index])), int(self.labels_N[index])


def transforms(recipe: Recipe) -> Callable[[Pillow.Image], Tensor]:
    """Flip, padded crop, AutoAugment, floats, erasing, in the release's order and with the recipe's numbers."""
    data, erase = recipe.data, recipe.data.erase
    assert isinstance(erase, EraseConstant)
    return v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomCrop(recipe.model.image.height, padding=4),
            v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10, fill=128),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(data.mean, data.std),
            v2.RandomErasing(erase.probability, erase.area, erase.ratio, list(erase.color)),
        ]
    )


def mixing(recipe: Recipe) -> Mixup:
    mix = recipe.data.mix
    assert isinstance(mix, SwitchMix)
    return Mixup(
        mix.mixup_alpha,
        mix.cutmix_alpha,
        prob=mix.probability,
        switch_prob=mix.switch,
        label_smoothing=SMOOTHING,
        num_classes=recipe.model.classes,
    )


def batches(loader: DataLoader[Any], device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Epoch after epoch, on the device."""
    while True:
        for image_BCHW, label_B in loader:
            yield image_BCHW.to(device, non_blocking=True), label_B.to(device, non_blocking=True)


# ------------------------------------------------------------------------------------------------ the loops


def our_loop(recipe: Recipe, images_NHWC: np.ndarray, labels_N: np.ndarray, place: Place) -> Step:
    source = Arrays(images_NHWC, labels_N, [str(label) for label in range(10)], "arrays")
    training = prepare(replace(recipe, path="kept"), {"train": source}, place)
    step, numbered = training.step, training.batches
    return lambda: step.take([numbered[step.state.step]])


def torchvision_loop(recipe: Recipe, data: Pictures, place: Place, workers: int, compiled: bool) -> Step:
    device, batch = place.device, recipe.batch
    module = recipe.model.build(seed=0).to(device).train()
    forward = torch.compile(module) if compiled else module
    optimizer = torch.optim.AdamW(module.parameters(), lr=peak(recipe), weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, LONG)
    mix, criterion = mixing(recipe), SoftTargetCrossEntropy()
    loader = DataLoader(
        data,
        batch,
        shuffle=True,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
        persistent_workers=workers > 0,
    )
    reader = batches(loader, device)

    def step() -> None:
        image_BCHW, target_BC = mix(*next(reader))
        with place.autocast():
            loss = criterion(forward(image_BCHW, module.random_draws(batch))["class"], target_BC)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()

    return step


def release_loop(recipe: Recipe, data: Pictures, device: torch.device, workers: int) -> Step:
    batch = recipe.batch
    module = recipe.model.build(seed=0).to(device).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=peak(recipe), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, LONG)
    mix, criterion = mixing(recipe), SoftTargetCrossEntropy()
    epoch = ConcatDataset([data] * PASSES)
    loader = DataLoader(epoch, batch, shuffle=True, num_workers=workers, pin_memory=device.type == "cuda", drop_last=True)
    reader = batches(loader, device)
    sums = {"loss": 0.0, "right": 0.0}

    def step() -> None:
        image_BCHW, label_B = next(reader)
        image_BCHW, target_BC = mix(image_BCHW, label_B)
        logits_BC = module(image_BCHW, module.random_draws(batch))["class"]
        loss = criterion(logits_BC, target_BC)
        sums["right"] += (logits_BC.argmax(1) == label_B).float().sum().item()
        sums["loss"] += loss.item() * batch
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()

    return step


def peak(recipe: Recipe) -> float:
    assert isinstance(recipe.optimizer, AdamW) and recipe.optimizer.weight_decay == 0.05
    return peak_lr(recipe.optimizer, recipe.pictures)


# ------------------------------------------------------------------------------------------------ the comparison


def seconds(step: Step, lead: int, steps: int, device: torch.device) -> float:
    """Of a step, by the clock on the wall, after `lead` steps that are not timed."""
    for _ in range(lead):
        step()
    wait(device)
    began = time.perf_counter()
    for _ in range(steps):
        step()
    wait(device)
    return (time.perf_counter() - began) / steps


def compare(item: str, arrays: tuple[np.ndarray, np.ndarray], arguments: argparse.Namespace) -> dict[str, Any]:
    torch._dynamo.reset()
    model, _, add = item.partition(":")
    batch, workers, steps = arguments.batch, arguments.workers, arguments.steps
    words = (f"model={model}", f"add={add or 'none'}", f"batch={batch}", f"precision={arguments.precision}")
    recipe = frugalvit.recipe("small.cifar10", *words)
    place = place_for(arguments.device, recipe.precision)
    data = Pictures(*arrays, transforms(recipe))
    loops: dict[str, Step] = {
        OURS: our_loop(recipe, *arrays, place),
        "torchvision": torchvision_loop(recipe, data, place, workers, compiled=False),
        "release": release_loop(recipe, data, place.device, workers),
    }
    if place.device.type == "cuda":
        loops["torchvision, compiled"] = torchvision_loop(recipe, data, place, workers, compiled=True)
    first = {name: seconds(step, 0, 1, place.device) for name, step in loops.items()}
    lead = workers * PREFETCH + 2 if workers else 1
    found: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(arguments.rounds):
        for name, step in loops.items():
            found[name].append(seconds(step, lead, steps, place.device))
    ratios = {
        name: [theirs / ours for ours, theirs in zip(found[OURS], rounds, strict=True)]
        for name, rounds in found.items()
        if name != OURS
    }
    return {
        "model": item,
        "batch": batch,
        "rounds": arguments.rounds,
        "loops": {
            name: {
                "images_per_second": round(batch / statistics.median(rounds), 1),
                "ms": round(1e3 * statistics.median(rounds), 3),
                "first_step_s": round(first[name], 1),
            }
            for name, rounds in found.items()
        },
        "ratios": {
            name: {"ratio": round(statistics.median(r), 3), "lowest": round(min(r), 3), "highest": round(max(r), 3)}
            for name, r in ratios.items()
        },
        "where": {
            "device": device_name(place.device),
            "precision": place.precision,
            "cores": os.cpu_count(),
            "workers": workers,
            "steps_per_round": steps,
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
            "timm": timm.__version__,
            "data": "arrays" if arguments.data else "noise",
            "commit": arguments.commit,
        },
    }


def arrays_of(data: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """images_NHWC and labels_N"""
    if data is not None:
        return np.load(data / "train_images.npy"), np.load(data / "train_labels.npy").astype(np.int64)
    images_NHWC = np.random.default_rng(0).integers(0, 256, (PICTURES, 32, 32, 3), dtype=np.uint8)
    return images_NHWC, np.arange(PICTURES) % 10


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown; those measured in other runs of this script keep their own commit and versions."""
    lines = [
        "# Training loops on small pictures, side by side",
        "",
        "`python benchmarks/peer_loops.py`: the whole step of `small.cifar10` (read, augment, mix, forward, backward, update), "
        "our module in every loop, so that a ratio tells of the loop. images/s: median over rounds in which the loops take "
        "turns; ratio: ours / theirs within a round, median (lowest to highest). `release` is the published script's way in "
        "fp32; the others share a precision. What each loop is stands at the top of the script.",
        "",
        "| model | batch | loop | images/s | ms a step | first step, s | ours / theirs |",
        "|---|---:|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        for name, loop in row["loops"].items():
            one = row["ratios"].get(name)
            ratio = f"{one['ratio']:.2f} ({one['lowest']:.2f} to {one['highest']:.2f})" if one else ""
            cells = [row["model"], str(row["batch"]), name, f"{loop['images_per_second']:,.0f}", f"{loop['ms']:.3f}"]
            lines.append(f"| {' | '.join([*cells, str(loop['first_step_s']), ratio])} |")
    head = [
        "model",
        "rounds x steps",
        "device",
        "precision",
        "cores",
        "workers",
        "data",
        "torch",
        "torchvision",
        "timm",
        "commit",
    ]
    lines += ["", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        where = row["where"]
        cells = [row["model"], f"{row['rounds']} x {where['steps_per_round']}", *(str(where[name]) for name in head[2:])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("items", nargs="*", default=["vit:none", "vit:spt+lsa"], metavar="MODEL:ADD")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="auto", choices=["auto", "fp32", "bf16"])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--commit", default=short_commit())
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    arguments = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    arrays = arrays_of(arguments.data)
    kept = Kept(arguments.out, "peer_loops", lambda row: (row["model"], row["batch"], row["where"]["workers"]), page)
    text = ""
    for item in arguments.items:
        row = compare(item, arrays, arguments)
        print(json.dumps(row), flush=True)
        text = kept.add(row)
    print(text)


if __name__ == "__main__":
    started(main)
