"""What timm and the released files call the tensors of ConViT (d'Ascoli et al. 2021): q and k in one matrix, v in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from frugalvit.errors import WeightsError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block
from frugalvit.nn.dropout import Drop
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.model import Model
from frugalvit.nn.score import GatePosition
from frugalvit.nn.tokenizer import Patches
from frugalvit.weights.parts import CLASS, HEAD, Pair, Usual, block, both, heads, joined, patches, unnamed
from frugalvit.weights.translate import State

GATED = Usual(after=(GatePosition,))
PLAIN = Usual()


def names(model: Model) -> Iterator[Pair]:
    """(theirs, ours), theirs as `tidy` leaves them: gated blocks on patches alone, then the class token in plain ones."""
    yield from patches(model, Patches, "patch_embed.proj")
    number, summary = 0, False
    for index, layer in enumerate(model.layers):
        ours, theirs = f"layers.{index}", f"blocks.{number}"
        match layer:
            case AddPositions() if not summary:
                yield "pos_embed", f"{ours}.positions"
            case Join():
                yield from joined(layer, index, CLASS)
                summary = True
            case Block():
                yield from block(layer, index, PLAIN if summary else GATED, theirs)
                yield f"{theirs}.attn.qkv.weight", f"{ours}.attention.qkv.weight"
                if not summary:
                    yield from both(f"{theirs}.attn.pos_proj", f"{ours}.attention.after.0")
                    yield f"{theirs}.attn.gating_param", f"{ours}.attention.after.0.gate_H"
                number += 1
            case Drop():
                pass  # it has no weights
            case _:
                raise unnamed(layer, f"layers[{index}]")
    yield from heads(model, HEAD)


def gated(layer: object) -> bool:
    """Whether a block's attention looks at positions too."""
    terms = layer.attention.after if isinstance(layer, Block) and isinstance(layer.attention, Attention) else ()
    return any(isinstance(term, GatePosition) for term in terms)


def places(model: Model) -> list[str]:
    """Where the attention of gated blocks is in a file."""
    blocks = [layer for layer in model.layers if isinstance(layer, Block)]
    return [f"blocks.{number}.attn." for number, layer in enumerate(blocks) if gated(layer)]


def tidy(state: Mapping[str, Tensor], model: Model) -> State:
    """q, k and v of gated blocks in one matrix, as plain blocks have them."""
    found = dict(state)
    for place in places(model):
        if f"{place}qk.weight" not in found:
            continue
        if f"{place}v.weight" not in found:
            raise WeightsError(f"the file has '{place}qk.weight' but not '{place}v.weight'.")
        found[f"{place}qkv.weight"] = torch.cat([found.pop(f"{place}qk.weight"), found.pop(f"{place}v.weight")])
    return found


def untidy(state: Mapping[str, Tensor], model: Model) -> State:
    """The inverse of `tidy`."""
    found = dict(state)
    for place in places(model):
        q_DD, k_DD, v_DD = found.pop(f"{place}qkv.weight").chunk(3)
        found[f"{place}qk.weight"] = torch.cat([q_DD, k_DD])
        found[f"{place}v.weight"] = v_DD
    return found
