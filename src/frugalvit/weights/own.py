"""Weights that this package wrote: a classifier's or a run's `model.safetensors`, under the names of the module itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from frugalvit.weights.translate import State, unwrapped

FILE = "model.safetensors"


def names(model: Any) -> Iterator[tuple[str, str]]:
    """(name, the same name) for every tensor of the module."""
    with torch.device("meta"):
        module = replace(model, classes=model.classes or 1).build(seed=0)
    for name in module.state_dict():
        yield name, name


def tidy(state: Mapping[str, object], model: Any) -> State:
    return unwrapped(state)


def untidy(state: Mapping[str, Tensor], model: Any) -> State:
    return dict(state)
