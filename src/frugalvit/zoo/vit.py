"""ViT (Dosovitskiy et al. 2021), in the sizes of AugReg (Steiner et al. 2022, Table 2)."""

from __future__ import annotations

from functools import partial

from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, deepening
from frugalvit.nn.dropout import Drop
from frugalvit.nn.init import LecunNormal, Normal, XavierUniform, Zeros
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.linear import Dense
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.nn.shape import Size, image_of
from frugalvit.nn.tokenizer import Patches


def vit(
    *,
    dim: int,
    heads: int,
    depth: int,
    patch: Size,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    mlp_ratio: float = 4.0,
    drop_path: float = 0.0,
    dropout: float = 0.0,
) -> Model:
    """ViT with a class token and learned positions, initialized as the original: Xavier kernels, a head of zeros.

    Dropout is where the original has it: behind the positions, and in each block of what attention gives and of both layers of
    the MLP. The paper pre-trains with dropout=0.1.
    """
    attention = Attention(heads, linear=Dense(weight=XavierUniform()))
    mlp = Mlp(mlp_ratio, linear=Dense(weight=XavierUniform(), bias=Normal(1e-6)))
    blocks = deepening(Block(attention, mlp, dropout=dropout), depth, drop_path)
    first = (Join(("class",), init=Zeros()), AddPositions(), *((Drop(dropout),) if dropout else ()))
    return Model(
        Patches(patch, dim, weight=LecunNormal(), bias=Zeros()),
        (*first, *blocks),
        Tokens(("class",), linear=Dense(weight=Zeros())),
        classes,
        image_of(image, channels),
    )


vit_tiny_patch16_224 = partial(vit, dim=192, heads=3, depth=12, patch=16)
vit_tiny_patch16_384 = partial(vit, dim=192, heads=3, depth=12, patch=16, image=384)
vit_small_patch32_224 = partial(vit, dim=384, heads=6, depth=12, patch=32)
vit_small_patch32_384 = partial(vit, dim=384, heads=6, depth=12, patch=32, image=384)
vit_small_patch16_224 = partial(vit, dim=384, heads=6, depth=12, patch=16)
vit_small_patch16_384 = partial(vit, dim=384, heads=6, depth=12, patch=16, image=384)
vit_base_patch32_224 = partial(vit, dim=768, heads=12, depth=12, patch=32)
vit_base_patch32_384 = partial(vit, dim=768, heads=12, depth=12, patch=32, image=384)
vit_base_patch16_224 = partial(vit, dim=768, heads=12, depth=12, patch=16)
vit_base_patch16_384 = partial(vit, dim=768, heads=12, depth=12, patch=16, image=384)
vit_base_patch8_224 = partial(vit, dim=768, heads=12, depth=12, patch=8)
vit_large_patch16_224 = partial(vit, dim=1024, heads=16, depth=24, patch=16)
vit_large_patch16_384 = partial(vit, dim=1024, heads=16, depth=24, patch=16, image=384)
