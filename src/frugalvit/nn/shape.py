"""What travels through `build`: the size of the picture, then the shape of the tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace

from frugalvit.errors import SpecError, whole_number

Size = int | tuple[int, int]  # a square's side, or (height, width)


def pair(size: Size) -> tuple[int, int]:
    """A size as (height, width)."""
    return (size, size) if isinstance(size, int) else size


@dataclass(frozen=True)
class Image:
    """The pictures a model takes: height and width in pixels, and channels."""

    height: int
    width: int
    channels: int = 3

    def __post_init__(self) -> None:
        if any(isinstance(side, int) and side < 1 for side in (self.height, self.width)):
            raise SpecError(f"an image of {self.height} x {self.width} pixels is empty. Use sides of 1 and more.")
        if isinstance(self.channels, int) and not 1 <= self.channels <= 4:
            raise SpecError(f"{self.channels} channels. Use 1 (gray), 2 (gray, alpha), 3 (RGB) or 4 (RGBA).")

    def parsed(self, text: str) -> Image:
        """This image at the size written as `224` or `224x240` (height x width)."""
        sides = [whole_number(side) for side in text.lower().split("x")]
        if len(sides) > 2 or sides[0] is None or sides[-1] is None:
            raise SpecError(f"'{text}' is not a size. Write 224, or 224x240 for height x width.")
        return replace(self, height=sides[0], width=sides[-1])

    def __str__(self) -> str:
        return f"{self.height} x {self.width}"


def image_of(size: Size, channels: int) -> Image:
    """The Image that a zoo function's `image` and `channels` stand for."""
    return Image(*pair(size), channels)


@dataclass(frozen=True)
class Shape:
    """Tokens at one place of a model: a grid of patches, behind named summary tokens."""

    dim: int
    height: int
    width: int
    summary: tuple[str, ...] = ()

    @property
    def patches(self) -> int:
        return self.height * self.width

    @property
    def length(self) -> int:
        return len(self.summary) + self.patches

    def __str__(self) -> str:
        return f"{self.length} x {self.dim}"


@dataclass(frozen=True)
class MapShape:
    """Feature maps at one place of a convolutional network."""

    channels: int
    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.channels} x {self.height} x {self.width}"
