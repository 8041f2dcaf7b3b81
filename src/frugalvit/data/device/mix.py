"""Mixing as a function of draws: the device version of mix.py, for what is captured in a graph.

    mixing = mix(SwitchMix(), classes=10, smoothing=0.1).to("cuda")
    image_BCHW, target_BC = mixing(image_BCHW, label_B, uniform(key, Stream.MIX, (rows_of(mixing, 128), mixing.draws)))

One row of draws decides for the whole batch, as in mix.py; a row for each picture decides for each, as `MixEach` has it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from frugalvit.data.device.draws import whole
from frugalvit.data.mix import CutMix, Mix, MixEach, Mixup, NoMix, RolledMixup, SwitchMix, smoothed
from frugalvit.errors import SpecError

QUANTILES = 4096  # intervals of a Beta's quantile function


class Beta(nn.Module):
    """Beta(α, α) of one uniform draw: its quantile function, linear between 4,097 places.

    For α = 1 it is the draw itself. Its ends are 0 and 1, so a large α has straight tails in the outermost two intervals.
    """

    quantile_Q: Tensor

    def __init__(self, alpha: float):
        super().__init__()
        from scipy.special import betaincinv  # type: ignore[import-untyped]

        place_Q = torch.linspace(0.0, 1.0, QUANTILES + 1, dtype=torch.float64)
        quantile_Q = torch.from_numpy(betaincinv(alpha, alpha, place_Q.numpy()))
        self.register_buffer("quantile_Q", quantile_Q, persistent=False)

    def forward(self, draw_R: Tensor) -> Tensor:
        """share_R, float64."""
        place_R = draw_R.double() * QUANTILES
        below_R = place_R.to(torch.int64)
        low_R, high_R = self.quantile_Q[below_R], self.quantile_Q[below_R + 1]
        return low_R + (place_R - below_R) * (high_R - low_R)


class Smoothed(nn.Module):
    """Targets of labels, smoothed; targets that are soft already are taken as they are."""

    def __init__(self, classes: int, smoothing: float):
        super().__init__()
        self.classes, self.smoothing = classes, smoothing

    def forward(self, label: Tensor) -> Tensor:
        return smoothed(label, self.classes, self.smoothing) if label.ndim == 1 else label


class DeviceNoMix(nn.Module):
    """`NoMix`. No draws."""

    draws = 0

    def __init__(self, classes: int, smoothing: float):
        super().__init__()
        self.target = Smoothed(classes, smoothing)

    def forward(self, image_BCHW: Tensor, label: Tensor, draws_RK: Tensor) -> tuple[Tensor, Tensor]:
        return image_BCHW, self.target(label)


class DeviceMixup(nn.Module):
    """`Mixup`. Draws: λ."""

    draws = 1

    def __init__(self, spec: Mixup, classes: int, smoothing: float):
        super().__init__()
        self.beta, self.target = Beta(spec.alpha), Smoothed(classes, smoothing)

    def forward(self, image_BCHW: Tensor, label: Tensor, draws_RK: Tensor) -> tuple[Tensor, Tensor]:
        share_R, target_BC = self.beta(draws_RK[:, 0]), self.target(label)
        return weighed(image_BCHW, image_BCHW.flip(0), share_R), weighed(target_BC, target_BC.flip(0), share_R)


class DeviceRolledMixup(nn.Module):
    """`RolledMixup`. Draws: a, of which λ = max(a, 1 − a)."""

    draws = 1

    def __init__(self, spec: RolledMixup, classes: int, smoothing: float):
        super().__init__()
        self.beta, self.target = Beta(spec.alpha), Smoothed(classes, smoothing)

    def forward(self, image_BCHW: Tensor, label: Tensor, draws_RK: Tensor) -> tuple[Tensor, Tensor]:
        drawn_R, target_BC = self.beta(draws_RK[:, 0]), self.target(label)
        share_R = torch.maximum(drawn_R, 1 - drawn_R)
        return weighed(image_BCHW, image_BCHW.roll(1, 0), share_R), weighed(target_BC, target_BC.roll(1, 0), share_R)


class DeviceCutMix(nn.Module):
    """`CutMix`. Draws: λ, the box's center down and to the right."""

    draws = 3

    def __init__(self, spec: CutMix, classes: int, smoothing: float):
        super().__init__()
        self.beta, self.target = Beta(spec.alpha), Smoothed(classes, smoothing)

    def forward(self, image_BCHW: Tensor, label: Tensor, draws_RK: Tensor) -> tuple[Tensor, Tensor]:
        target_BC = self.target(label)
        inside_R1HW, share_R = cut(image_BCHW, self.beta(draws_RK[:, 0]), draws_RK[:, 1:])
        return torch.where(inside_R1HW, image_BCHW.flip(0), image_BCHW), weighed(target_BC, target_BC.flip(0), share_R)


