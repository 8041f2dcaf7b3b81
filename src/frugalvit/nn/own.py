"""Modules of the user's, as training takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from frugalvit.errors import FrugalError, SpecError, brief
from frugalvit.nn.map_norm import keep_frozen_statistics
from frugalvit.nn.network import Network
from frugalvit.nn.readout import is_tap
from frugalvit.nn.shape import Image
from frugalvit.spec import shown

RETURN = "Return logits_BC, or a dict of them by the names of heads."


def own_module(model: object) -> Any:
    if model is None or isinstance(model, Network):
        return model
    if not isinstance(model, nn.Module):
        raise SpecError(f"{shown(model)} is no module. Give an nn.Module, images_BCHW to logits_BC.", path="model")
    if not any(True for _ in model.parameters()):
        raise SpecError(f"{type(model).__name__} has no parameters, so there is nothing to learn.", path="model")
    return Wrapped(model)


class Wrapped(nn.Module):
    """A module of the user's that returns logits, as one that returns a dict of heads.

    What it drops at random in training, one draw decides. One that drew nothing the first time is taken to never draw: then
    nothing waits for the draw, and a step can be captured. In evaluation the heads alone are returned that `answering` names.
    """

    draws = 1
    layers: tuple[nn.Module, ...] = ()
    stream: torch.dtype | None = None

    def __init__(self, inner: nn.Module):
        from frugalvit.nn.untraced import decided  # with torch's compiler, which takes seconds to load

        super().__init__()
        self.inner, self.decided = inner, decided
        self.drops = True  # until it is seen
        self.answering: tuple[str, ...] = ()  # all, until they are named

    def random_draws(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Uniform draws_RB for one training step, on the generator's device."""
        return torch.rand(self.draws, batch, generator=generator, device=None if generator is None else generator.device)

    def forward(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        if draws is not None and self.training and self.drops:
            outputs, self.drops = self.decided(self.inner, image_BCHW, draws)
        else:
            outputs = self.inner(image_BCHW)
        outputs = outputs if isinstance(outputs, Mapping) else {"class": outputs}
        return {name: outputs[name] for name in self.answering or outputs} if not self.training else dict(outputs)

    def train(self, mode: bool = True) -> Self:
        """As usual, but for batch norms that do not learn: they keep their statistics, as ours do."""
        super().train(mode)
        keep_frozen_statistics(self.inner)
        return self


def own_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a wrapped module under the names that it gives them."""
    return {name.removeprefix("inner."): value for name, value in state.items()}


@torch.no_grad()
def tried(module: nn.Module, image: Image) -> dict[str, Tensor]:
    """What it says of two blank pictures; an error that tells what it is given and should return where it fails."""
    device = next(module.parameters()).device
    blank_BCHW = torch.zeros(2, image.channels, image.height, image.width, device=device)
    module.eval()
    try:
        outputs = module(blank_BCHW)
    except (FrugalError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a module of the user's may fail in any way
        given = f"It is given float32 pictures of shape ({', '.join(map(str, ('batch', *blank_BCHW.shape[1:])))})."
        raise SpecError(f"it fails ({brief(error)}). {given}", path="model") from error
    finally:
        module.train()
    for name, value in outputs.items():
        if not isinstance(value, Tensor):
            where = "" if list(outputs) == ["class"] else f" as '{name}'"
            raise SpecError(f"it returned {type(value).__name__}{where}. {RETURN}", path="model")
    return outputs


def logit_heads(outputs: Mapping[str, Tensor], classes: int) -> tuple[str, ...]:
    """The outputs that are logits of that many classes."""
    shapes = {name: tuple(value.shape) for name, value in outputs.items()}
    found = tuple(name for name, shape in shapes.items() if not is_tap(name) and shape == (2, classes))
    if not found:
        said = ", ".join(f"'{name}' of shape {shape}" for name, shape in shapes.items()) or "nothing"
        raise SpecError(f"of two pictures it returned {said}. Return logits of shape (2, {classes}).", path="model")
    return found
