"""How a packed file frames pictures: it says the size to cover, where a trained model says a share of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from frugalvit.data.preprocess import Preprocess
from frugalvit.errors import WeightsError


@dataclass(frozen=True)
class CoverPreprocess(Preprocess):
    """`Preprocess` that resizes to cover (height, width) as they are given, whose shares of the model's may differ."""

    cover: tuple[int, int] = (0, 0)

    def covering(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of such a picture when it is resized."""
        return Preprocess(*self.cover, self.mean, self.std, crop=1.0).covering(width, height)


def preprocess_of(image: dict[str, Any], path: str) -> CoverPreprocess:
    """What frames pictures as the `image` of a program says."""
    height, width, (high, wide) = image["height"], image["width"], image["cover"]
    if high < height or wide < width:
        raise WeightsError(f"{high} x {wide} pixels do not cover {height} x {width}. Pack it again.", path=path)
    crop = min(height / high, width / wide)
    return CoverPreprocess(height, width, tuple(image["mean"]), tuple(image["std"]), crop, image["filter"], (high, wide))
