"""A whole store in the memory of a device, where it fits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from frugalvit.data.store import Store
from frugalvit.data.store_files import gigabytes

SHARE = 0.5  # of the free memory, at most: weights, moments and activations come on top
PIECE = 64 << 20  # bytes copied at a time


@dataclass(frozen=True, eq=False)
class OneSize:
    """Pictures of one size on a device."""

    image_NCHW: Tensor  # uint8; the pictures that could not be read are black


def to_device(store: Store, device: torch.device, *, free: int | None = None) -> tuple[OneSize | None, str]:
    """All of a store of one size on `device`, or None; and a sentence that says which, and why. `free` None is measured."""
    free = free_memory(device) if free is None else free
    if store.bytes > SHARE * free:
        much = f"{gigabytes(store.bytes)} of pictures are more than {SHARE:.0%} of the {gigabytes(free)} that are free"
        return None, f"{much} on {device}, so they stay on disk."
    return OneSize(image_on(store, device)), f"all {gigabytes(store.bytes)} of pictures are kept on {device}."


def image_on(store: Store, device: torch.device) -> Tensor:
    """image_NCHW, copied a piece at a time, so that the host holds no second copy."""
    image_NHWC = store.array()
    count, height, width, channels = image_NHWC.shape
    image_NCHW = torch.empty((count, channels, height, width), dtype=torch.uint8, device=device)
    step = max(1, PIECE // (height * width * channels))
    for start in range(0, count, step):
        piece_NHWC = torch.from_numpy(np.array(image_NHWC[start : start + step])).to(device)
        image_NCHW[start : start + step] = piece_NHWC.permute(0, 3, 1, 2)
    return image_NCHW


def free_memory(device: torch.device) -> int:
    """Bytes that can be had on a device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return min(host_memory(), group_memory())


def host_memory() -> int:
    """What the system says is available, file cache included; where it says nothing, all there is."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) if hasattr(os, "sysconf") else 0


def group_memory(folder: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container's limit leaves, file cache included; without a limit, more than any machine has."""
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cached = [line.split()[1] for line in (folder / "memory.stat").read_text().splitlines() if line.startswith("file ")]
        return max(0, int(limit) - int(used) + sum(map(int, cached)))
    except (OSError, ValueError):
        return 1 << 62
