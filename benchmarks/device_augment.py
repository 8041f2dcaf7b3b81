"""Milliseconds a batch of the published small-data augmentation takes on one device, compiled and under a CUDA graph.

    python benchmarks/device_augment.py [--batch 128 512] [--image 32] [--device cuda] [--rounds 5]

Flip, padded crop and AutoAugment's CIFAR-10 policy (Lee et al. 2021), erasing and mixing included in the second line of each
batch: from uint8 pictures and a key on the device to what the model is given. The key is a device tensor, so each replay
makes its own draws. On a CPU the eager step is timed.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from frugalvit.data.augment import Augment, Flip, PadCrop
from frugalvit.data.autoaugment import AutoAugment
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.erase import erase
from frugalvit.data.device.mix import mix
from frugalvit.data.device.pipeline import pipeline
from frugalvit.data.device.size import MapSize
from frugalvit.data.erase import EraseConstant
from frugalvit.data.finish import normalize
from frugalvit.data.mix import SwitchMix
from frugalvit.data.randomness import Stream
from frugalvit.measure.captured import Captured, captured
from script import started

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CLASSES = 100

Step = Callable[[], tuple[Tensor, ...]]


def augmenting(image_BCHW: Tensor, key: Tensor) -> Step:
    """Bytes to bytes."""
    side = image_BCHW.shape[2]
    steps = pipeline(Augment((Flip(0.5), PadCrop(4), AutoAugment("cifar10"))), MapSize(side, side, 3), (side, side))
    steps = steps.to(image_BCHW.device)

    def step() -> tuple[Tensor, ...]:
        return (steps(image_BCHW, uniform(key, Stream.AUGMENT, (len(image_BCHW), steps.draws))),)

    return step


def finishing(image_BCHW: Tensor, key: Tensor) -> Step:
    """Bytes to normalized, erased and mixed numbers, and targets."""
    augmented = augmenting(image_BCHW, key)
    erasing = erase(EraseConstant(0.25, area=(0.02, 0.4), color=MEAN))
    mixing = mix(SwitchMix(1.0, 1.0, probability=0.5), CLASSES, 0.1).to(image_BCHW.device)
    label_B = torch.arange(len(image_BCHW), device=image_BCHW.device) % CLASSES

    def step() -> tuple[Tensor, ...]:
        (bytes_BCHW,) = augmented()
        finished_BCHW = normalize(bytes_BCHW, MEAN, STD)
        finished_BCHW = erasing(finished_BCHW, uniform(key, Stream.ERASE, (len(image_BCHW), erasing.draws)), key)
        return tuple(mixing(finished_BCHW, label_B, uniform(key, Stream.MIX, (1, mixing.draws))))

    return step


def replayed(step: Step, key: Tensor) -> Captured:
    """The compiled step as a CUDA graph, which counts the key's step up."""
    compiled = torch.compile(step, fullgraph=True, dynamic=False)

    def counted() -> None:
        compiled()
        key[1] += 1

    return captured(counted)


def milliseconds(step: Callable[[], object], count: int, device: str) -> float:
    start = time.perf_counter()
    for _ in range(count):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / count * 1e3


def kernels(step: Callable[[], object]) -> int:
    """Launches of a compiled step, counted in its graph's replay."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return sum(event.count for event in profile.key_averages() if event.device_type == torch.autograd.DeviceType.CUDA)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--image", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    device, count = arguments.device, 200 if arguments.device == "cuda" else 2
    name = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"{name}, torch {torch.__version__}, pictures of {arguments.image}")
    for batch in arguments.batch:
        for make in (augmenting, finishing):
            size = (batch, 3, arguments.image, arguments.image)
            image_BCHW = torch.randint(0, 256, size, dtype=torch.uint8).to(device)
            key = torch.tensor([3, 0]).to(device)
            step = make(image_BCHW, key)
            timed: Callable[[], object] = replayed(step, key) if device == "cuda" else step
            milliseconds(timed, count, device)
            found = [milliseconds(timed, count, device) for _ in range(arguments.rounds)]
            launches = f", {kernels(timed)} kernels" if device == "cuda" else ""
            print(f"{make.__name__:>10} batch {batch}: {statistics.median(found):.3f} ms (least {min(found):.3f}){launches}")


if __name__ == "__main__":
    started(main)
