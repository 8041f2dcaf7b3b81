"""PiT (Heo et al. 2021), Table 1: a ViT whose grid shrinks and whose width grows in three stages."""

from __future__ import annotations

from functools import partial

from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, deepening, refuse_stages
from frugalvit.nn.init import FanInUniform
from frugalvit.nn.layers import AddPositions, Join, Layer
from frugalvit.nn.linear import Dense
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.pooling import PoolTokens
from frugalvit.nn.readout import Tokens
from frugalvit.nn.shape import Size, image_of
from frugalvit.nn.tokenizer import OverlappingPatches


def pit(
    *,
    dim: int,
    heads: tuple[int, ...],
    depths: tuple[int, ...],
    patch: Size = 16,
    stride: Size = 8,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    mlp_ratio: float = 4.0,
    drop_path: float = 0.0,
    summary: tuple[str, ...] = ("class",),
) -> Model:
    """PiT: overlapping patches, positions on patches alone, and between stages a depthwise convolution that halves the grid."""
    refuse_stages(heads, depths)
    dense = Dense(FanInUniform(), FanInUniform())  # PyTorch's own: the release sets no initial values but those of tokens
    blocks = deepening(Block(Attention(heads[0]), Mlp(mlp_ratio, linear=dense)), sum(depths), drop_path)
    layers: list[Layer] = [AddPositions(), Join(summary)]
    start = 0
    for stage, depth in enumerate(depths):
        if stage:
            layers.append(PoolTokens(linear=dense))
        attention = Attention(heads[stage], linear=dense)
        layers += [Block(attention, one.mlp, one.norm, one.residual) for one in blocks[start : start + depth]]
        start += depth
    readout = Tokens(summary, linear=dense)
    return Model(OverlappingPatches(patch, stride, dim), tuple(layers), readout, classes, image_of(image, channels))


DISTILLED = ("class", "distill")

TI = partial(pit, dim=64, heads=(2, 4, 8), depths=(2, 6, 4))
XS = partial(pit, dim=96, heads=(2, 4, 8), depths=(2, 6, 4))
S = partial(pit, dim=144, heads=(3, 6, 12), depths=(2, 6, 4))
B = partial(pit, dim=256, heads=(4, 8, 16), depths=(3, 6, 4), patch=14, stride=7)

pit_ti_224 = partial(TI)
pit_xs_224 = partial(XS)
pit_s_224 = partial(S)
pit_b_224 = partial(B)
pit_ti_distilled_224 = partial(TI, summary=DISTILLED)
pit_xs_distilled_224 = partial(XS, summary=DISTILLED)
pit_s_distilled_224 = partial(S, summary=DISTILLED)
pit_b_distilled_224 = partial(B, summary=DISTILLED)
