"""One operation a picture, for a whole batch at once: one move, one table, one blend.

The pictures of a batch choose different operations, but all are instances of three: a geometric map, a look-up table and a
blend with a duller picture. A picture's operation is one of them and the identity for the others, so all read the layer's
input, and a compiler makes one kernel of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor, nn

from frugalvit.data.device import tone
from frugalvit.data.device.affine import STAY, Affine, fixed


class Table(IntEnum):
    """Which look-up table a picture goes through."""

    POINT = 0  # of the operation's numbers alone
    STRETCHED = 1  # auto-contrast
    EQUALIZED = 2


class Dull(IntEnum):
    """What a picture is blended with."""

    FLAT = 0  # a given level
    MEAN = 1
    LUMA = 2
    SMOOTH = 3


@dataclass(frozen=True)
class Operation:
    """An operation at a strength. The defaults leave pictures as they are."""

    affine: Affine = STAY
    mask: int = 255
    threshold: int = 256
    more: int = 0
    table: Table = Table.POINT
    dull: Dull = Dull.FLAT
    level: int = 0  # of Dull.FLAT
    factor: float = 1.0
    half: int = 0  # of Cutout's side


class Operations(NamedTuple):
    """The operations of a batch, one a picture."""

    affine_B6: Tensor  # int32 of `fixed`, or float64
    mask_B: Tensor
    threshold_B: Tensor
    more_B: Tensor
    table_B: Tensor
    dull_B: Tensor
    level_B: Tensor
    half_B: Tensor
    factor_B: Tensor  # float32


class OperationTable(nn.Module):
    """Operations to choose from by number, their maps in fixed point."""

    number_E13: Tensor
    factor_E: Tensor

    def __init__(self, operations: Sequence[Operation]):
        super().__init__()
        rows = [
            (*fixed(one.affine), one.mask, one.threshold, one.more, one.table, one.dull, one.level, one.half)
            for one in operations
        ]
        self.register_buffer("number_E13", torch.tensor(rows, dtype=torch.int32), persistent=False)
        factors = torch.tensor([one.factor for one in operations], dtype=torch.float64).float()
        self.register_buffer("factor_E", factors, persistent=False)

    def forward(self, entry_B: Tensor) -> Operations:
        number_B13 = self.number_E13[entry_B]
        mask_B, threshold_B, more_B, table_B, dull_B, level_B, half_B = number_B13[:, 6:].unbind(1)
        return Operations(
            number_B13[:, :6], mask_B, threshold_B, more_B, table_B, dull_B, level_B, half_B, self.factor_E[entry_B]
        )


class Colors(nn.Module):
    """The tables and blends of a layer. `rounding` is that of `tone.smooth`."""

    product_DV: Tensor

    def __init__(self, rounding: int):
        super().__init__()
        self.rounding = rounding
        self.register_buffer("product_DV", tone.stretches(), persistent=False)

    def forward(self, image_BCHW: Tensor, moved_BCHW: Tensor, chosen: Operations) -> Tensor:
        """`moved_BCHW` with its colors changed; it differs from `image_BCHW` only where nothing else changes."""
        tabled_BCHW = tone.looked_up(moved_BCHW, self.tables(image_BCHW, chosen))
        return tone.blended(self.dull(image_BCHW, chosen), tabled_BCHW, chosen.factor_B)

    def tables(self, image_BCHW: Tensor, chosen: Operations) -> Tensor:
        """table_BCV, uint8."""
        count_BCV = tone.histogram(image_BCHW)
        kind_B11 = chosen.table_B[:, None, None]
        table_BCV = tone.point_table(chosen.mask_B, chosen.threshold_B, chosen.more_B)
        table_BCV = torch.where(kind_B11 == Table.STRETCHED.value, tone.stretched(count_BCV, self.product_DV), table_BCV)
        table_BCV = torch.where(kind_B11 == Table.EQUALIZED.value, tone.equalized(count_BCV), table_BCV)
        return table_BCV.to(torch.uint8)

    def dull(self, image_BCHW: Tensor, chosen: Operations) -> Tensor:
        """dull_BCHW, int32; any where the factor is 1."""
        kind_B111 = chosen.dull_B[:, None, None, None]
        gray_B1HW = tone.luma(image_BCHW)
        dull = torch.where(kind_B111 == Dull.MEAN.value, tone.mean(gray_B1HW), chosen.level_B[:, None, None, None])
        dull = torch.where(kind_B111 == Dull.LUMA.value, gray_B1HW, dull)
        return torch.where(kind_B111 == Dull.SMOOTH.value, tone.smooth(image_BCHW, self.rounding), dull)
