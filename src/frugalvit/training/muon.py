"""Muon, momentum orthogonalized by Newton-Schulz, for matrices (Jordan et al. 2024); AdamW for all else, in one optimizer.

A matrix W with gradient G and momentum B moves by

    B ← μ B + (1 − μ) G        X = μ B + (1 − μ) G        W ← W − lr (s NS(X) + λ W)

so with Nesterov's look ahead and decoupled decay; s depends on the shape of W and on the units of lr.

Axes: M matrices, R rows, C columns; P the numbers of all matrices, one after the other.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import groupby
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

Units = Literal["adamw", "spectral"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # a, b, c of Jordan et al.: the steepest at 0 that end near 1
EPS = 1e-7  # a norm below this is taken as this


def orthogonalized(x_MRC: Tensor, iterations: int) -> Tensor:
    """About U Vᵀ of each X = U S Vᵀ, by X ← a X + b (X Xᵀ) X + c (X Xᵀ)² X from X / |X|; R is at most C.

    Five iterations bring singular values of 0.002 to 1 times the norm to between 0.68 and 1.2; smaller ones stay smaller.
    """
    a, b, c = COEFFICIENTS
    x_MRC = x_MRC / torch.linalg.vector_norm(x_MRC, dim=(1, 2), keepdim=True).clamp(min=EPS)
    x_MRC = x_MRC.to(product_dtype(x_MRC.device, x_MRC.dtype))
    for _ in range(iterations):
        gram_MRR = torch.bmm(x_MRC, x_MRC.mT)
        both_MRR = torch.baddbmm(gram_MRR, gram_MRR, gram_MRR, beta=b, alpha=c)
        x_MRC = torch.baddbmm(x_MRC, both_MRR, x_MRC, beta=a)
    return x_MRC


@cache
def product_dtype(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """bf16 where a GPU multiplies it natively, which the iteration bears; elsewhere what was given, fp32 at least."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        return torch.bfloat16
    return torch.promote_types(dtype, torch.float32)


def factor(units: Units, rows: int, columns: int) -> float:
    """s: how long the update of a matrix is.

    `adamw`: 0.2 sqrt(max(R, C)), a root mean square of about 0.2 as AdamW's updates have, so that its learning rates and
    decays carry over (Liu et al. 2025, eq. 4). `spectral`: sqrt(max(1, R / C)), a spectral norm of about that (Jordan et al.).
    """
    return 0.2 * math.sqrt(max(rows, columns)) if units == "adamw" else math.sqrt(max(1.0, rows / columns))


class Matrix(NamedTuple):
    """A parameter that is `parts` matrices, one below the other; and the number of its group."""

    parameter: nn.Parameter
    parts: int
    group: int

    @property
    def rows(self) -> int:
        return len(self.parameter) // self.parts

    @property
    def columns(self) -> int:
        return self.parameter.numel() // len(self.parameter)  # a kernel's channels and places are one axis

    @property
    def sides(self) -> tuple[int, int]:
        return min(self.rows, self.columns), max(self.rows, self.columns)


