"""What travels from the data to the loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Pictures and what is known of them. Fields are filled on the way: uint8 pictures first, targets after mixing."""

    image_BCHW: Tensor  # uint8 from the data, floats once finished
    label_B: Tensor  # int64
    index_B: Tensor  # int64, the picture's place in its source
    target_BC: Tensor | None = None  # soft targets, once mixed
    answers: Mapping[str, Tensor] | None = None  # what a teacher says of these pictures: logits in our order, and its taps
    bad: tuple[str, ...] = ()  # pictures that could not be read and were replaced
