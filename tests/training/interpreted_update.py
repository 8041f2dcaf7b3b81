"""Runs our AdamW in Triton's interpreter beside torch's and prints how far they are apart.

By itself, since the interpreter must be chosen before Triton is imported: TRITON_INTERPRET=1 python interpreted_update.py
"""

from __future__ import annotations

import copy
import json

import torch
from torch import nn

from frugalvit.training.average import Average, Ema
from frugalvit.training.update import Update

RATE, SHARE, SKIPPED, CLIP = 1e-2, 0.1, 7, 0.5


def optimizer_of(module: nn.Module) -> torch.optim.AdamW:
    matrices = [one for one in module.parameters() if one.ndim > 1]
    vectors = [one for one in module.parameters() if one.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=torch.tensor(RATE), betas=(0.8, 0.99), fused=True)


def apart(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    return max((one - other).abs().max().item() for one, other in zip(some, others, strict=True))


def main() -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(70, 50), nn.LayerNorm(50), nn.Linear(50, 3))
    theirs = copy.deepcopy(ours)
    optimizers = optimizer_of(ours), optimizer_of(theirs)
    averages = Average(Ema(), ours), Average(Ema(), theirs)
    update = None
    for step in range(20):
        skips = torch.tensor(float(step == SKIPPED))
        for module in (ours, theirs):
            torch.manual_seed(step)
            module.zero_grad()
            (10 * module(torch.randn(9, 70)).square().mean()).backward()
        if update is None:
            optimizers[0].found_inf = torch.ones(())  # makes moments and nothing else
            optimizers[0].step()
            update = Update(optimizers[0], averages[0], ours)
        update.locate()
        norm = update.norm()
        wanted = nn.utils.clip_grad_norm_(theirs.parameters(), CLIP)
        update.take(skips, (CLIP / (norm + 1e-6)).clamp(max=1.0), SHARE * (1 - skips))
        optimizers[1].found_inf = skips
        optimizers[1].step()
        averages[1].move(theirs, SHARE * (1 - skips), set())
    both = [(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True)]
    moments = [
        [found.state[one] for one in module.parameters()] for found, module in zip(optimizers, (ours, theirs), strict=True)
    ]
    found = {"norm": abs(norm - wanted).item(), "weights": apart(*map(list, zip(*both, strict=True)))}
    found["averages"] = apart(list(averages[0].tensors.values()), list(averages[1].tensors.values()))
    for key in ("exp_avg", "exp_avg_sq", "step"):
        found[key] = apart([one[key] for one in moments[0]], [one[key] for one in moments[1]])
    found["moved"] = apart(list(averages[1].tensors.values()), list(theirs.parameters()))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
