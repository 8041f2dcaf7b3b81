"""A packed program on its way: buffers, steps and tensors, and which bits of the model each step decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from frugalvit.deploy.packed_file import Step, words_of
from frugalvit.errors import SpecError, WeightsError, at

MOST_NUMBERS = 1 << 26  # in all buffers
LANES = 16  # rows are padded to a multiple of this

Precision = Literal["single", "half"]  # of positions and heads; all else is in single precision
PLAIN = {"single": "<f4", "half": "<f2"}


@dataclass(frozen=True)
class SignPlace:
    """Bits called `name` that a step decides, and where the model decides them: x + shift < 0.

    x is the input or the output of `module`; without a shift the bits are where it is above 0.
    """

    step: int
    name: str
    module: str
    side: Literal["input", "output"]
    shift: str = ""


class ProgramWriter:
    """Collects what a packed file holds. Fields of steps that are tensors become names of tensors here."""

    def __init__(self, precision: Precision):
        self.compact = PLAIN[precision]
        self.buffers: dict[str, list[int]] = {}
        self.steps: list[Step] = []
        self.tensors: dict[str, np.ndarray] = {}
        self.places: list[SignPlace] = []

    def buffer(self, name: str, rows: int, columns: int) -> str:
        shape = self.buffers.setdefault(name, [rows, columns])
        assert shape == [rows, columns]
        if sum(high * -(-wide // LANES) * LANES for high, wide in self.buffers.values()) > MOST_NUMBERS:
            raise SpecError(f"its tokens are more than {MOST_NUMBERS} numbers. Use a smaller image or larger patches.")
        return name

    def step(self, kind: str, to: str, fields: Mapping[str, Any]) -> int:
        """Add a step; its number."""
        found: Step = {"kind": kind, "to": to}
        with at(f"steps[{len(self.steps)}]"), at(kind):
            for name, value in fields.items():
                real = self.compact if name == "positions" or (kind, name) == ("head", "weight") else PLAIN["single"]
                found[name] = self.named(value, name, real)
        self.steps.append(found)
        return len(self.steps) - 1

    def named(self, value: Any, name: str, real: str) -> Any:
        """Tensors as their names, also inside a field; other values as they are."""
        if isinstance(value, dict):
            with at(name):
                return {inner: self.named(one, inner, real) for inner, one in value.items()}
        return self.tensor(value, name, real) if isinstance(value, Tensor) else value

    def tensor(self, value: Tensor, path: str, real: str) -> str:
        """Booleans as words of one-bit numbers, [O, C] or [taps, O, C]; else reals of that kind."""
        if value.dtype == torch.bool:
            taps_TOC = value.cpu().numpy().reshape(-1, *value.shape[-2:])
            return self.keep(np.concatenate([words_of(one_OC) for one_OC in taps_TOC], axis=1))
        array = value.detach().cpu().numpy()
        with np.errstate(over="ignore"):
            rounded = array.astype(real)
        if not np.isfinite(array).all():
            raise WeightsError("numbers that are not finite. Train again from an earlier state.", path=path)
        if not np.isfinite(rounded).all():
            cure = " Leave --half out." if real == PLAIN["half"] else ""
            raise WeightsError(f"{np.abs(array).max():.3g} is too large for {8 * rounded.itemsize} bits.{cure}", path=path)
        return self.keep(rounded)

    def keep(self, array: np.ndarray) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = np.ascontiguousarray(array)
        return name
