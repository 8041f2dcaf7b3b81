"""Where to compute, and in which precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch

from frugalvit.errors import SpecError

PrecisionName = Literal["auto", "fp32", "bf16", "fp16", "bf16_stream"]


@dataclass(frozen=True)
class Place:
    """A device and the precision of its products; `bf16_stream` rounds what flows from block to block too."""

    device: torch.device
    precision: Literal["fp32", "bf16", "fp16", "bf16_stream"]

    def autocast(self) -> AbstractContextManager[object]:
        if self.precision == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.float16 if self.precision == "fp16" else torch.bfloat16)

    @property
    def stream(self) -> torch.dtype | None:
        """What `Network.stream` should be."""
        return torch.bfloat16 if self.precision == "bf16_stream" else None

    @property
    def scales_loss(self) -> bool:
        """fp16 gradients underflow, so its loss is scaled up and its gradients down again."""
        return self.precision == "fp16"


def place_for(device: str, precision: PrecisionName) -> Place:
    """`auto` is CUDA, else Apple's mps, else the CPU; bf16 from compute capability 8.0, fp16 below, fp32 elsewhere."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise SpecError(f"'{device}' is no device. Use auto, cpu, cuda, cuda:1 or mps.", path="--device") from error
    if chosen.type not in ("cpu", "cuda", "mps"):
        raise SpecError(f"'{device}' does not train. Use auto, cpu, cuda, cuda:1 or mps.", path="--device")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise SpecError("torch sees no CUDA device here. Use --device cpu, or install a CUDA build of torch.", path="--device")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise SpecError("torch sees no Apple GPU here. Use --device cpu.", path="--device")
    if precision != "auto":
        if chosen.type == "cpu" and precision == "fp16":
            raise SpecError("fp16 does not train on a CPU. Use fp32 or bf16.", path="recipe.precision")
        return Place(chosen, precision)
    if chosen.type != "cuda":
        return Place(chosen, "fp32")
    return Place(chosen, "bf16" if torch.cuda.get_device_capability(chosen) >= (8, 0) else "fp16")
