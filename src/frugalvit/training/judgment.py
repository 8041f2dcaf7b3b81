"""Whether a step on the device is made of numbers, and what is put back where it is not: nothing here asks the host."""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def judged(
    values: dict[str, Tensor],
    sums: dict[str, Tensor],
    in_a_row: Tensor,
    most_in_a_row: Tensor,
    skips: Tensor,
    rate: Tensor,
    rates: list[Tensor],
    scales: list[float],
) -> Tensor:
    """Whether the step is made of numbers; what is counted and set by that. Small things, which a compiler makes one kernel."""
    finite = torch.isfinite(values["loss"]) & torch.isfinite(values["gradient_norm"])
    skips.copy_((~finite).float())
    in_a_row.copy_(torch.where(finite, 0.0, in_a_row + 1))
    most_in_a_row.copy_(torch.maximum(most_in_a_row, in_a_row))
    for name, value in values.items():
        sums[name].add_(value)
    sums["nonfinite"].add_(skips)
    for one, scale in zip(rates, scales, strict=True):
        one.copy_(rate * scale)
    return finite


@torch.no_grad()
def copies(tensors: list[Tensor]) -> list[Tensor]:
    """A copy of each, in few kernels: one for all of a type."""
    found = [torch.empty_like(one) for one in tensors]
    for dtype in {one.dtype for one in tensors}:
        places = [place for place, one in enumerate(tensors) if one.dtype == dtype]
        torch._foreach_copy_([found[place] for place in places], [tensors[place] for place in places])
    return found


@torch.no_grad()
def kept_where(finite: Tensor, buffers: list[Tensor], before: list[Tensor]) -> None:
    """The buffers as they were before where the step is no number."""
    for buffer, earlier in zip(buffers, before, strict=True):
        buffer.copy_(torch.where(finite, buffer, earlier))
