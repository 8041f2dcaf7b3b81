"""CaiT (Touvron et al. 2021b), the ten sizes of its table of models; heads are 48 wide everywhere."""

from __future__ import annotations

from functools import partial

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, SummaryBlock, even
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.nn.residual import LayerScale
from frugalvit.nn.scope import SummaryOnly
from frugalvit.nn.score import MixHeads
from frugalvit.nn.shape import Size, image_of
from frugalvit.nn.tokenizer import Patches


def cait(
    *,
    dim: int,
    heads: int,
    depth: int,
    class_depth: int = 2,
    layer_scale: float,
    patch: Size = 16,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    mlp_ratio: float = 4.0,
    drop_path: float = 0.0,
    summary: tuple[str, ...] = ("class",),
) -> Model:
    """CaiT: talking heads and LayerScale on patches alone, then the class token joins and two blocks of class attention.

    The drop rate is the same in all patch blocks and 0 in the class blocks, as published.
    """
    if class_depth < 1:
        raise SpecError(f"{class_depth} class blocks leave the class token as it joined. Use 1 and more.", path="class_depth")
    mix = (MixHeads(),)
    scaled = LayerScale(layer_scale)
    blocks = even(Block(Attention(heads, before=mix, after=mix), Mlp(mlp_ratio), residual=scaled), depth, drop_path)
    looks = SummaryBlock(Attention(heads, scope=SummaryOnly()), Mlp(mlp_ratio), residual=scaled)
    return Model(
        Patches(patch, dim),
        (AddPositions(), *blocks, Join(summary), *(looks,) * class_depth),
        Tokens(summary),
        classes,
        image_of(image, channels),
    )


# the paper's table: width, depth, LayerScale's first value. Deviation: the released XXS-36 starts at 1e-5 (docs/papers/cait.md)
XXS24 = partial(cait, dim=192, heads=4, depth=24, layer_scale=1e-5)
XXS36 = partial(cait, dim=192, heads=4, depth=36, layer_scale=1e-6)
XS24 = partial(cait, dim=288, heads=6, depth=24, layer_scale=1e-5)
XS36 = partial(cait, dim=288, heads=6, depth=36, layer_scale=1e-6)
S24 = partial(cait, dim=384, heads=8, depth=24, layer_scale=1e-5)
S36 = partial(cait, dim=384, heads=8, depth=36, layer_scale=1e-6)
S48 = partial(cait, dim=384, heads=8, depth=48, layer_scale=1e-6)
M24 = partial(cait, dim=768, heads=16, depth=24, layer_scale=1e-5)
M36 = partial(cait, dim=768, heads=16, depth=36, layer_scale=1e-6)
M48 = partial(cait, dim=768, heads=16, depth=48, layer_scale=1e-6)

cait_xxs24_224 = partial(XXS24)
cait_xxs24_384 = partial(XXS24, image=384)
cait_xxs36_224 = partial(XXS36)
cait_xxs36_384 = partial(XXS36, image=384)
cait_xs24_224 = partial(XS24)
cait_xs24_384 = partial(XS24, image=384)
cait_xs36_224 = partial(XS36)
cait_xs36_384 = partial(XS36, image=384)
cait_s24_224 = partial(S24)
cait_s24_384 = partial(S24, image=384)
cait_s36_224 = partial(S36)
cait_s36_384 = partial(S36, image=384)
cait_s48_224 = partial(S48)
cait_s48_384 = partial(S48, image=384)
cait_m24_224 = partial(M24)
cait_m24_384 = partial(M24, image=384)
cait_m36_224 = partial(M36)
cait_m36_384 = partial(M36, image=384)
cait_m48_448 = partial(M48, image=448)
