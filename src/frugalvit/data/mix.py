"""Pictures and labels of a batch mixed two by two: mixup, CutMix, or one of them at random, and label smoothing.

A picture's partner is the one at its place in the reversed batch, and one λ holds for the whole batch (timm's mode "batch",
which DeiT uses), unless `MixEach` draws for every picture (timm's "elem"). timm asks for an even batch; with an odd one the
middle picture is its own partner, which changes nothing. big_vision's mixup has partners of its own (`RolledMixup`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from frugalvit.data.batch import Batch
from frugalvit.data.bounds import require_positive, require_probability


@dataclass(frozen=True)
class NoMix:
    """Pictures as they are; targets smoothed (Szegedy et al. 2016, sec. 7)."""

    def mix(self, batch: Batch, classes: int, smoothing: float, draw: np.random.Generator) -> Batch:
        return replace(batch, target_BC=smoothed(batch.label_B, classes, smoothing))


@dataclass(frozen=True)
class Mixup:
    """λ x + (1 − λ) x', and targets likewise, λ ~ Beta(α, α) (Zhang et al. 2018, sec. 2). DeiT's α."""

    alpha: float = 0.8

    def __post_init__(self) -> None:
        require_positive(self.alpha, "alpha")

    def mix(self, batch: Batch, classes: int, smoothing: float, draw: np.random.Generator) -> Batch:
        share = draw.beta(self.alpha, self.alpha)
        image_BCHW = batch.image_BCHW * share + batch.image_BCHW.flip(0) * (1 - share)
        target_BC = mixed_target(batch.label_B, classes, smoothing, share)
        return replace(batch, image_BCHW=image_BCHW, target_BC=target_BC)


@dataclass(frozen=True)
class RolledMixup:
    """Mixup as AugReg's big_vision does it (Steiner et al. 2022): the partner is the picture before, in a ring.

    λ = max(a, 1 − a), a ~ Beta(α, α), so a picture keeps the larger share.
    """

    alpha: float = 0.2

    def __post_init__(self) -> None:
        require_positive(self.alpha, "alpha")

    def mix(self, batch: Batch, classes: int, smoothing: float, draw: np.random.Generator) -> Batch:
        drawn = draw.beta(self.alpha, self.alpha)
        share = max(drawn, 1 - drawn)
        image_BCHW = batch.image_BCHW * share + batch.image_BCHW.roll(1, 0) * (1 - share)
        target_BC = smoothed(batch.label_B, classes, smoothing)
        return replace(batch, image_BCHW=image_BCHW, target_BC=target_BC * share + target_BC.roll(1, 0) * (1 - share))


@dataclass(frozen=True)
class CutMix:
    """A box of the partner pasted in; λ is the share left, after the box is cut at the border (Yun et al. 2019, sec. 3.1)."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        require_positive(self.alpha, "alpha")

    def mix(self, batch: Batch, classes: int, smoothing: float, draw: np.random.Generator) -> Batch:
        height, width = batch.image_BCHW.shape[-2:]
        top, bottom, left, right = cut_box(height, width, draw.beta(self.alpha, self.alpha), draw)
        image_BCHW = batch.image_BCHW.clone()
        image_BCHW[:, :, top:bottom, left:right] = batch.image_BCHW.flip(0)[:, :, top:bottom, left:right]
        share = 1 - (bottom - top) * (right - left) / (height * width)
        target_BC = mixed_target(batch.label_B, classes, smoothing, share)
        return replace(batch, image_BCHW=image_BCHW, target_BC=target_BC)


@dataclass(frozen=True)
class SwitchMix:
    """With `probability` a batch is mixed: by CutMix in a share `switch` of the cases, else by mixup.

    The defaults are DeiT's (Touvron et al. 2021, Table 9; what it calls "prob." are the alphas). Lee et al. (2021) mix half
    of the batches: `SwitchMix(1.0, 1.0, probability=0.5)`.
    """

    mixup_alpha: float = 0.8
    cutmix_alpha: float = 1.0
    probability: float = 1.0
    switch: float = 0.5

    def __post_init__(self) -> None:
        require_positive(self.mixup_alpha, "mixup_alpha")
        require_positive(self.cutmix_alpha, "cutmix_alpha")
        require_probability(self.probability, "probability")
        require_probability(self.switch, "switch")

    def mix(self, batch: Batch, classes: int, smoothing: float, draw: np.random.Generator) -> Batch:
        if draw.random() >= self.probability:
            return NoMix().mix(batch, classes, smoothing, draw)
        way = CutMix(self.cutmix_alpha) if draw.random() < self.switch else Mixup(self.mixup_alpha)
        return way.mix(batch, classes, smoothing, draw)


@dataclass(frozen=True)
class MixEach:
    """Any of these with draws of its own for every picture: whether, which way, λ and box (timm's mode "elem").

    Partners are those of `way`. Two partners draw apart, so that one may be mixed and the other not.
    """

    way: Mixup | RolledMixup | CutMix | SwitchMix = SwitchMix()

    def mix(self, batch: Batch, classes: int, smoothing: float, draw: np.random.Generator) -> Batch:
        place_B = torch.arange(len(batch.label_B), device=batch.label_B.device)
        partner_B = place_B.roll(1) if isinstance(self.way, RolledMixup) else place_B.flip(0)
        pair_B2 = torch.stack((place_B, partner_B), 1)
        pairs = (self.way.mix(picked(batch, pair_2), classes, smoothing, draw) for pair_2 in pair_B2)
        mixed = [(pair.image_BCHW[0], pair.target_BC[0]) for pair in pairs if pair.target_BC is not None]
        image_BCHW, target_BC = (torch.stack(rows) for rows in zip(*mixed, strict=True))
        return replace(batch, image_BCHW=image_BCHW, target_BC=target_BC)


def picked(batch: Batch, place_P: Tensor) -> Batch:
    return Batch(batch.image_BCHW[place_P], batch.label_B[place_P], batch.index_B[place_P])


def cut_box(height: int, width: int, share: float, draw: np.random.Generator) -> tuple[int, int, int, int]:
    """(top, bottom, left, right): a box of 1 − share of the picture around a uniform center, cut at the border (eq. 2)."""
    side = np.sqrt(1 - share)
    high, wide = int(height * side), int(width * side)
    y, x = int(draw.integers(height)), int(draw.integers(width))
    top, bottom = max(0, y - high // 2), min(height, y + (high + 1) // 2)
    left, right = max(0, x - wide // 2), min(width, x + (wide + 1) // 2)
    return top, bottom, left, right


def smoothed(label_B: Tensor, classes: int, smoothing: float) -> Tensor:
    """target_BC: 1 − ε + ε / K for the label, ε / K for every other class."""
    off = smoothing / classes
    target_BC = torch.full((len(label_B), classes), off, device=label_B.device)
    return target_BC.scatter_(1, label_B[:, None], 1 - smoothing + off)


def mixed_target(label_B: Tensor, classes: int, smoothing: float, share: float) -> Tensor:
    target_BC = smoothed(label_B, classes, smoothing)
    return target_BC * share + target_BC.flip(0) * (1 - share)


Mix = NoMix | Mixup | RolledMixup | CutMix | SwitchMix | MixEach
