"""What torch.compile must leave alone: modules that draw from torch's own generators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from frugalvit.nn.foreign import OwnDraws
from frugalvit.nn.network import SEEDING


@torch.compiler.disable  # generators are not traced
def decided(network: nn.Module, image_BCHW: Tensor, draws_RB: Tensor) -> tuple[Any, bool]:
    """What a network says, and whether it drew from torch's global generators; a thread at a time.

    They start from the draw that is given, so that a step is a function of its draws.
    """
    device = draws_RB.device
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise OwnDraws("the model draws from torch's generators itself")
    seed = int(draws_RB[0, 0].double().item() * 2**53)
    with SEEDING, torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        before = states(device)
        outputs = network(image_BCHW)
        return outputs, not all(map(torch.equal, before, states(device)))


def states(device: torch.device) -> list[Tensor]:
    """Of torch's global generators that a module on the device may draw from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
