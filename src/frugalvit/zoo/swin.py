"""Swin (Liu et al. 2021), Table 7: windows that shift from block to block, and four stages."""

from __future__ import annotations

from functools import partial

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, deepening, refuse_stages
from frugalvit.nn.layers import Layer, Normalize
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.pooling import MergePatches
from frugalvit.nn.readout import Mean
from frugalvit.nn.scope import Windows
from frugalvit.nn.score import RelativeBias
from frugalvit.nn.shape import Size, image_of, pair
from frugalvit.nn.tokenizer import Patches


def swin(
    *,
    dim: int,
    heads: tuple[int, ...],
    depths: tuple[int, ...],
    window: int = 7,
    patch: Size = 4,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    mlp_ratio: float = 4.0,
    drop_path: float = 0.0,
) -> Model:
    """Swin: attention in windows, every second block's shifted by half a window, 2 x 2 tokens merged between stages.

    Where the grid is no larger than a window, the window is the grid and nothing shifts. The paper trains with drop_path=0.2
    (T), 0.3 (S) and 0.5 (B).
    """
    refuse_stages(heads, depths)
    if window < 1:
        raise SpecError(f"windows of {window} patches. Use 1 and more.", path="window")
    norm = LayerNorm(1e-5)
    blocks = deepening(Block(Attention(heads[0]), Mlp(mlp_ratio), norm), sum(depths), drop_path)
    layers: list[Layer] = [Normalize(norm)]
    start = 0
    (height, width), (high, wide) = pair(image), pair(patch)
    for stage, depth in enumerate(depths):
        if stage:
            layers.append(MergePatches())
        grid = min(height // (high * 2**stage), width // (wide * 2**stage))
        side = max(min(window, grid), 1)
        for index, one in enumerate(blocks[start : start + depth]):
            shift = side // 2 if index % 2 and grid > window else 0
            attention = Attention(heads[stage], Windows(side, shift), before=(RelativeBias(),))
            layers.append(Block(attention, one.mlp, one.norm, one.residual))
        start += depth
    return Model(Patches(patch, dim), tuple(layers), Mean(norm=norm), classes, image_of(image, channels))


swin_tiny_patch4_window7_224 = partial(swin, dim=96, heads=(3, 6, 12, 24), depths=(2, 2, 6, 2))
swin_small_patch4_window7_224 = partial(swin, dim=96, heads=(3, 6, 12, 24), depths=(2, 2, 18, 2))
swin_base_patch4_window7_224 = partial(swin, dim=128, heads=(4, 8, 16, 32), depths=(2, 2, 18, 2))
