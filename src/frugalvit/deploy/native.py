"""Packed models at work: the one-bit runtime where it is built, else its simulation in PyTorch, which says so."""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image as PillowImage
from torch import Tensor

from frugalvit.data.preprocess import Picture, opened
from frugalvit.deploy.classifier import Prediction, named, predicted
from frugalvit.deploy.packed_file import ENDING, begins_packed, read_packed, read_program, refuse_missing
from frugalvit.deploy.packed_frame import preprocess_of
from frugalvit.deploy.simulated import Simulation
from frugalvit.errors import DataError, SpecError, WeightsError, at
from frugalvit.measure.processor import usable_cores

MODULE = "frugalvit.deploy._native"
THREADS = "FRUGALVIT_THREADS"
MOST_THREADS = 256


class SimulationNotice(UserWarning):
    """A packed model runs without its runtime: the same answers, much later."""


def is_packed(path: Path) -> bool:
    """By its ending, or by how it begins."""
    return path.suffix == ENDING or begins_packed(path)


def load_packed(path: str | Path, threads: int | None = None) -> PackedClassifier:
    """A packed model, ready to answer on `threads` threads; without a number as FRUGALVIT_THREADS says, or on all."""
    return PackedClassifier(Path(path), wanted_threads() if threads is None else checked(threads, "threads"))


def wanted_threads() -> int:
    """As the environment says; else all cores that the process may use."""
    text = os.environ.get(THREADS)
    if text:
        return checked(int(text) if text.isdecimal() else text, THREADS)
    return min(usable_cores(), MOST_THREADS)


def checked(threads: object, path: str) -> int:
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise SpecError(f"{threads!r} threads. Use a whole number, 1 to {MOST_THREADS}.", path=path)
    return threads


def runtime() -> Any | None:
    """The compiled module; None, and a warning, where it is missing or broken."""
    try:
        module = importlib.import_module(MODULE)
        module.PackedModel  # noqa: B018
    except (ImportError, AttributeError, OSError) as error:
        warnings.warn(
            f"the one-bit runtime is not built ({error}), so it is simulated in PyTorch: the same answers, a hundred times "
            "slower. With a C++20 compiler `pip install --force-reinstall --no-deps .` builds it: docs/install.md.",
            SimulationNotice,
            stacklevel=2,
        )
        return None
    return module


def opened_by(module: Any, path: Path, threads: int) -> Any:
    try:
        return module.PackedModel(str(path), threads)
    except ValueError as error:
        raise WeightsError(f"{error}.", path=str(path)) from error


def simulated(path: Path) -> Simulation:
    packed = read_packed(path)
    with at(str(path)):
        return Simulation(packed)


