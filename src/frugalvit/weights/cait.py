"""What timm and the released files call the tensors of CaiT (Touvron et al. 2021b)."""

from __future__ import annotations

from collections.abc import Iterator

from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.dropout import Drop
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.model import Model
from frugalvit.nn.residual import LayerScale
from frugalvit.nn.scope import SummaryOnly
from frugalvit.nn.score import MixHeads
from frugalvit.nn.tokenizer import Patches
from frugalvit.weights.parts import CLASS, HEAD, Pair, Usual, block, both, heads, joined, patches, unnamed

TALKING = Usual(before=(MixHeads,), after=(MixHeads,), residual=LayerScale)
LOOKING = Usual(scope=SummaryOnly, residual=LayerScale)


def names(model: Model) -> Iterator[Pair]:
    """(theirs, ours): blocks on patches alone, then the class token and its own blocks."""
    yield from patches(model, Patches, "patch_embed.proj")
    number, looks, summary = 0, 0, False
    for index, layer in enumerate(model.layers):
        ours = f"layers.{index}"
        match layer:
            case AddPositions() if not summary:
                yield "pos_embed", f"{ours}.positions"
            case Join():
                yield from joined(layer, index, CLASS)
                summary = True
            case Block() if not summary:
                theirs = f"blocks.{number}"
                yield from block(layer, index, TALKING, theirs)
                yield from both(f"{theirs}.attn.qkv", f"{ours}.attention.qkv")
                yield from both(f"{theirs}.attn.proj_l", f"{ours}.attention.before.0")
                yield from both(f"{theirs}.attn.proj_w", f"{ours}.attention.after.0")
                number += 1
            case SummaryBlock():
                theirs = f"blocks_token_only.{looks}"
                yield from block(layer, index, LOOKING, theirs)
                for one in ("q", "k", "v"):
                    yield from both(f"{theirs}.attn.{one}", f"{ours}.attention.qkv.{one}")
                looks += 1
            case Drop():
                pass  # it has no weights
            case _:
                raise unnamed(layer, f"layers[{index}]")
    yield from heads(model, HEAD)
