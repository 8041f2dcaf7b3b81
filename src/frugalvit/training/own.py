"""Objectives of the user's, tried before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from frugalvit.data.batch import Batch
from frugalvit.errors import FrugalError, SpecError, brief
from frugalvit.nn.shape import Image
from frugalvit.spec import shown
from frugalvit.training.step import refuse_terms

CALLED = "It is called with (outputs, batch), a dict by heads and a frugalvit.data.batch.Batch, and returns a dict of scalars."
OwnObjective = Callable[[Mapping[str, Tensor], Batch], dict[str, Tensor]]


class Called(nn.Module):
    """A function of the user's as an objective."""

    def __init__(self, function: OwnObjective):
        super().__init__()
        self.function = function

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        return self.function(outputs, batch)


def own_objective(objective: object) -> nn.Module | None:
    if objective is None or isinstance(objective, nn.Module):
        return objective
    if not callable(objective) or isinstance(objective, type):
        raise SpecError(f"{shown(objective)} is no objective. Give a module or a function. {CALLED}", path="objective")
    return Called(objective)


def refuse_objective(objective: nn.Module, outputs: Mapping[str, Tensor], image: Image, classes: int) -> None:
    """Raise where a copy of it gives no terms that can be learned, of what a model said of two blank pictures."""
    values = {name: value.detach().clone().requires_grad_(value.is_floating_point()) for name, value in outputs.items()}
    device = next(iter(values.values())).device
    label_B = torch.arange(2, device=device) % classes
    image_BCHW = torch.zeros(2, image.channels, image.height, image.width, device=device)
    batch = Batch(image_BCHW, label_B, torch.arange(2, device=device), nn.functional.one_hot(label_B, classes).float())
    try:
        copy = deepcopy(objective)
    except Exception:  # what cannot be copied is not tried, for it may count its calls
        return
    try:
        with torch.enable_grad():
            terms: Any = copy(values, batch)
    except FrugalError:
        raise
    except Exception as error:  # an objective of the user's may fail in any way
        raise SpecError(f"it fails ({brief(error)}). {CALLED}", path="objective") from error
    refuse_terms(terms)
    if not any(value.requires_grad for value in terms.values()):
        raise SpecError("none of its terms has a gradient, so nothing would be learned. Are they detached?", path="objective")