class PackedClassifier:
    """A packed file that answers as the `Classifier` it was made of."""

    def __init__(self, path: Path, threads: int):
        refuse_missing(path)
        self.made_of = path.absolute(), threads
        module = runtime()
        self.native: Any | None = None if module is None else opened_by(module, path, threads)
        self.simulation = simulated(path) if self.native is None else None
        self.program = read_program(path)
        self.preprocess = preprocess_of(self.program["image"], str(path))
        classes = self.program["buffers"][self.program["logits"]][1]
        self.labels = tuple(self.program.get("labels") or map(str, range(classes)))

    def __reduce__(self) -> tuple[type[PackedClassifier], tuple[Path, int]]:
        """Other processes open the file anew."""
        return PackedClassifier, self.made_of

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names, in the order of the logits."""
        return self.labels

    @property
    def name(self) -> str:
        return self.program["name"]

    @property
    def simulated(self) -> bool:
        """Whether PyTorch stands in for the runtime."""
        return self.native is None

    @property
    def kernels(self) -> str:
        """The instruction set that computes: reference, avx2, avx512, neon; or simulated."""
        return "simulated" if self.native is None else self.native.kernels

    @property
    def image(self) -> tuple[int, int, int]:
        """Height, width and channels of the pictures that `logits` takes."""
        return self.preprocess.height, self.preprocess.width, len(self.preprocess.mean)

    def logits(self, image_BHWC: np.ndarray) -> np.ndarray:
        """The logits_BC in float32 of uint8 pictures that have the model's size."""
        image_BHWC = np.asarray(image_BHWC)
        if image_BHWC.dtype != np.uint8 or image_BHWC.shape[1:] != self.image:
            raise DataError(
                f"an array of shape {image_BHWC.shape} and type {image_BHWC.dtype}. "
                f"Give uint8 values, pictures x {' x '.join(map(str, self.image))}; `predict` takes pictures of any size."
            )
        image_BHWC = np.ascontiguousarray(image_BHWC)
        runner = self.native if self.simulation is None else self.simulation
        return runner.logits(image_BHWC)  # type: ignore[union-attr]

    def picture_logits(self, picture: Picture) -> np.ndarray:
        """The logits_C of one picture of any size: a path, a PIL image, or uint8 values with 1 or 3 channels or none."""
        picture_HWC = self.pixels(picture)
        if self.native is None:
            return self.logits(self.framed(picture_HWC)[None])[0]
        return self.native.picture_logits(picture_HWC)

    def pixels(self, picture: Picture) -> np.ndarray:
        """A picture as picture_HWC of its own size, such as the runtime takes."""
        if isinstance(picture, (str, Path, PillowImage)):
            picture_HWC = np.array(opened(picture).convert(self.preprocess.mode))
        else:
            picture_HWC = np.asarray(picture)
        if picture_HWC.ndim == 2:
            picture_HWC = picture_HWC[..., None]
        if picture_HWC.dtype != np.uint8 or picture_HWC.ndim != 3 or picture_HWC.shape[2] not in (1, 3) or not picture_HWC.size:
            raise DataError(
                f"an array of shape {picture_HWC.shape} and type {picture_HWC.dtype}. "
                "Give uint8 values, height x width x 3 (or 1, or none); `predict` takes all that Pillow knows."
            )
        return np.ascontiguousarray(picture_HWC)

    def predict(self, pictures: Picture | Iterable[Picture], top: int = 5, batch: int = 32) -> list[Prediction]:
        """The `top` classes of each picture: paths, PIL images or uint8 arrays, one or many."""
        return predicted(self, pictures, top, batch)

    def predict_framed(self, pictures: Sequence[PillowImage], top: int = 5) -> list[Prediction]:
        """The same of pictures that `preprocess.framed` gave, all at once."""
        image_BHWC = np.stack([np.array(picture).reshape(self.image) for picture in pictures])
        return named(torch.from_numpy(self.logits(image_BHWC)), self.classes, top)

    def framed(self, picture: Picture) -> np.ndarray:
        """A picture as image_HWC of the model's size."""
        return np.array(self.preprocess.framed(opened(picture))).reshape(self.image)

    def step_seconds(self, picture: Picture, runs: int = 50) -> list[tuple[str, int, float]]:
        """(kind, number, seconds) of each step of one picture, as the runtime measures them."""
        picture_HWC = self.pixels(picture)
        if type(runs) is not int or not 1 <= runs < 1 << 31:
            raise SpecError(f"{runs!r}. Use a whole number, 1 and more.", path="runs")
        if self.native is None:
            raise SpecError("a simulation says nothing about the time that steps take. Build the runtime.")
        return self.native.step_seconds(picture_HWC, runs)

    def answers(self, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[dict[str, Tensor], Tensor]:
        """({"class": logits_NC}, labels_N) of a split's uint8 (image_BCHW, label_B), whose last batch may be padded."""
        logits, labels = [], []
        for image_BCHW, label_B in batches:
            image_BHWC = image_BCHW[: len(label_B)].permute(0, 2, 3, 1).cpu().numpy()
            logits.append(torch.from_numpy(self.logits(image_BHWC)))
            labels.append(label_B)
        return {"class": torch.cat(logits)}, torch.cat(labels)
