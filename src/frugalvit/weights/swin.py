"""What timm, and Swin's own repository, call the tensors of Swin (Liu et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block
from frugalvit.nn.dropout import Drop
from frugalvit.nn.layers import Normalize
from frugalvit.nn.linear import Dense
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.pooling import MergePatches
from frugalvit.nn.readout import Mean
from frugalvit.nn.scope import Windows
from frugalvit.nn.score import RelativeBias
from frugalvit.nn.shape import pair
from frugalvit.nn.tokenizer import Patches
from frugalvit.weights.parts import Pair, Usual, block, both, patches, unnamed
from frugalvit.weights.translate import State

WINDOWED = Usual(scope=Windows, before=(RelativeBias,))
BUFFERS = ("relative_position_index", "attn_mask")  # both follow from sizes


def names(model: Model) -> Iterator[Pair]:
    """(timm's, ours): merging belongs to the stage behind it."""
    return named(model, "layers.{after}.downsample", "head.fc")


def official_names(model: Model) -> Iterator[Pair]:
    """(the released files', ours): merging belongs to the stage before it."""
    return named(model, "layers.{before}.downsample", "head")


def named(model: Model, merge: str, head: str) -> Iterator[Pair]:
    yield from patches(model, Patches, "patch_embed.proj")
    stage, number = 0, 0
    for index, layer in enumerate(model.layers):
        ours = f"layers.{index}"
        match layer:
            case Normalize(norm=LayerNorm()) if index == 0:
                yield from both("patch_embed.norm", ours)
            case MergePatches(norm=LayerNorm(), linear=Dense()):
                theirs = merge.format(before=stage, after=stage + 1)
                yield from both(f"{theirs}.norm", f"{ours}.norm")
                yield f"{theirs}.reduction.weight", f"{ours}.linear.weight"
                stage, number = stage + 1, 0
            case Block():
                theirs = f"layers.{stage}.blocks.{number}"
                yield from block(layer, index, WINDOWED, theirs)
                yield from both(f"{theirs}.attn.qkv", f"{ours}.attention.qkv")
                yield f"{theirs}.attn.relative_position_bias_table", f"{ours}.attention.before.0.bias"
                number += 1
            case Drop():
                pass  # it has no weights
            case _:
                raise unnamed(layer, f"layers[{index}]")
    if not isinstance(model.readout, Mean):
        raise unnamed(model.readout, "readout")
    yield from both("norm", "readout.norm")
    yield from both(head, f"readout.heads.{model.readout.names[0]}")


def tidy(state: Mapping[str, Tensor], model: Model) -> State:
    """The state without buffers."""
    return {name: value for name, value in state.items() if not name.endswith(BUFFERS)}


def unlike(model: Model) -> set[str]:
    """What names cannot say: timm shifts every second block, by half a window, where the grid is larger than one."""
    if not isinstance(model.tokenizer, Patches):
        return set()
    found = set()
    high, wide = pair(model.tokenizer.patch)
    grid, number = min(model.image.height // high, model.image.width // wide), 0
    for layer in model.layers:
        if isinstance(layer, MergePatches):
            grid, number = grid // 2, 0
        elif isinstance(layer, Block) and isinstance(layer.attention, Attention) and isinstance(layer.attention.scope, Windows):
            scope = layer.attention.scope
            side = min(pair(scope.side))
            if scope.shift != (side // 2 if number % 2 and grid > side else 0):
                found.add(f"shift={scope.shift} in block {number} of a stage")
            number += 1
    return found
