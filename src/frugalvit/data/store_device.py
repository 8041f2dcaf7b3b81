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


@dataclass(frozen=True, eq=False)
class ManySizes:
    """Pictures of several sizes on a device, one behind the other."""

    pixel_PC: Tensor  # uint8, row by row; the pictures that could not be read are black
    start_N: Tensor  # int64, the first pixel of each
    height_N: Tensor
    width_N: Tensor
    largest: tuple[int, int]  # the largest height and the largest width, not of one picture

    def canvas_BCHW(self, index_B: Tensor) -> Tensor:
        """Each picture at the top left of as many pixels as any of them could need; beside it, its edges go on."""
        row_H1, column_W = (torch.arange(side, device=index_B.device) for side in self.largest)
        row_H1 = row_H1[:, None]
        start_B11, height_B11, width_B11 = (one[index_B][:, None, None] for one in (self.start_N, self.height_N, self.width_N))
        place_BHW = start_B11 + torch.minimum(row_H1, height_B11 - 1) * width_B11 + torch.minimum(column_W, width_B11 - 1)
        return self.pixel_PC[place_BHW].permute(0, 3, 1, 2)


OnDevice = OneSize | ManySizes


def to_device(store: Store, device: torch.device, *, free: int | None = None) -> tuple[OnDevice | None, str]:
    """All of a store on `device`, or None; and a sentence that says which, and why. `free` None is measured."""
    free = free_memory(device) if free is None else free
    if store.bytes > SHARE * free:
        much = f"{gigabytes(store.bytes)} of pictures are more than {SHARE:.0%} of the {gigabytes(free)} that are free"
        return None, f"{much} on {device}, so they stay on disk."
    kept = many_on(store, device) if store.same_size() is None else OneSize(image_on(store, device))
    return kept, f"all {gigabytes(store.bytes)} of pictures are kept on {device}."


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


def many_on(store: Store, device: torch.device) -> ManySizes:
    """Likewise, of several sizes."""
    byte_S = torch.empty(store.bytes, dtype=torch.uint8, device=device)
    for start in range(0, store.bytes, PIECE):
        byte_S[start : start + PIECE] = torch.from_numpy(np.array(store.pixels[start : start + PIECE])).to(device)
    numbers = (store.offsets[:-1] // store.channels, store.heights, store.widths)
    start_N, height_N, width_N = (torch.from_numpy(one.astype(np.int64)).to(device) for one in numbers)
    largest = int(store.heights.max()), int(store.widths.max())
    return ManySizes(byte_S.view(-1, store.channels), start_N, height_N, width_N, largest)


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