class MuonAndAdamW(torch.optim.Optimizer):
    """Groups of `kind` "muon" say by `parts` how many matrices each parameter is; all others are of kind "adamw".

    As torch's fused optimizers, it skips a step where `found_inf` is not 0, takes learning rates that are tensors, never waits
    for the device, and can be captured in a CUDA graph once a step has made its state.
    """

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        weight_decay: float,
        momentum: float,
        iterations: int,
        units: Units,
        betas: tuple[float, float],
        eps: float,
    ):
        defaults = dict(kind="adamw", lr=lr, weight_decay=weight_decay, betas=betas, eps=eps)
        super().__init__(groups, defaults | dict(momentum=momentum, iterations=iterations, units=units))
        self._step_supports_amp_scaling = True  # torch's GradScaler then leaves the skipping to `found_inf`

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        assert closure is None and getattr(self, "grad_scale", None) is None, "gradients come ready, and unscaled"
        skips: Tensor | None = getattr(self, "found_inf", None)
        matrices = []
        for number, group in enumerate(self.param_groups):
            if group["kind"] == "muon":
                given = zip(group["params"], group["parts"], strict=True)
                matrices += [Matrix(one, parts, number) for one, parts in given if one.grad is not None]
            else:
                self.adamw(group, skips)
        if matrices:
            self.muon(matrices, skips)

    def adamw(self, group: dict[str, Any], skips: Tensor | None) -> None:
        learning = [one for one in group["params"] if one.grad is not None]
        for one in learning:
            if not self.state[one]:
                self.state[one]["step"] = torch.zeros((), device=one.device)
                self.state[one] |= {name: torch.zeros_like(one) for name in ("exp_avg", "exp_avg_sq")}
        steps, means, squares = ([self.state[one][name] for one in learning] for name in ("step", "exp_avg", "exp_avg_sq"))
        adamw(
            learning,
            [one.grad for one in learning],
            means,
            squares,
            [],
            steps,
            fused=True,
            found_inf=skips,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def muon(self, matrices: list[Matrix], skips: Tensor | None) -> None:
        matrices.sort(key=lambda one: (one.sides, one.rows))
        updates = self.directions(matrices, self.looked_ahead(matrices, skips))
        torch._foreach_mul_(updates, [factor(self.defaults["units"], one.rows, one.columns) for one in matrices])
        for number in sorted({one.group for one in matrices}):
            group = self.param_groups[number]
            moves = [update for one, update in zip(matrices, updates, strict=True) if one.group == number]
            weights: list[Tensor] = [one.parameter for one in matrices if one.group == number]
            rate = group["lr"]
            if not isinstance(rate, Tensor):
                rate = torch.full((), rate, device=weights[0].device)
            if skips is not None:
                rate = rate * (skips == 0)
            torch._foreach_add_(moves, weights, alpha=group["weight_decay"])
            torch._foreach_mul_(moves, rate)
            torch._foreach_sub_(weights, moves)

    def looked_ahead(self, matrices: list[Matrix], skips: Tensor | None) -> Tensor:
        """X_P of all matrices, their momentum moved."""
        for one in matrices:
            if not self.state[one.parameter]:
                self.state[one.parameter]["momentum"] = torch.zeros_like(one.parameter)
        momenta = [self.state[one.parameter]["momentum"] for one in matrices]
        momentum_P = torch.cat([one.flatten() for one in momenta])
        x_P = torch.cat([one.parameter.grad.flatten() for one in matrices])  # type: ignore[union-attr]
        if skips is not None:
            x_P = torch.where(skips == 0, x_P, momentum_P)  # moved to itself, a momentum stays, and no NaN gets in
        momentum_P.lerp_(x_P, 1 - self.defaults["momentum"])
        moved = momentum_P.split([one.numel() for one in momenta])
        torch._foreach_copy_(momenta, [one.view(old.shape) for one, old in zip(moved, momenta, strict=True)])
        return x_P.lerp_(momentum_P, self.defaults["momentum"])

    def directions(self, matrices: list[Matrix], x_P: Tensor) -> list[Tensor]:
        """NS(X) of each parameter, in its shape; all matrices of two sides in one product, the tall ones lying down."""
        found: list[Tensor] = []
        begin = 0
        for (short, long), same in groupby(matrices, key=lambda one: one.sides):
            alike = list(same)
            wide = [one.parts for one in alike if one.rows == short]  # they come first
            tall = [one.parts for one in alike if one.rows != short]
            middle = begin + sum(wide) * short * long
            end = middle + sum(tall) * short * long
            wide_MRC = x_P[begin:middle].view(sum(wide), short, long)
            tall_MCR = x_P[middle:end].view(sum(tall), long, short)
            x_MRC = orthogonalized(torch.cat([wide_MRC, tall_MCR.mT]), self.defaults["iterations"]).to(x_P.dtype)
            standing_MCR = x_MRC[sum(wide) :].mT.contiguous()
            pieces = [*x_MRC[: sum(wide)].split(wide), *standing_MCR.split(tall)]
            found += [piece.view(one.parameter.shape) for piece, one in zip(pieces, alike, strict=True)]
            begin = end
        return found
