"""What happens to a batch on its device: bytes to the numbers a model was trained on."""

from __future__ import annotations

import torch
from torch import Tensor

from frugalvit.errors import SpecError


def normalize(image_BCHW: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """(x / 255 − mean) / std in float32, the same numbers as `Preprocess.normalized`."""
    channels = image_BCHW.shape[1]
    if not len(mean) == len(std) == channels:
        raise SpecError(f"{len(mean)} means and {len(std)} deviations for {channels} channels. Give one of each per channel.")
    return (image_BCHW.float() / 255 - per_channel(mean, image_BCHW)) / per_channel(std, image_BCHW)


def per_channel(values: tuple[float, ...], like: Tensor) -> Tensor:
    """values_C11 on the device of `like`, written there: a copy from the host would wait for the device."""
    return torch.stack([torch.full((1, 1), value, dtype=torch.float32, device=like.device) for value in values])
