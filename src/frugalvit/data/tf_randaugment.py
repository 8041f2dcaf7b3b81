"""RandAugment (Cubuk et al. 2020) as TensorFlow's code has it and AugReg uses it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image as Pillow

from frugalvit.data.bounds import require_at_least
from frugalvit.data.tf_operations import OPERATIONS, Chance


@dataclass(frozen=True)
class TfRandAugment:
    """`layers` of sixteen operations, with replacement, each one always carried out, all at one magnitude.

    AugReg's (Steiner et al. 2022) with magnitudes of 0 to 20; not timm's set, which is `RandAugment`. `fill` is what
    geometry uncovers and Cutout leaves.
    """

    layers: int = 2
    magnitude: float = 10.0
    fill: tuple[int, int, int] = (128, 128, 128)

    def __post_init__(self) -> None:
        require_at_least(self.layers, 0, "layers")
        require_at_least(self.magnitude, 0, "magnitude")

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        for operation, chance in self.choices(draw):
            picture = OPERATIONS[operation](picture, self.magnitude, chance, self.fill)
        return picture

    def choices(self, draw: np.random.Generator) -> list[tuple[str, Chance]]:
        """The operations to carry out, in order, and what each leaves to chance."""
        names = list(OPERATIONS)
        chosen = draw.integers(len(names), size=self.layers).tolist()
        signs = (2 * draw.integers(2, size=self.layers) - 1).tolist()
        places = draw.random((self.layers, 2)).tolist()
        return [(names[one], Chance(sign, *place)) for one, sign, place in zip(chosen, signs, places, strict=True)]
