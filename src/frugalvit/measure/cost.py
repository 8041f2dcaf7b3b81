"""Parameters, multiply-accumulates and activation memory of a model, from shapes alone: nothing is computed.

The model is built and traced with fake tensors, which have shapes but no data. So a user's own part is counted like
ours, and an operation that changes is counted as it changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frugalvit.nn.model import Model
from frugalvit.nn.shape import MapShape, Shape


@dataclass(frozen=True)
class Cost:
    """What one place of a model costs for one picture."""

    path: str
    shape: Shape | MapShape | None  # of the tokens or maps it leaves behind; None for the readout and for the whole
    parameters: int
    macs: int  # multiply-accumulates of convolutions, linear maps and attention products
    activations: int  # bytes kept for the backward pass, fp32, the fused attention kernel where it is taken


@dataclass(frozen=True)
class ModelCost:
    """The cost of a model, place by place; its sums are properties."""

    places: tuple[Cost, ...]

    @property
    def parameters(self) -> int:
        return sum(place.parameters for place in self.places)

    @property
    def macs(self) -> int:
        return sum(place.macs for place in self.places)

    @property
    def activations(self) -> int:
        return sum(place.activations for place in self.places)


def cost(model: Model) -> ModelCost:
    """Parameters, MACs and activation memory of the model at its image size, for one picture."""
    with FakeTensorMode():
        module = model.build(seed=0).train()
        image = model.image
        x = torch.empty(1, image.channels, image.height, image.width)
        seen = Seen(module)
        for name, part, shape in module.places():
            rows = int(getattr(part, "draws", 0))
            x = seen.run(name, shape, part, (x, torch.empty(rows, 1)) if rows else (x,))
    return ModelCost(tuple(seen.places))


class Seen:
    """Runs the parts of a model one after the other and notes what each one costs."""

    def __init__(self, module: nn.Module):
        self.places: list[Cost] = []
        owned = (*module.parameters(), *module.buffers())
        self.storages = {one.untyped_storage() for one in owned}  # what was counted, or is no activation

    def run(self, path: str, shape: Shape | MapShape | None, part: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        kept = 0

        def keep(tensor: Tensor) -> Tensor:
            nonlocal kept
            storage = tensor.untyped_storage()
            if storage not in self.storages:
                self.storages.add(storage)
                kept += storage.nbytes()
            return tensor

        counter = FlopCounterMode(display=False, custom_mapping=FUSED_ON_CPU)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), counter:
            outputs = part(*inputs)
        parameters = sum(one.numel() for one in part.parameters())
        self.places.append(Cost(path, shape, parameters, counter.get_total_flops() // 2, kept))
        return outputs


def attention_flops(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Two per multiply-accumulate of q kᵀ and of its product with v, from the shapes of q, k and v."""
    batch, heads, queries, width = q
    return 2 * batch * heads * queries * k[2] * (width + v[3])


FUSED_ON_CPU = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
