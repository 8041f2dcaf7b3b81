"""What the numbers of an augmentation may be. Values of another type are left to `spec.check`, which names them."""

from __future__ import annotations

from typing import Any

from frugalvit.errors import SpecError


def require_probability(value: Any, path: str) -> None:
    if isinstance(value, (int, float)) and not 0 <= value <= 1:
        raise SpecError(f"{value} is not a probability. Use 0 to 1.", path=path)


def require_positive(value: Any, path: str) -> None:
    if isinstance(value, (int, float)) and not value > 0:
        raise SpecError(f"{value} is not above 0.", path=path)


def require_at_least(value: Any, least: float, path: str) -> None:
    if isinstance(value, (int, float)) and not value >= least:
        raise SpecError(f"{value} is too small. Use {least} or more.", path=path)


def require_range(values: Any, path: str, most: float = float("inf")) -> None:
    """Raise unless `values` is (low, high) with 0 < low <= high <= most."""
    if not isinstance(values, tuple) or len(values) != 2 or not all(isinstance(one, (int, float)) for one in values):
        return
    if not 0 < values[0] <= values[1] <= most:
        limit = "" if most == float("inf") else f", up to {most}"
        raise SpecError(f"{values} is not a range. Use two numbers above 0{limit}, the smaller one first.", path=path)
