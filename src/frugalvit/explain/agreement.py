"""How often classifiers differ over the same pictures: the disagreement rates of DeiT (Touvron et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from frugalvit.errors import DataError

Guesses = Tensor | np.ndarray | Sequence[int]  # one class a picture; a negative number where there is none


@dataclass(frozen=True)
class Disagreement:
    """The share of pictures that two classifiers put into different classes, for every pair of them."""

    names: tuple[str, ...]
    shares: tuple[tuple[float, ...], ...]  # symmetric; against the ground truth, a classifier's error
    pictures: int

    def between(self, first: str, second: str) -> float:
        """The share for one pair, by their names."""
        return self.shares[self.names.index(first)][self.names.index(second)]

    @property
    def standard_errors(self) -> tuple[tuple[float, ...], ...]:
        """Of each share, as a binomial one: sqrt(p (1 − p) / n)"""
        return tuple(tuple(math.sqrt(p * (1 - p) / self.pictures) for p in row) for row in self.shares)

    def rows(self, digits: int = 3) -> list[dict[str, str]]:
        """A row a classifier, for `report.table`: shares with three digits, as the paper prints them."""
        return [
            {"": name} | {other: f"{share:.{digits}f}" for other, share in zip(self.names, row, strict=True)}
            for name, row in zip(self.names, self.shares, strict=True)
        ]

    def note(self) -> str:
        """What belongs under the table."""
        largest = max(max(row) for row in self.standard_errors)
        return f"Share of n = {self.pictures} pictures on which two differ; binomial standard errors up to {largest:.4f}."

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "names": list(self.names),
            "pictures": self.pictures,
            "disagreement": [list(row) for row in self.shares],
            "standard_error": [list(row) for row in self.standard_errors],
        }


def disagreement(guesses: Mapping[str, Guesses]) -> Disagreement:
    """The rates between all classifiers by name, ground truth among them. Pictures that one has no class for are left out."""
    if not guesses:
        raise DataError("there is no classifier to compare.")
    found = [whole_numbers(name, given) for name, given in guesses.items()]
    lengths = {name: len(one) for name, one in zip(guesses, found, strict=True)}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"classes of different numbers of pictures: {counts}. All must see the same pictures, in one order.")
    guess_KN = np.stack(found)
    guess_KN = guess_KN[:, (guess_KN >= 0).all(0)]
    if not guess_KN.shape[1]:
        raise DataError("there is no picture that all have a class for.")
    shares_KK = (guess_KN[:, None] != guess_KN).mean(-1)
    return Disagreement(tuple(guesses), tuple(map(tuple, shares_KK.tolist())), guess_KN.shape[1])


def together(heads: Sized) -> str:
    """What the heads of a model are called where they answer as one: two by DeiT's word."""
    return "both" if len(heads) == 2 else "all heads"


def whole_numbers(name: str, guesses: Guesses) -> np.ndarray:
    found = torch.as_tensor(guesses).cpu().numpy()
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        raise DataError(f"{found.dtype} of shape {found.shape}. Give one whole number a picture, its class.", path=name)
    return found.astype(np.int64)


def places_of(classes: tuple[str, ...], wanted: tuple[str, ...]) -> np.ndarray:
    """Where each of `classes` stands among `wanted`, the same names in another order: `places_of(...)[guess_N]`."""
    if len(classes) != len(wanted):
        raise DataError(f"{len(classes)} classes against {len(wanted)}. Compare classifiers of the same classes.")
    if classes == wanted:
        return np.arange(len(classes))
    strange = sorted(set(classes) ^ set(wanted))
    if strange:
        raise DataError(f"'{strange[0]}' is a class of one side only. Compare classifiers of the same classes.")
    if len(set(classes)) < len(classes):
        twice = next(name for name in classes if classes.count(name) > 1)
        raise DataError(f"two classes are called '{twice}', so another order cannot be put right. Give each its own name.")
    place = {name: index for index, name in enumerate(wanted)}
    return np.array([place[name] for name in classes], dtype=np.int64)
