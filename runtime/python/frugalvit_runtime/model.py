"""A packed model: pictures in, classes out."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from frugalvit_runtime._native import FileError, PackedModel, read_picture

MOST_THREADS = 256

File = str | bytes | os.PathLike[str]


class Model:
    """A packed file, ready to answer on some threads of the CPU; without a number as FRUGALVIT_THREADS says, or on all."""

    def __init__(self, path: File, threads: int | None = None):
        count = wanted_threads() if threads is None else checked(threads, "threads")
        self._made_of = os.path.abspath(os.fsdecode(path)), count  # noqa: PTH100 -- bytes too
        try:
            self._native = PackedModel(path, count)
        except FileError as error:
            name = os.fsdecode(path)
            raise FileError(str(error) if name in str(error) else f"{name}: {error}") from None

    def __reduce__(self) -> tuple[type[Model], tuple[str, int]]:
        """Other processes open the file anew."""
        return Model, self._made_of

    @property
    def name(self) -> str:
        return self._native.name

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits; empty where the file has none."""
        return tuple(self._native.labels)

    @property
    def image(self) -> tuple[int, int, int]:
        """Height, width and channels of the images that `logits` takes."""
        height, width, channels = self._native.image
        return height, width, channels

    @property
    def kernels(self) -> str:
        """The instruction set that computes: reference, avx2, avx512 or neon."""
        return self._native.kernels

    def logits(self, image_BHWC: NDArray[np.uint8]) -> NDArray[np.float32]:
        """The logits_BC of uint8 images that have the model's size."""
        image_BHWC = np.asarray(image_BHWC)
        if image_BHWC.dtype != np.uint8 or image_BHWC.shape[1:] != self.image:
            size = " x ".join(map(str, self.image))
            raise ValueError(
                f"image_BHWC: shape {image_BHWC.shape} and type {image_BHWC.dtype}. Give uint8 values, images x {size}; "
                "`classify` takes pictures of any size."
            )
        return self._native.logits(np.ascontiguousarray(image_BHWC))

    def picture_logits(self, picture: NDArray[np.uint8] | File) -> NDArray[np.float32]:
        """The logits_C of a picture of any size, a file or uint8 values, resized and cut as the packed file says."""
        picture_HWC = read_picture(picture) if isinstance(picture, str | bytes | os.PathLike) else np.asarray(picture)
        if picture_HWC.ndim == 2:
            picture_HWC = picture_HWC[..., None]
        if picture_HWC.dtype != np.uint8 or picture_HWC.ndim != 3 or picture_HWC.shape[2] not in (1, 3) or not picture_HWC.size:
            raise ValueError(
                f"picture: shape {picture_HWC.shape} and type {picture_HWC.dtype}. "
                "Give uint8 values, height x width x 3 (or 1, or none)."
            )
        return self._native.picture_logits(np.ascontiguousarray(picture_HWC))

    def classify(self, picture: NDArray[np.uint8] | File, top: int = 5) -> list[tuple[str, float]]:
        """The `top` labels of a picture with their probabilities, the most probable first."""
        if top < 1:
            raise ValueError(f"top: {top}. Use 1 or more.")
        logits_C = self.picture_logits(picture).astype(np.float64)
        if not np.isfinite(logits_C).all():
            raise FileError("the model has no answer: not all logits are finite, for its numbers are too large")
        odds_C = np.exp(logits_C - logits_C.max())
        labels = self.labels or tuple(f"class {number}" for number in range(len(logits_C)))
        order = np.argsort(-logits_C, kind="stable")[:top]
        return [(labels[place], float(odds_C[place] / odds_C.sum())) for place in order]


def wanted_threads() -> int:
    """As the environment says; else all that the process may use."""
    text = os.environ.get("FRUGALVIT_THREADS")
    if text:
        return checked(int(text) if text.isdecimal() else text, "FRUGALVIT_THREADS")
    return min(usable_processors(), MOST_THREADS)


def checked(threads: object, where: str) -> int:
    if type(threads) is not int or not 1 <= threads <= MOST_THREADS:
        raise ValueError(f"{where}: {threads!r}. Use a whole number, 1 to {MOST_THREADS}.")
    return threads


def usable_processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
