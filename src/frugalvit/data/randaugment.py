"""RandAugment (Cubuk et al. 2020) as DeiT uses it: which operations a picture meets, and how strong they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image as Pillow

from frugalvit.data.bounds import require_at_least, require_probability
from frugalvit.data.operations import MOST, OPERATIONS
from frugalvit.errors import SpecError


@dataclass(frozen=True)
class Choice:
    """One operation about to be carried out."""

    operation: str
    magnitude: float
    sign: int


@dataclass(frozen=True)
class RandAugment:
    """`count` of fifteen operations, with replacement, each carried out with `probability`; magnitude ~ N(m, deviation).

    The defaults are timm's rand-m9-mstd0.5-inc1, which DeiT names (Touvron et al. 2021, Table 9: "Rand Augment 9/0.5").
    Magnitudes are clipped to 0 to 10. `fill` is what geometry uncovers: ImageNet's mean color.
    """

    count: int = 2
    magnitude: float = 9.0
    deviation: float = 0.5
    probability: float = 0.5
    fill: tuple[int, int, int] = (124, 116, 104)

    def __post_init__(self) -> None:
        require_at_least(self.count, 0, "count")
        require_at_least(self.deviation, 0, "deviation")
        require_probability(self.probability, "probability")
        if isinstance(self.magnitude, (int, float)) and not 0 <= self.magnitude <= MOST:
            raise SpecError(f"a magnitude of {self.magnitude}. Use 0 to {MOST:g}.", path="magnitude")

    def apply(self, picture: Pillow.Image, height: int, width: int, draw: np.random.Generator) -> Pillow.Image:
        for choice in self.choices(draw):
            picture = OPERATIONS[choice.operation](picture, choice.magnitude, choice.sign, self.fill)
        return picture

    def choices(self, draw: np.random.Generator) -> list[Choice]:
        """The operations to carry out, in order; `count` at most."""
        names = list(OPERATIONS)
        operations = draw.integers(len(names), size=self.count).tolist()
        carried_out = draw.random(self.count) < self.probability
        magnitudes = draw.normal(self.magnitude, self.deviation, self.count).clip(0.0, MOST).tolist()
        signs = (2 * draw.integers(2, size=self.count) - 1).tolist()
        rows = zip(operations, magnitudes, signs, carried_out, strict=True)
        return [Choice(names[operation], magnitude, sign) for operation, magnitude, sign, wanted in rows if wanted]