class DeviceSwitchMix(nn.Module):
    """`SwitchMix`. Draws: whether, which way, λ, the box's center down and to the right."""

    draws = 5

    def __init__(self, spec: SwitchMix, classes: int, smoothing: float):
        super().__init__()
        self.spec = spec
        self.mixup_beta, self.cutmix_beta = Beta(spec.mixup_alpha), Beta(spec.cutmix_alpha)
        self.target = Smoothed(classes, smoothing)

    def forward(self, image_BCHW: Tensor, label: Tensor, draws_RK: Tensor) -> tuple[Tensor, Tensor]:
        mixed_R = draws_RK[:, 0].double() < self.spec.probability
        cut_R = draws_RK[:, 1].double() < self.spec.switch
        inside_R1HW, left_R = cut(image_BCHW, self.cutmix_beta(draws_RK[:, 2]), draws_RK[:, 3:])
        share_R = torch.where(mixed_R, torch.where(cut_R, left_R, self.mixup_beta(draws_RK[:, 2])), 1.0)
        partner_BCHW, target_BC = image_BCHW.flip(0), self.target(label)
        pasted_BCHW = torch.where(inside_R1HW & broadcast(mixed_R, image_BCHW), partner_BCHW, image_BCHW)
        # 0 · x' is no number where x' is infinite, so a share of 1 must not be carried out
        added_BCHW = torch.where(broadcast(mixed_R, image_BCHW), weighed(image_BCHW, partner_BCHW, share_R), image_BCHW)
        changed_BCHW = torch.where(broadcast(cut_R, image_BCHW), pasted_BCHW, added_BCHW)
        return changed_BCHW, weighed(target_BC, target_BC.flip(0), share_R)


class DeviceMixEach(nn.Module):
    """`MixEach`. Draws: those of its way, in a row for each picture."""

    draws: int

    def __init__(self, way: DeviceMix):
        super().__init__()
        self.way = way
        self.draws = way.draws

    def forward(self, image_BCHW: Tensor, label: Tensor, draws_BK: Tensor) -> tuple[Tensor, Tensor]:
        mixed: tuple[Tensor, Tensor] = self.way(image_BCHW, label, draws_BK)
        return mixed


def rows_of(mixing: DeviceMix, batch: int) -> int:
    """How many rows of draws a batch takes: one for all, or one a picture."""
    return batch if isinstance(mixing, DeviceMixEach) else 1


def weighed(first: Tensor, second: Tensor, share_R: Tensor) -> Tensor:
    """λ · first + (1 − λ) · second, in their own type."""
    own, other = (broadcast(one_R, first).to(first.dtype) for one_R in (share_R, 1 - share_R))
    return first * own + second * other


def broadcast(values_R: Tensor, like: Tensor) -> Tensor:
    return values_R.reshape(-1, *(1 for _ in like.shape[1:]))


def cut(image_BCHW: Tensor, share_R: Tensor, place_R2: Tensor) -> tuple[Tensor, Tensor]:
    """(inside_R1HW, λ_R): a box of 1 − share around a uniform center, cut at the border (Yun et al. 2019, eq. 2)."""
    side_R1 = (1 - share_R).sqrt()[:, None]
    inside, covered_R = [], torch.ones_like(share_R)
    for length, draw_R in zip(image_BCHW.shape[2:], place_R2.unbind(1), strict=True):
        size_R1 = (length * side_R1).to(torch.int64)
        center_R1 = whole(draw_R, length)[:, None]
        start_R1, end_R1 = (center_R1 - size_R1 // 2).clamp(min=0), (center_R1 + (size_R1 + 1) // 2).clamp(max=length)
        place_L = torch.arange(length, device=image_BCHW.device)
        inside.append((place_L >= start_R1) & (place_L < end_R1))
        covered_R = covered_R * (end_R1 - start_R1)[:, 0]
    share_R = 1 - covered_R / (image_BCHW.shape[2] * image_BCHW.shape[3])
    return inside[0][:, None, :, None] & inside[1][:, None, None, :], share_R


DeviceMix = DeviceNoMix | DeviceMixup | DeviceRolledMixup | DeviceCutMix | DeviceSwitchMix | DeviceMixEach


def mix(spec: Mix, classes: int, smoothing: float) -> DeviceMix:
    """The function of draws that a spec stands for: (image_BCHW float, label_B or target_BC, draws_RK) -> (image, target)."""
    match spec:
        case NoMix():
            return DeviceNoMix(classes, smoothing)
        case Mixup():
            return DeviceMixup(spec, classes, smoothing)
        case RolledMixup():
            return DeviceRolledMixup(spec, classes, smoothing)
        case CutMix():
            return DeviceCutMix(spec, classes, smoothing)
        case SwitchMix():
            return DeviceSwitchMix(spec, classes, smoothing)
        case MixEach():
            return DeviceMixEach(mix(spec.way, classes, smoothing))
    raise SpecError(f"{type(spec).__name__} has no version for the device. Use the spec's own `mix`.")
