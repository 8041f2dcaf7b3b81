"""Parameters, multiply-accumulates and activation memory of a model, from shapes alone: nothing is computed.

The model is built and traced with fake tensors, which have shapes but no data. So a user's own part is counted like
ours, and an operation that changes is counted as it changed.
"""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from frugalvit.measure.bits import TOGETHER, Tally, one_bit_weights
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.attention import MultiHead
from frugalvit.nn.foreign import ForeignModel
from frugalvit.nn.map_norm import BatchNormalized
from frugalvit.nn.shape import MapShape, Shape


@dataclass(frozen=True)
class Cost:
    """What one place of a model costs for one picture."""

    path: str
    shape: Shape | MapShape | None  # of the tokens or maps it leaves behind; None for the readout and for the whole
    parameters: int
    macs: int  # multiply-accumulates of convolutions, linear maps and attention products, as defined
    activations: int  # bytes kept for the backward pass, fp32, the fused attention kernel where it is taken
    bits: int = 0  # parameters of one bit, among the parameters
    bops: int = 0  # multiply-accumulates of one bit, among the macs
    scaled: int = 0  # multiplications of affine maps, which the rule of BinaryViT's tables counts


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

    @property
    def bits(self) -> int:
        return sum(place.bits for place in self.places)

    @property
    def bops(self) -> int:
        return sum(place.bops for place in self.places)

    @property
    def flops(self) -> int:
        """Multiply-accumulates in full precision, with those of affine maps: the FLOPs of BinaryViT's tables."""
        return self.macs - self.bops + sum(place.scaled for place in self.places)

    @property
    def ops(self) -> float:
        """BOPs / 64 + FLOPs, as binary networks are compared (Liu et al. 2018, §4)."""
        return self.bops / TOGETHER + self.flops


def cost(model: Architecture) -> ModelCost:
    """Parameters, MACs and activation memory of the model at its image size, for one picture. Counted once for each model."""
    return remembered(model) if is_hashable(model) else counted(model)


def is_hashable(value: object) -> bool:
    """Whether it has a hash; a part of the user's may hold a list."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def counted(model: Architecture) -> ModelCost:
    # timm reads values while it builds, which fake tensors have not; on the meta device only parameters are without
    with torch.device("meta") if isinstance(model, ForeignModel) else FakeTensorMode():
        module = model.build(seed=0).train()
        image = model.image
        normed = isinstance(model, ForeignModel) or any(isinstance(one, BatchNormalized) for one in module.modules())
        pictures = 2 if normed else 1  # a batch norm needs two values a channel
        x = torch.empty(pictures, image.channels, image.height, image.width)
        seen = Seen(module, pictures)
        for name, part, shape in module.places():
            rows = int(getattr(part, "draws", 0))
            x = seen.run(name, shape, part, (x, torch.empty(rows, pictures)) if rows else (x,))
    return ModelCost(tuple(seen.places))


remembered = functools.lru_cache(maxsize=64)(counted)


class Seen:
    """Runs the parts of a model one after the other and notes what each one costs."""

    def __init__(self, module: nn.Module, pictures: int):
        self.places: list[Cost] = []
        self.pictures = pictures
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
        gated = [one for one in part.modules() if isinstance(one, MultiHead) and one.fused and one.after]
        tally = Tally()
        with (
            torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
            nullcontext() if gated else tally.counting(part, counter),
        ):
            outputs = part(*inputs)
        if gated:  # the definition has one product where the fast path has two
            for one in gated:
                one.fused = False
            with tally.counting(part, counter), torch.no_grad():
                part(*inputs)
            for one in gated:
                one.fused = True
        parameters = sum(one.numel() for one in part.parameters())
        macs = counter.get_total_flops() // (2 * self.pictures)
        bits = sum(one.numel() for one in one_bit_weights(part))
        bops, scaled = tally.flops // (2 * self.pictures), tally.scaled // self.pictures
        self.places.append(Cost(path, shape, parameters, macs, kept // self.pictures, bits, bops, scaled))
        return outputs


def attention_flops(q: Any, k: Any, v: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Two per multiply-accumulate of q kᵀ and of its product with v, from the shapes of q, k and v."""
    batch, heads, queries, width = q
    return 2 * batch * heads * queries * k[2] * (width + v[3])


FUSED_ON_CPU = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attention_flops}
