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

    image_NCHW: Tensor  # uint8
    label_N: Tensor  # int64
    readable_N: Tensor  # bool; the pictures that could not be read are black

    def picture(self, index: int) -> Tensor:
        """image_CHW"""
        return self.image_NCHW[index]


@dataclass(frozen=True, eq=False)
class ManySizes:
    """Pictures of several sizes on a device, one after the other."""

    pixels: Tensor  # uint8, height x width x channels of each picture in turn
    offset_N: Tensor  # int64, where a picture begins
    height_N: Tensor  # int64
    width_N: Tensor  # int64
    channels: int
    label_N: Tensor  # int64
    readable_N: Tensor  # bool
    host_N3: np.ndarray  # offsets, heights and widths once more on the host, so that slicing waits for no device

    def picture(self, index: int) -> Tensor:
        """image_CHW, a view"""
        offset, height, width = self.host_N3[index].tolist()
        length = height * width * self.channels
        return self.pixels[offset : offset + length].view(height, width, self.channels).permute(2, 0, 1)


DeviceStore = OneSize | ManySizes


def to_device(store: Store, device: torch.device, *, free: int | None = None) -> tuple[DeviceStore | None, str]:
    """All of a store on `device`, or None; and a sentence that says which, and why. `free` is measured where it is None."""
    free = free_memory(device) if free is None else free
    if store.bytes > SHARE * free:
        much = f"{gigabytes(store.bytes)} of pictures are more than {SHARE:.0%} of the {gigabytes(free)} that are free"
        return None, f"{much} on {device}, so they stay on disk."
    label_N = torch.from_numpy(store.labels.copy()).to(device)
    readable = np.ones(len(store), dtype=bool)
    readable[list(store.unreadable)] = False
    readable_N = torch.from_numpy(readable).to(device)
    size = store.same_size()
    kept: DeviceStore
    if size is not None:
        kept = OneSize(image_on(store, size, device), label_N, readable_N)
    else:
        host_N3 = np.stack([store.offsets[:-1], store.heights, store.widths], axis=1)
        offset_N, height_N, width_N = torch.from_numpy(host_N3).to(device).unbind(1)
        pixels = pixels_on(store, device)
        kept = ManySizes(pixels, offset_N, height_N, width_N, store.channels, label_N, readable_N, host_N3)
    return kept, f"all {gigabytes(store.bytes)} of pictures are kept on {device}."


def image_on(store: Store, size: tuple[int, int], device: torch.device) -> Tensor:
    """image_NCHW, copied a piece at a time, so that the host holds no second copy."""
    image_NCHW = torch.empty((len(store), store.channels, *size), dtype=torch.uint8, device=device)
    image_NHWC = store.array()
    step = max(1, PIECE // (size[0] * size[1] * store.channels))
    for start in range(0, len(store), step):
        piece_NHWC = torch.from_numpy(np.array(image_NHWC[start : start + step])).to(device)
        image_NCHW[start : start + step] = piece_NHWC.permute(0, 3, 1, 2)
    return image_NCHW


def pixels_on(store: Store, device: torch.device) -> Tensor:
    pixels = torch.empty(store.bytes, dtype=torch.uint8, device=device)
    for start in range(0, store.bytes, PIECE):
        pixels[start : start + PIECE] = torch.from_numpy(np.array(store.pixels[start : start + PIECE]))
    return pixels


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
