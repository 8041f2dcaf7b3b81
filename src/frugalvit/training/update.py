"""The update of a captured step in two kernels: where all of its tensors lie, in tables that kernels read.

A capture fixes where gradients lie, and only then is it known: `locate` fills the table after it, and before every step that is
not captured.
"""

from __future__ import annotations

import importlib.util
import math
from itertools import accumulate

import torch
from torch import Tensor, nn

from frugalvit.training.average import Average


class Update:
    """AdamW's step, and the average's, of parameters that have gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer, average: Average | None, module: nn.Module):
        from frugalvit.training import adamw_kernel

        self.kernels = adamw_kernel
        rows = [(one, group) for group in optimizer.param_groups for one in group["params"] if one.grad is not None]
        self.parameters = [one for one, _ in rows]
        self.rates = [group["lr"] for _, group in rows]
        self.moments = [optimizer.state[one] for one in self.parameters]
        self.steps = [one["step"] for one in self.moments]
        names = {id(one): name for name, one in module.named_parameters()}
        averaged = {} if average is None else average.tensors
        self.averaged = [averaged.get(names.get(id(one), "")) for one in self.parameters]
        self.averaged_names = {names[id(one)] for one in self.parameters if id(one) in names}
        device = self.parameters[0].device
        counts = [one.numel() for one in self.parameters]
        pieces = [-(-count // self.kernels.PIECE) for count in counts]
        firsts = torch.tensor([0, *accumulate(pieces)])[:-1].repeat_interleave(torch.tensor(pieces))
        self.tensor_P = torch.arange(len(counts), dtype=torch.int32).repeat_interleave(torch.tensor(pieces)).to(device)
        self.first_P = ((torch.arange(sum(pieces)) - firsts) * self.kernels.PIECE).to(device, torch.int32)
        self.count_T = torch.tensor(counts, dtype=torch.int32, device=device)
        self.decay_T = torch.tensor([float(group["weight_decay"]) for _, group in rows], device=device)
        first = optimizer.param_groups[0]
        self.betas, self.eps = first["betas"], first["eps"]
        self.logs = torch.tensor(
            [math.log(one) if one else -math.inf for one in self.betas], dtype=torch.float64, device=device
        )
        self.table = torch.zeros((len(counts), self.kernels.COLUMNS), dtype=torch.int64, device=device)
        self.sums = torch.zeros(sum(pieces), device=device)
        self.whole = torch.ones((), device=device)
        self.locate()

    def locate(self) -> None:
        """Look up where everything is."""
        rows = []
        for one, moments, averaged, rate in zip(self.parameters, self.moments, self.averaged, self.rates, strict=True):
            assert one.grad is not None and one.grad.is_contiguous() and one.grad.dtype == torch.float32
            tensors = one, one.grad, moments["exp_avg"], moments["exp_avg_sq"], averaged, moments["step"], rate
            rows.append([0 if tensor is None else tensor.data_ptr() for tensor in tensors])
        self.table.copy_(torch.tensor(rows, dtype=torch.int64))

    def norm(self) -> Tensor:
        """Of all gradients together."""
        kernels = self.kernels
        places = self.table, self.tensor_P, self.first_P, self.count_T
        grid = (len(self.tensor_P),)
        kernels.squares_kernel[grid](*places, self.sums, kernels.COLUMNS, kernels.PIECE, num_warps=kernels.WARPS)
        return self.sums.sum().sqrt()

    def take(self, skips: Tensor, shorten: Tensor | None, share: Tensor) -> None:
        """One step with gradients times `shorten`, unless `skips` is not 0; the average moves by `share` towards it."""
        kernels = self.kernels
        torch._foreach_add_(self.steps, 1 - skips, alpha=1)  # without alpha a tensor is read as a number, on the host
        places = self.table, self.tensor_P, self.first_P, self.count_T, self.decay_T
        kernels.adamw_kernel[(len(self.tensor_P),)](
            *places, skips, self.whole if shorten is None else shorten, share, self.logs[0], self.logs[1],
            *self.betas, self.eps, kernels.COLUMNS, kernels.PIECE, num_warps=kernels.WARPS,
        )  # fmt: skip


def fits(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this is AdamW in fp32 on CUDA, with moments and the same betas everywhere, and Triton is here."""
    groups = optimizer.param_groups
    if type(optimizer) is not torch.optim.AdamW or importlib.util.find_spec("triton") is None:
        return False
    alike = all((group["betas"], group["eps"]) == (groups[0]["betas"], groups[0]["eps"]) for group in groups)
    usual = not any(group["amsgrad"] or group["maximize"] for group in groups)
    learned = [one for group in groups for one in group["params"] if one.grad is not None]
    return alike and usual and bool(learned) and all(plain(one) and plain(one.grad) for one in learned)


def plain(tensor: Tensor) -> bool:
    return tensor.is_cuda and tensor.dtype == torch.float32 and tensor.is_contiguous()
