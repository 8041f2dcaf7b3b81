"""How a stage of a packed program begins: patches or a merge, with all that folds into them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from frugalvit.deploy.program import ProgramWriter
from frugalvit.nn.shape import Shape


class Opening:
    """The step that fills a stage's tokens, held back while norms, positions and joined tokens fold into it.

    `real` is its (weight_OI, bias_O) where it is a real map, which a norm folds into; None for a merge of one bit.
    """

    def __init__(self, kind: str, fields: dict[str, Any], real: tuple[Tensor, Tensor] | None, shape: Shape):
        self.kind, self.fields, self.real = kind, fields, real
        self.positions_ND = torch.zeros(shape.patches, shape.dim, dtype=torch.float64)
        self.tokens_SD = torch.zeros(0, shape.dim, dtype=torch.float64)

    def normalize(self, gain_D: Tensor, bias_D: Tensor) -> None:
        assert self.real is not None
        weight_OI, bias_O = self.real
        self.real = weight_OI * gain_D[:, None], bias_O * gain_D + bias_D
        self.positions_ND = self.positions_ND * gain_D
        self.tokens_SD = self.tokens_SD * gain_D + bias_D

    def add(self, positions_ND: Tensor) -> None:
        joined = len(self.tokens_SD)
        self.tokens_SD = self.tokens_SD + positions_ND[:joined]
        self.positions_ND = self.positions_ND + positions_ND[joined:]

    def join(self, tokens_SD: Tensor) -> None:
        self.tokens_SD = torch.cat([tokens_SD, self.tokens_SD])

    def write(self, writer: ProgramWriter, to: str) -> int:
        joined = len(self.tokens_SD)
        if joined:
            writer.step("tokens", to, {"first": 0, "count": joined, "value": self.tokens_SD})
        fields = dict(self.fields)
        if self.kind == "patches":
            fields["first"] = joined
        if self.real is not None:
            fields["weight"], fields["bias"] = self.real
        return writer.step(self.kind, to, fields | {"positions": self.positions_ND})
