"""A branch for some samples of a batch alone: who is chosen, and the way there and back.

Both ways are gathers, forward and backward: nothing is added atomically, so results are the same every time. Their count is
known from the batch's size, so a compiler sees static shapes and the host never waits.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Chosen(NamedTuple):
    """Some samples of a batch of B, in an order."""

    samples: Tensor  # their indices
    rank_B: Tensor  # of every sample in that order: the chosen ones have the lowest


def count_of(batch: int, drop: float) -> int:
    """How many samples keep their branch: round(B · (1 − drop)), at least one."""
    return operator.index(max(1, round(batch * (1.0 - drop))))  # for a compiler a number, not a symbol


def in_a_row(draw_B: Tensor, count: int) -> Chosen:
    """As many samples as `count`, from a random one on and around the batch's end. The first draw decides where."""
    batch = len(draw_B)
    place_B = torch.arange(batch, device=draw_B.device)
    start = (draw_B[:1] * batch).to(torch.int64).clamp(max=batch - 1)
    return Chosen((place_B[:count] + start) % batch, (place_B - start) % batch)


def on_chosen(branch: Callable[..., Tensor], chosen: Chosen | None, x_BND: Tensor, *draws: Tensor | None) -> Tensor:
    """branch(x, *draws), computed for the chosen samples alone and zero for others; for all of them without a choice.

    A sample takes its draws along, so its dropout is what it would be in the whole batch.
    """
    if chosen is None:
        return branch(x_BND, *draws)
    few_BND = Picked.apply(x_BND, *chosen)
    rows = [None if draw_B is None else draw_B[chosen.samples] for draw_B in draws]
    return Placed.apply(branch(few_BND, *rows), *chosen)


class Picked(torch.autograd.Function):
    """x[samples]. Torch's own gradient would add atomically, since it cannot know that no sample is picked twice."""

    @staticmethod
    def forward(ctx: Any, x_BND: Tensor, samples: Tensor, rank_B: Tensor) -> Tensor:
        ctx.save_for_backward(samples, rank_B)
        return x_BND.index_select(0, samples)

    @staticmethod
    def backward(ctx: Any, gradient_BND: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return Placed.apply(gradient_BND, *ctx.saved_tensors), None, None


class Placed(torch.autograd.Function):
    """The transpose of `Picked`: every chosen sample at its place in the batch, zero elsewhere."""

    @staticmethod
    def forward(ctx: Any, few_BND: Tensor, samples: Tensor, rank_B: Tensor) -> Tensor:
        ctx.save_for_backward(samples, rank_B)
        count = len(samples)
        anyone_BND = few_BND.index_select(0, rank_B.clamp(max=count - 1))
        return torch.where((rank_B < count)[:, None, None], anyone_BND, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient_BND: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return Picked.apply(gradient_BND, *ctx.saved_tensors), None, None
