"""Who answers: a classifier in PyTorch, a packed file in the one-bit runtime, or an exported one in onnxruntime."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from frugalvit.cli.console import stderr
from frugalvit.cli.evaluating import loaded
from frugalvit.deploy.classifier import Classifier
from frugalvit.deploy.exported import ExportedClassifier
from frugalvit.deploy.native import PackedClassifier, SimulationNotice, is_packed, load_packed
from frugalvit.errors import SpecError
from frugalvit.nn.readout import Fusion, MeanLogits
from frugalvit.training.devices import Place, place_for
from frugalvit.training.evaluate import Framed, heads_and_labels

Answering = Classifier | PackedClassifier | ExportedClassifier


def answering(source: Path, head: str, parts: list[type], device: str, threads: int | None) -> tuple[Answering, Place]:
    """Whoever the file or folder holds, and where it works."""
    if source.suffix == ".onnx":
        return exported(source, head, device, threads), place_for("cpu", "fp32")
    if not is_packed(source):
        if threads is not None:
            raise SpecError("goes with a packed file. Elsewhere OMP_NUM_THREADS sets them.", path="--threads")
        place = place_for(device, "fp32")
        return loaded(source, head, parts).to(place.device), place
    if head:
        raise SpecError("a packed file answers as it was packed. Pack the run again with --head.", path="--head")
    if device not in ("auto", "cpu"):
        raise SpecError(f"packed files run on the CPU, not on '{device}'. Leave it out.", path="--device")
    with told():
        return load_packed(source, threads), place_for("cpu", "fp32")


def exported(source: Path, head: str, device: str, threads: int | None) -> ExportedClassifier:
    """What `export --origin onnx` wrote."""
    if head:
        raise SpecError("an exported file answers as it was exported. Export the run again with --head.", path="--head")
    if device not in ("auto", "cpu"):
        raise SpecError(f"exported files run on the CPU here, not on '{device}'. Leave it out.", path="--device")
    if threads is not None:
        raise SpecError("goes with a packed file. onnxruntime takes all cores.", path="--threads")
    return ExportedClassifier(source)


@contextmanager
def told() -> Iterator[None]:
    """Say in one line where the runtime is only simulated."""
    with warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always", SimulationNotice)
        yield
    for text in dict.fromkeys(str(one.message) for one in notices):
        stderr.print(text, markup=False)


def run_of(source: Path) -> Path:
    """Where the run's recipe would lie: packed and exported files are written beside it."""
    return source.parent if source.suffix == ".onnx" or is_packed(source) else source


def fusion_of(classifier: Answering) -> Fusion:
    """Packed and exported files have one head, into which all are fused."""
    return classifier.spec.fusion if isinstance(classifier, Classifier) else MeanLogits()


def heads_of(classifier: Answering, framed: Framed, workers: int) -> tuple[dict[str, Tensor], Tensor]:
    """The logits_NC of every head by name, and labels_N."""
    if not isinstance(classifier, Classifier):
        return classifier.answers(framed.batches(workers))
    return heads_and_labels(classifier.module, framed, workers)
