"""Losses between one head's logits and the batch's targets."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, one_hot

from frugalvit.data.batch import Batch
from frugalvit.errors import SpecError, at


def refuse_smoothing(smoothing: float) -> None:
    if isinstance(smoothing, (int, float)) and not 0 <= smoothing < 1:
        with at("smoothing"):
            raise SpecError(f"a smoothing of {smoothing}. Use 0 up to below 1.")


@dataclass(frozen=True)
class CrossEntropy:
    """−Σ_k t_k log softmax(z)_k, mean over the batch, t = (1 − ε) y + ε / K (Szegedy et al. 2016).

    Smoothing and mixing are both affine in the labels, so smoothing a mixed target equals mixing smoothed ones.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        refuse_smoothing(self.smoothing)

    def build(self, counts_C: Tensor) -> SoftTargets:
        return SoftTargets(self.smoothing)


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """Cross-entropy in which a picture counts by n / (K n_k) of its class, so that rare classes weigh as much as frequent ones.

    Deviation: torch weighs what smoothing gives to every class likewise, and a rare class then draws all pictures to itself.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        refuse_smoothing(self.smoothing)

    def build(self, counts_C: Tensor) -> SoftTargets:
        counts_C = counts_C.double().clamp(min=1)
        return SoftTargets(self.smoothing, (counts_C.sum() / (len(counts_C) * counts_C)).float())


@dataclass(frozen=True)
class SigmoidCrossEntropy:
    """−Σ_k [t_k log σ(z_k) + (1 − t_k) log(1 − σ(z_k))], mean over the batch: each class a question of its own.

    AugReg's pre-training (Steiner et al. 2022). It wants heads that begin with rare classes: a bias of about −ln K.
    """

    def build(self, counts_C: Tensor) -> YesOrNo:
        return YesOrNo()


class YesOrNo(nn.Module):
    def forward(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        target_BC = targets(logits_BC, batch)
        return binary_cross_entropy_with_logits(logits_BC.float(), target_BC, reduction="none").sum(-1).mean()


class SoftTargets(nn.Module):
    weight_C: Tensor | None

    def __init__(self, smoothing: float, weight_C: Tensor | None = None):
        super().__init__()
        self.smoothing = smoothing
        self.register_buffer("weight_C", weight_C, persistent=False)

    def forward(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        target_BC = targets(logits_BC, batch)
        smooth_BC = target_BC * (1 - self.smoothing) + self.smoothing / logits_BC.shape[1]
        loss_B = -(smooth_BC * log_softmax(logits_BC.float(), -1)).sum(-1)
        return (loss_B if self.weight_C is None else loss_B * (target_BC * self.weight_C).sum(-1)).mean()


def targets(logits_BC: Tensor, batch: Batch) -> Tensor:
    """target_BC: the batch's own, or its labels."""
    if batch.target_BC is not None:
        return batch.target_BC
    return one_hot(batch.label_B, logits_BC.shape[1]).to(torch.float32)


Loss = CrossEntropy | WeightedCrossEntropy | SigmoidCrossEntropy
