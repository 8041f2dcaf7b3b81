"""Runs our kernel for crops in Triton's interpreter, and prints how many bytes differ from those of its definition.

By itself, since the interpreter must be chosen before Triton is imported: TRITON_INTERPRET=1 python interpreted_crops.py
"""

from __future__ import annotations

import json
import types
from typing import Any

import torch

from frugalvit.data.augment import ResizedCrop
from frugalvit.data.device import crop_kernel, mixed, resample
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.frame import DeviceResizedCrop, boxes, cut
from frugalvit.data.device.mixed import CropOfMany
from frugalvit.data.store_device import ManySizes

SIZES = [(5, 60), (28, 28), (47, 33), (1, 1), (61, 7)]
CASES = [  # channels, augmentation, target: one of more columns than a tile has
    (3, ResizedCrop(), (20, 28)),
    (1, ResizedCrop((0.3, 1.0), (0.5, 3.0), "bilinear"), (9, 131)),
    (1, ResizedCrop((1.0, 1.0), (0.01, 100.0)), (17, 5)),
]


def kept(channels: int) -> tuple[ManySizes, list[torch.Tensor]]:
    """Pictures one behind the other, nothing behind the last."""
    draw = torch.Generator().manual_seed(0)
    images = [torch.randint(0, 256, (channels, *size), dtype=torch.uint8, generator=draw) for size in SIZES]
    pixel_PC = torch.cat([image_CHW.permute(1, 2, 0).reshape(-1, channels) for image_CHW in images])
    height_N, width_N = torch.tensor(SIZES).unbind(1)
    largest = int(height_N.max()), int(width_N.max())
    return ManySizes(pixel_PC, (height_N * width_N).cumsum(0) - height_N * width_N, height_N, width_N, largest), images


def main() -> None:
    crop_kernel.wrap_triton = lambda kernel: kernel  # there is nothing to trace here
    called = types.SimpleNamespace(resized_boxes=crop_kernel.resized_boxes._init_fn)
    resample.torch = types.SimpleNamespace(**vars(torch) | {"ops": types.SimpleNamespace(frugalvit=called)})
    mixed.refuse_many_taps = lambda *_: None
    found: dict[str, Any] = {"tried": int(not resample.kernel_agrees(torch.device("cpu")))}
    index_B = torch.arange(7) * 3 % len(SIZES)
    draws_BK = uniform(torch.tensor([4, 1]), 2, (len(index_B), DeviceResizedCrop.draws))
    for channels, spec, target in CASES:
        many, images = kept(channels)
        crop = CropOfMany(spec, many, target)
        wanted_BCHW = crop(index_B, draws_BK)
        crop.fast, crop.at_once = True, 4
        found[f"kept, {target}"] = (crop(index_B, draws_BK) != wanted_BCHW).sum().item()
        batch_BCHW = torch.stack([images[2], images[2].flip(2), images[2] // 2])
        box = boxes(spec, draws_BK[:3], torch.full((3,), 47), torch.full((3,), 33))
        wanted_BCHW = cut(batch_BCHW, box, target, spec.interpolation, False)
        ours = resample.resized_boxes(resample.lying(batch_BCHW), box, (47, 33), target, spec.interpolation)
        found[f"batch, {target}"] = (ours != wanted_BCHW).sum().item()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
