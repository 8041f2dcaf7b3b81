"""The hybrids of AugReg (Steiner et al. 2022, Table 2): a ResNet in front of a ViT."""

from __future__ import annotations

from functools import partial

from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, deepening
from frugalvit.nn.conv import MaxPool, Same, StandardizedConvolution
from frugalvit.nn.conv_blocks import Bottleneck, Stem, stage
from frugalvit.nn.conv_stem import ConvStem
from frugalvit.nn.dropout import Drop
from frugalvit.nn.init import LecunNormal, Normal, XavierUniform, Zeros
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.linear import Dense
from frugalvit.nn.map_norm import GroupNorm
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.nn.shape import Size, image_of

CONV = StandardizedConvolution(padding=Same(), weight=LecunNormal())
ROOT = Stem(64, kernel=7, stride=2, pool=MaxPool(padding=Same()), conv=CONV, norm=GroupNorm())


def hybrid(
    *,
    depths: tuple[int, ...],
    dim: int,
    heads: int,
    depth: int,
    patch: int = 1,
    stem: Stem = ROOT,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    mlp_ratio: float = 4.0,
    drop_path: float = 0.0,
    dropout: float = 0.0,
) -> Model:
    """A ResNet with stages of `depths` blocks, then ViT on patches of its maps; drop rates are the transformer's alone.

    Deviation: the paper says batch norm; its code, its weights and we have group norm and standardized kernels. R+Ti/16
    sees 32 pixels a token, not 16: the stem halves the picture twice before its patches of 8.
    """
    maps = [
        one
        for index, number in enumerate(depths)
        for one in stage(
            Bottleneck(256 * 2**index, 64 * 2**index, conv=CONV, norm=GroupNorm(), scale=Zeros()),
            number,
            1 if index == 0 else 2,
        )
    ]
    attention = Attention(heads, linear=Dense(weight=XavierUniform()))
    mlp = Mlp(mlp_ratio, linear=Dense(weight=XavierUniform(), bias=Normal(1e-6)))
    blocks = deepening(Block(attention, mlp, dropout=dropout), depth, drop_path)
    first = (Join(("class",), init=Zeros()), AddPositions(), *((Drop(dropout),) if dropout else ()))
    return Model(
        ConvStem(patch, dim, stem, tuple(maps), weight=LecunNormal(), bias=Zeros()),
        (*first, *blocks),
        Tokens(("class",), linear=Dense(weight=Zeros())),
        classes,
        image_of(image, channels),
    )


vit_tiny_r_s16_p8_224 = partial(hybrid, depths=(), dim=192, heads=3, depth=12, patch=8)
vit_tiny_r_s16_p8_384 = partial(hybrid, depths=(), dim=192, heads=3, depth=12, patch=8, image=384)
vit_small_r26_s32_224 = partial(hybrid, depths=(2, 2, 2, 2), dim=384, heads=6, depth=12)
vit_small_r26_s32_384 = partial(hybrid, depths=(2, 2, 2, 2), dim=384, heads=6, depth=12, image=384)
vit_large_r50_s32_224 = partial(hybrid, depths=(3, 4, 6, 3), dim=1024, heads=16, depth=24)
vit_large_r50_s32_384 = partial(hybrid, depths=(3, 4, 6, 3), dim=1024, heads=16, depth=24, image=384)
