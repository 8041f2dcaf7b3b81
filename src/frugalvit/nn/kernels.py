"""Which of our CUDA kernels can be used here, and in which precision a product is taken."""

from __future__ import annotations

import importlib
import importlib.util

import torch
from torch import Tensor

ROUNDED = (torch.bfloat16, torch.float16)


def has_kernel(module: str) -> bool:
    """Whether the kernel of this module of ours can be used: once imported, it is under torch.ops.frugalvit."""
    if not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return False
    importlib.import_module(f"frugalvit.nn.{module}")
    return True


def products_dtype(x: Tensor) -> torch.dtype:
    """In which precision x is multiplied."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
