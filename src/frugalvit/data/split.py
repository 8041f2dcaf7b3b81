"""Parts of a source: some of its pictures, in its order, and the validation split of a data set that has none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from PIL import Image as Pillow

from frugalvit.data.randomness import Stream, numpy_generator
from frugalvit.data.source import Source
from frugalvit.errors import DataError, SpecError


class NoSplit(DataError):
    """A split that the data set does not have, though nothing is wrong with it."""


class Picked:
    """Some pictures of a source, by their indices in it. `classes` names fewer classes, where later ones were dropped."""

    def __init__(self, source: Source, indices: np.ndarray, classes: Sequence[str] | None = None):
        self.source = source
        self.indices = np.asarray(indices, dtype=np.int64)
        self.classes = tuple(source.classes if classes is None else classes)
        self.labels = source.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def picture(self, index: int) -> Pillow.Image:
        return self.source.picture(int(self.indices[index]))

    def name(self, index: int) -> str:
        return self.source.name(int(self.indices[index]))

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(self.source.fingerprint().encode(), digest_size=8)
        digest.update(repr(self.classes).encode())
        digest.update(self.indices.tobytes())
        digest.update(self.labels.tobytes())
        return digest.hexdigest()


class Renumbered:
    """A source whose classes are some of `classes`, by name: its labels are their places there."""

    def __init__(self, source: Source, classes: Sequence[str]):
        self.source = source
        self.classes = tuple(classes)
        self.labels = np.array([self.classes.index(name) for name in source.classes])[source.labels]

    def __len__(self) -> int:
        return len(self.source)

    def picture(self, index: int) -> Pillow.Image:
        return self.source.picture(index)

    def name(self, index: int) -> str:
        return self.source.name(index)

    def fingerprint(self) -> str:
        return self.source.fingerprint()


def refuse_impossible_share(share: float, field: str) -> None:
    if not 0 <= share < 1:
        raise SpecError(f"a share of {share}. Use 0 or more, and less than 1.", path=field)


def held_out(source: Source, split: str, holdout: float, seed: int, cure: str) -> Source:
    """The "train" or the "val" part of a source: `holdout` of its pictures, stratified, are kept from training.

    `cure` is how else a user could come to a validation split: "add a folder val".
    """
    if holdout == 0 and split == "train":
        return source
    held = stratified(source.labels, max(1, round(holdout * len(source))) if holdout else 0, seed)
    if split == "val" and not len(held):
        why = "holdout=0 keeps no pictures from training" if holdout == 0 else "every class has a single picture"
        raise NoSplit(f"there is no split 'val', and {why}. Use holdout=0.1, or {cure}.", path="val")
    if split == "val":
        return Picked(source, held)
    return Picked(source, np.setdiff1d(np.arange(len(source)), held))


def stratified(labels: np.ndarray, total: int, seed: int) -> np.ndarray:
    """About `total` indices, sorted, in the proportions of the classes (see `apportioned`), drawn by `seed`."""
    groups = by_class(labels)
    if total == 0 or not groups:
        return np.zeros(0, dtype=np.int64)
    wanted = apportioned(np.array([len(members) for members in groups.values()]), total)
    pairs = zip(groups.items(), wanted, strict=True)
    picked = [shuffled(members, seed, Stream.SPLIT, label)[:count] for (label, members), count in pairs]
    return np.sort(np.concatenate(picked))


def by_class(labels: np.ndarray) -> dict[int, np.ndarray]:
    """The indices of each class that occurs, in order."""
    found, counts = np.unique(labels, return_counts=True)
    groups = np.split(np.argsort(labels, kind="stable"), np.cumsum(counts)[:-1])
    return dict(zip(found.tolist(), groups, strict=True)) if len(found) else {}


def apportioned(counts: np.ndarray, total: int) -> np.ndarray:
    """`total` shared out in proportion to `counts` (largest remainder), with at least one of two, and never all of them."""
    whole = counts * total // counts.sum()
    remainder = counts * total % counts.sum()
    largest_first = np.argsort(-remainder, kind="stable")
    whole[largest_first[: total - whole.sum()]] += 1
    return np.clip(whole, np.minimum(counts - 1, 1), counts - 1)


def shuffled(members: np.ndarray, seed: int, *place: int) -> np.ndarray:
    """The members in an order of their own. From raw bits, which numpy keeps equal between its versions."""
    bits = np.asarray(numpy_generator(seed, *place).bit_generator.random_raw(len(members)))
    return members[np.argsort(bits, kind="stable")]
