"""What a batch on the device looks like before a step."""

from __future__ import annotations

from dataclasses import dataclass

from frugalvit.data.operations import Fill
from frugalvit.errors import SpecError

MOST = 2**13  # pixels a side: places are counted in 16.16 fixed point, with room for what geometry moves them by


@dataclass(frozen=True)
class MapSize:
    """Pictures of one common size, gray or RGB."""

    height: int
    width: int
    channels: int = 3

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise SpecError(f"{self.channels} channels. On the device pictures are gray or RGB: augment these on the CPU.")
        if not (0 < self.height <= MOST and 0 < self.width <= MOST):
            raise SpecError(f"pictures of {self.height} x {self.width}. Use sides of 1 to {MOST}.")

    def filled(self, fill: Fill) -> tuple[int, ...]:
        """A color for these channels: gray takes the average, as in `operations.filled`."""
        return fill if self.channels == 3 else (round(sum(fill) / len(fill)),)
