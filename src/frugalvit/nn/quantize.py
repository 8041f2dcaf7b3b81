"""Numbers of one bit, and the gradients that stand in for theirs (Le & Li 2023; docs/papers/binaryvit.md).

    activations     b = sign(x)                                 db/dx := max(0, 2 − 2 |x|), the Bi-Real triangle
    weights         w = a_r sign(w'), a_r = mean |w| of a row    dw/dw' := 1 where |w'| <= 1, else 0; a_r is a constant
                    w' = w − mean of its row (linear maps), or w itself (convolutions)
    probabilities   y = c [p > c/2] v, c learned                 d/dp := 1 where 0 <= p/c <= 1, else 0
                                                                 d/dc := [p > c/2] − p/c there, 1 where p > c

sign(0) = +1, in `signs` alone. Deviation: the released code has torch's sign(0) = 0, which one bit cannot hold.

Scales stand behind the products: products of signs are whole numbers, exact in any order, and a packed program computes the
same ones. bf16 holds them up to 256.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

FLOOR = 1e-5  # the least step of probabilities
SMALLEST = 1e-12  # a scale below it counts as this where it divides


def signs(x: Tensor) -> Tensor:
    """+1 where x >= 0, else −1."""
    # The last operation is not in place: torch 2.11 compiles the gradient of a Function that returns such a result to zeros.
    return (x >= 0).to(x.dtype).mul_(2) - 1


class BiRealSign(torch.autograd.Function):
    """sign(x) with the derivative 2 + 2x on [−1, 0), 2 − 2x on [0, 1] and 0 elsewhere (Liu et al. 2018, eq. 7)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return signs(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return x.abs().mul_(-2).add_(2).clamp_(min=0).mul_(gradient)


class ClippedSign(torch.autograd.Function):
    """sign(w); the gradient passes where |w| <= 1, divided by the scale of its row, which multiplies behind the product."""

    @staticmethod
    def forward(ctx: Any, weight_OI: Tensor, scale_O1: Tensor) -> Tensor:
        ctx.save_for_backward(weight_OI, scale_O1)
        return signs(weight_OI)

    @staticmethod
    def backward(ctx: Any, gradient_OI: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        weight_OI, scale_O1 = ctx.saved_tensors
        return gradient_OI / scale_O1.clamp(min=SMALLEST) * (weight_OI.abs() <= 1), None


class ClippedHalf(torch.autograd.Function):
    """1 where x > 1/2, else 0; the gradient passes where 0 <= x <= 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x > 0.5).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * ((x >= 0) & (x <= 1))


class Damped(torch.autograd.Function):
    """w itself; its gradient grows by strength · (w − a sign(w)), that of strength/2 Σ (|w| − a)²."""

    @staticmethod
    def forward(ctx: Any, weight_OI: Tensor, scale_O1: Tensor, strength: float) -> Tensor:
        ctx.save_for_backward(weight_OI, scale_O1)
        ctx.strength = strength
        return weight_OI.view_as(weight_OI)

    @staticmethod
    def backward(ctx: Any, gradient_OI: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        weight_OI, scale_O1 = ctx.saved_tensors
        return gradient_OI + ctx.strength * (weight_OI - scale_O1 * signs(weight_OI)), None, None


def sign(x: Tensor) -> Tensor:
    """The sign of activations, with the Bi-Real gradient."""
    return BiRealSign.apply(x)


def centered(weight_OI: Tensor) -> Tensor:
    """Each row minus its mean."""
    return weight_OI - weight_OI.mean(1, keepdim=True)


def signed_rows(weight_OI: Tensor, latent_OI: Tensor, damping: float = 0.0) -> tuple[Tensor, Tensor]:
    """(signs_OI of the latent weights, scale_O of the weights): their product is the matrix of one bit and a scale a row.

    `latent_OI` is a function of `weight_OI`, through which the gradient goes.
    """
    scale_O = weight_OI.detach().abs().mean(1)
    scale_O1 = scale_O[:, None]
    if damping > 0:
        latent_OI = Damped.apply(latent_OI, scale_O1, damping)
    return ClippedSign.apply(latent_OI, scale_O1), scale_O


def floored(step: Tensor) -> Tensor:
    """max(step, FLOOR), the gradient passing as it is, so that a step can come back from below.

    Deviation: the released code has no guard, and a step that crosses zero turns its quantizer around.
    """
    return step + (FLOOR - step.detach()).clamp(min=0)


def thresholded(probability: Tensor, step: Tensor) -> Tensor:
    """1 where the probability is above half a step, else 0. Times the step, the derivatives are those above."""
    return ClippedHalf.apply(probability / step)


class OneBit(nn.Module):
    """A module that computes one product, both of whose factors have one bit an entry: costs count these apart.

    The product is computed in the type `factors`; None: in the one that they have.
    """

    factors: torch.dtype | None = None

    def narrowed(self, bits: Tensor) -> Tensor:
        return bits if self.factors is None else bits.to(self.factors)
