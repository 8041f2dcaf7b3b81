"""Which machine packed models are timed on: the name of its CPU, and the widest kernels that it has.

The name alone is not enough: "AMD EPYC" is said with and without AVX-512.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.deploy.native import load_packed
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import encoded
from frugalvit.measure.latency import device_name
from frugalvit.zoo.binaryvit import binary_deit

KERNEL = "FRUGALVIT_KERNEL"
TINY = binary_deit(dim=16, heads=2, depth=1, patch=4, image=8, channels=1, classes=2)


def machine_here() -> dict[str, Any]:
    """The CPU, and the kernels by which packed models run on it: the widest, or those that FRUGALVIT_KERNEL names."""
    return {"cpu": device_name(torch.device("cpu")), "kernels": kernels_here()}


def kernels_here() -> str:
    classifier = Classifier(ClassifierSpec(TINY, Preprocess(8, 8, (0.5,), (0.5,)), ("no", "yes")), TINY.build(seed=0)).eval()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tiny.fvit"
        file.write_bytes(encoded(packed_model(classifier, "tiny").packed))
        model = load_packed(file, 1)
    if model.simulated:
        sys.exit("the one-bit runtime is not built: see the commands at the top of benchmarks/packed_latency.py")
    return model.kernels


def key(machine: dict[str, Any]) -> tuple[str, str]:
    """By which results are kept."""
    return machine["cpu"], machine["kernels"]


def title(machine: dict[str, Any]) -> str:
    return ", ".join(key(machine))


@contextmanager
def kernels(name: str) -> Iterator[None]:
    """Models that are opened inside run by these kernels; by the widest that the CPU has where none are named."""
    before = os.environ.pop(KERNEL, None)
    if name:
        os.environ[KERNEL] = name
    try:
        yield
    finally:
        os.environ.pop(KERNEL, None)
        if before is not None:
            os.environ[KERNEL] = before
