"""A trained part as the numbers of its packed step: norms, shifts and scales folded in float64 (docs/format.md)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from frugalvit.nn.binary_attention import OneBitHeads
from frugalvit.nn.binary_block import PooledBranch
from frugalvit.nn.binary_channels import AffineSum, RPReLU, TokenBatchNormalized
from frugalvit.nn.binary_linear import BinaryLinear, SignedProduct
from frugalvit.nn.binary_merge import BinarySquares, RealSquares
from frugalvit.nn.quantize import floored
from frugalvit.nn.residual import ScaledSum

Numbers = dict[str, Tensor]  # by their names in a step: reals in float64, weights of one bit as booleans (true is −1)


def folded_norm(norm: TokenBatchNormalized) -> tuple[Tensor, Tensor]:
    """(gain_D, bias_D): γ (x − μ) / √(σ² + ε) + β = gain ⊙ x + bias."""
    gain_D = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    return gain_D, norm.bias.double() - norm.running_mean.double() * gain_D


def folded_activation(scale: Tensor, norm: TokenBatchNormalized, act: RPReLU) -> Numbers:
    """RPReLU(norm(scale · p) + shortcuts)."""
    gain_D, bias_D = folded_norm(norm)
    return {
        "gain": scale.double() * gain_D,
        "bias": bias_D - act.before.double(),
        "slope": act.slope.double(),
        "move": act.after.double(),
    }


def folded_linear(map_: BinaryLinear) -> Numbers:
    """A shift before a sign is a threshold; x + shift and x against −shift round to the same side."""
    assert isinstance(map_.product, SignedProduct)
    signs_OI, scale_O = map_.product.rows()
    activation = folded_activation(scale_O, map_.norm, map_.act)
    return {"threshold": -map_.shift.double(), "weight": signs_OI < 0} | activation


def folded_heads(heads: OneBitHeads) -> Numbers:
    thresholds = {f"{name}_threshold": -getattr(heads, f"shift_{name[0]}").double() for name in ("query", "key", "value")}
    return thresholds | folded_activation(floored(heads.step), heads.norm, heads.act)


def limit_of(heads: OneBitHeads) -> float:
    """The probability above which a key is attended to; none is above 1."""
    return min(floored(heads.step).item() / 2, 1.0)


def folded_sum(total: nn.Module, dim: int) -> tuple[Tensor, Tensor]:
    """(gain_D, bias_D) of a branch before it is added."""
    zeros_D = torch.zeros(dim, dtype=torch.float64)
    if isinstance(total, AffineSum):
        return total.affine.factor.double(), total.affine.offset.double()
    return (total.gamma.double() if isinstance(total, ScaledSum) else zeros_D + 1), zeros_D


def folded_branches(branches: Iterable[PooledBranch], dim: int) -> Numbers:
    """Windows of 1, 3 or 5 along rows or columns, as one filter in the shape of a cross."""
    names = ("center", "near_rows", "far_rows", "near_columns", "far_columns", "bias")
    cross = {name: torch.zeros(dim, dtype=torch.float64) for name in names}
    for branch in branches:
        high, wide = branch.window
        share_D = branch.affine.factor.double() / (high * wide)
        along = "rows" if high > 1 else "columns"
        cross["center"] += share_D
        cross["bias"] += branch.affine.offset.double()
        if high * wide >= 3:
            cross[f"near_{along}"] += share_D
        if high * wide == 5:
            cross[f"far_{along}"] += share_D
    return cross


def folded_merge(squares: BinarySquares) -> Numbers:
    """Behind the first norm, which is a step of its own. `weight` is [taps, O, C]."""
    assert isinstance(squares.product, SignedProduct)
    signs_OI, scale_O = squares.product.rows()
    taps_TOC = by_tap(signs_OI).transpose(0, 1) < 0
    activation = folded_activation(scale_O, squares.norm2, squares.act)
    return {"threshold": -squares.shift.double(), "weight": taps_TOC} | activation


def folded_real_merge(squares: RealSquares) -> tuple[Tensor, Tensor]:
    """(weight_OI, bias_O) of both norms and the convolution between them, I tap by tap."""
    before_C, shift_C = folded_norm(squares.norm1)
    after_O, bias_O = folded_norm(squares.norm2)
    weight_OTC = by_tap(squares.weight.double().flatten(1)) * after_O[:, None, None]
    return (weight_OTC * before_C).flatten(1), bias_O + (weight_OTC * shift_C).sum((1, 2))


def by_tap(kernel_OI: Tensor) -> Tensor:
    """A kernel's rows (channels, rows, columns) as [O, taps, C]."""
    return kernel_OI.unflatten(1, (-1, 4)).transpose(1, 2)


def folded_head(norm: TokenBatchNormalized, linear: nn.Linear, share: float) -> tuple[Tensor, Tensor]:
    """(weight_CD, bias_C) of `share` times the head behind its norm; a norm of a mean is the mean of norms."""
    gain_D, shift_D = folded_norm(norm)
    weight_CD = linear.weight.double()
    bias_C = weight_CD @ shift_D
    if linear.bias is not None:
        bias_C = bias_C + linear.bias.double()
    return share * weight_CD * gain_D, share * bias_C
