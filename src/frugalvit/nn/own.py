"""Modules of the user's, as training takes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from frugalvit.nn.foreign import decided_by
from frugalvit.nn.network import Network


def own_module(model: nn.Module | None) -> Any:
    return model if model is None or isinstance(model, Network) else Wrapped(model)


class Wrapped(nn.Module):
    """A module of the user's that returns logits, as one that returns a dict of heads.

    What it drops at random in training, one draw decides. One that drew nothing the first time is taken to never draw: then
    nothing waits for the draw, and a step can be captured.
    """

    draws = 1
    layers: tuple[nn.Module, ...] = ()
    stream: torch.dtype | None = None

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner
        self.drops = True  # until it is seen

    def random_draws(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Uniform draws_RB for one training step, on the generator's device."""
        return torch.rand(self.draws, batch, generator=generator, device=None if generator is None else generator.device)

    def forward(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        decided = draws is not None and self.training and self.drops
        outputs = self.decided(image_BCHW, draws) if decided else self.inner(image_BCHW)
        return outputs if isinstance(outputs, dict) else {"class": outputs}

    @torch.compiler.disable  # generators are not traced
    def decided(self, image_BCHW: Tensor, draws_RB: Tensor) -> Any:
        with decided_by(draws_RB):
            before = states(draws_RB.device)
            outputs = self.inner(image_BCHW)
            after = states(draws_RB.device)
        self.drops = not all(map(torch.equal, before, after))
        return outputs


def states(device: torch.device) -> list[Tensor]:
    """Of torch's global generators that a module on the device may draw from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
