"""Scikit-learn's handwritten digits: 1,797 pictures that need no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frugalvit.data.arrays import Arrays
from frugalvit.data.source import SPLITS, Source, refuse_other_splits
from frugalvit.data.split import Picked, stratified

HELD_OUT = 500


@dataclass(frozen=True)
class Digits:
    """Scikit-learn's digits: 8 x 8, gray. A fixed split: 1,297 to train on; "val" and "test" are both the other 500."""

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]

        digits = load_digits()
        images_NHW = np.rint(digits.images * (255 / 16)).astype(np.uint8)
        source = Arrays(images_NHW, digits.target, [str(digit) for digit in range(10)], "digits")
        held = stratified(source.labels, HELD_OUT, seed=0)
        return Picked(source, np.setdiff1d(np.arange(len(source)), held) if split == "train" else held)
