"""Batches of pictures, and the way between them and Pillow."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image as Pillow
from torch import Tensor

SIZES = [(28, 28), (32, 32), (47, 33), (64, 64)]  # height, width


def noisy(channels: int, height: int, width: int) -> Tensor:
    """image_CHW of independent values."""
    return torch.randint(0, 256, (channels, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def natural(channels: int, height: int, width: int) -> Tensor:
    """image_CHW of smooth patches that leave the ends of the scale unused."""
    noise = np.random.default_rng(0).integers(30, 230, (7, 5, 3), dtype=np.uint8)
    picture = Pillow.fromarray(noise).resize((width, height), Pillow.Resampling.BILINEAR)
    return tensor(picture.convert({1: "L", 3: "RGB"}[channels]))


def plain(channels: int, height: int, width: int) -> Tensor:
    """image_CHW of two colors: one in a corner, the other elsewhere."""
    image_CHW = torch.full((channels, height, width), 77, dtype=torch.uint8)
    image_CHW[:, :5, :4] = 200
    return image_CHW


def flat(channels: int, height: int, width: int) -> Tensor:
    """image_CHW of one color."""
    return torch.arange(90, 90 + channels, dtype=torch.uint8)[:, None, None].repeat(1, height, width)


PICTURES = [noisy, natural, plain, flat]


def batch(channels: int, height: int, width: int) -> Tensor:
    """image_BCHW: one of each."""
    return torch.stack([make(channels, height, width) for make in PICTURES])


def pillow(image_CHW: Tensor) -> Pillow.Image:
    array = image_CHW.permute(1, 2, 0).numpy()
    return Pillow.fromarray(np.ascontiguousarray(array[:, :, 0] if len(image_CHW) == 1 else array))


def tensor(picture: Pillow.Image) -> Tensor:
    array = np.array(picture)
    return torch.from_numpy(array if array.ndim == 3 else array[:, :, None]).permute(2, 0, 1).contiguous()
