"""The scaled-down models of "Vision Transformer for Small-Size Datasets" (Lee et al. 2021), for pictures of 32 and 64 pixels.

Each has the quirks of that paper's code as values in its slots: Xavier and N(0, 1) initializations, class attention that
does not see the class token, a pooling of two convolutions, a second skip in T2T (docs/papers/spt_lsa.md). What the paper
adds to them, `with_spt` and `with_lsa`, stands in change.py. At other sides a patch is a whole number of pixels, and a grid
may be larger than at these two; `recipes/small.py` has the sides that leave it the same.
"""

from __future__ import annotations

from functools import partial

from frugalvit.nn.attention import Attention, SkipAttention
from frugalvit.nn.block import Block, SummaryBlock, deepening, even, refuse_stages
from frugalvit.nn.init import FanInUniform, Init, Normal, XavierNormal, Zeros
from frugalvit.nn.layers import AddPositions, AddSinusoid, Join, Layer, Normalize
from frugalvit.nn.linear import Dense
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm, SummaryNorm
from frugalvit.nn.pooling import MergePatches, SeparablePool
from frugalvit.nn.readout import Mean, Tokens
from frugalvit.nn.residual import LayerScale
from frugalvit.nn.scope import PatchesOnly, Windows
from frugalvit.nn.score import MixHeads, RelativeBias
from frugalvit.nn.shape import Size, image_of, pair
from frugalvit.nn.t2t import TokensToTokens
from frugalvit.nn.tokenizer import Patches

NORM = LayerNorm(1e-5)
XAVIER = Dense(weight=XavierNormal())
JOINED = Dense(weight=XavierNormal(times=3), bias=None)  # q, k and v were drawn as one matrix
UNIT = Normal(1.0)


def side_of(image: Size, grid: int) -> int:
    """The patch that leaves a grid of that side."""
    return max(min(pair(image)) // grid, 1)


def small_vit(
    *,
    image: Size = 32,
    patch: Size | None = None,
    dim: int = 192,
    heads: int = 12,
    depth: int = 9,
    channels: int = 3,
    classes: int | None = 10,
    mlp_ratio: float = 2.0,
    drop_path: float = 0.0,
) -> Model:
    """Lee et al.'s ViT: 8 x 8 patches, narrow heads, an MLP of twice the width; drop_path=0.1 in training."""
    attention = Attention(heads, linear=XAVIER, query=JOINED, key=JOINED, value=JOINED)
    blocks = even(Block(attention, Mlp(mlp_ratio, linear=XAVIER), NORM), depth, drop_path)
    return Model(
        Patches(patch or side_of(image, 8), dim, weight=XavierNormal(), bias=Zeros()),
        (Join(("class",), UNIT), AddPositions(UNIT), *blocks),
        Tokens(("class",), NORM, XAVIER),
        classes,
        image_of(image, channels),
    )


def small_cait(
    *,
    image: Size = 32,
    patch: Size | None = None,
    dim: int = 192,
    heads: int = 4,
    head_dim: int = 64,
    depth: int = 24,
    class_depth: int = 2,
    channels: int = 3,
    classes: int | None = 10,
    mlp_ratio: float = 2.0,
    drop_path: float = 0.0,
) -> Model:
    """Lee et al.'s CaiT: LayerScale from 0.1 in the first 18 blocks and 1e-5 above, talking heads from N(0, 1) everywhere.

    Its class token sees the patches, as they are, but not itself; its class blocks drop branches too.
    """
    mix = (MixHeads(UNIT, bias=None),)
    query = Dense(weight=XavierNormal(), bias=None)
    joined = Dense(weight=XavierNormal(times=2), bias=None)  # k and v were drawn as one matrix
    attention = Attention(heads, before=mix, after=mix, linear=XAVIER, query=query, key=joined, value=joined, head_dim=head_dim)
    mlp = Mlp(mlp_ratio, linear=XAVIER)
    blocks = [Block(attention, mlp, NORM, LayerScale(layer_scale(number), drop_path)) for number in range(1, depth + 1)]
    looks = Attention(
        heads, PatchesOnly(), before=mix, after=mix, linear=XAVIER, query=query, key=joined, value=joined, head_dim=head_dim
    )
    above = [
        SummaryBlock(looks, mlp, SummaryNorm(NORM), LayerScale(layer_scale(number), drop_path))
        for number in range(1, class_depth + 1)
    ]
    return Model(
        Patches(patch or side_of(image, 8), dim, weight=XavierNormal(), bias=Zeros()),
        (AddPositions(UNIT), *blocks, Join(("class",), UNIT), *above),
        Tokens(("class",), NORM, XAVIER),
        classes,
        image_of(image, channels),
    )


def layer_scale(number: int) -> float:
    """LayerScale's first value in the block of that number, counted from 1."""
    return 0.1 if number <= 18 else 1e-5 if number <= 24 else 1e-6


def small_pit(
    *,
    image: Size = 32,
    patch: Size | None = None,
    dim: int = 96,
    heads: tuple[int, ...] = (2, 4, 8),
    depths: tuple[int, ...] = (2, 6, 4),
    channels: int = 3,
    classes: int | None = 10,
    mlp_ratio: float = 2.0,
    drop_path: float = 0.0,
) -> Model:
    """Lee et al.'s PiT: patches side by side, the class token joins before the positions, a pooling of two convolutions."""
    refuse_stages(heads, depths)
    patch = patch or side_of(image, 16)
    layers: list[Layer] = [Join(("class",), UNIT), AddPositions(UNIT)]
    for stage, depth in enumerate(depths):
        if stage:
            # torch counts the 9 pixels of a kernel in both of its fans
            layers.append(SeparablePool(XavierNormal(times=9), Zeros(), XAVIER, XAVIER))
        attention = Attention(heads[stage], linear=XAVIER, query=JOINED, key=JOINED, value=JOINED)
        layers += even(Block(attention, Mlp(mlp_ratio, linear=XAVIER), NORM), depth, drop_path)
    high, wide = pair(patch)
    return Model(
        Patches(patch, dim, weight=XavierNormal(times=high * wide), bias=Zeros()),
        tuple(layers),
        Tokens(("class",), NORM, XAVIER),
        classes,
        image_of(image, channels),
    )


def small_swin(
    *,
    image: Size = 32,
    patch: Size | None = None,
    dim: int = 96,
    heads: tuple[int, ...] = (3, 6, 12),
    depths: tuple[int, ...] = (2, 6, 4),
    window: int = 4,
    channels: int = 3,
    classes: int | None = 10,
    mlp_ratio: float = 2.0,
    drop_path: float = 0.0,
) -> Model:
    """Lee et al.'s Swin: windows of 4 x 4 on a grid of 16, absolute positions beside the relative bias, PyTorch's own inits."""
    refuse_stages(heads, depths)
    patch = patch or side_of(image, 16)
    default: Init = FanInUniform()
    dense, unbiased = Dense(default, default), Dense(default, None)
    blocks = deepening(Block(Attention(heads[0]), Mlp(mlp_ratio, linear=dense), NORM), sum(depths), drop_path)
    layers: list[Layer] = [Normalize(NORM), AddPositions()]
    start = 0
    for stage, depth in enumerate(depths):
        if stage:
            layers.append(MergePatches(NORM, unbiased))
        grid = min(pair(image)) // (min(pair(patch)) * 2**stage)
        side = max(min(window, grid), 1)
        for index, one in enumerate(blocks[start : start + depth]):
            shift = side // 2 if index % 2 and grid > window else 0
            attention = Attention(heads[stage], Windows(side, shift), before=(RelativeBias(),), linear=dense)
            layers.append(Block(attention, one.mlp, one.norm, one.residual))
        start += depth
    return Model(Patches(patch, dim), tuple(layers), Mean(norm=NORM, linear=dense), classes, image_of(image, channels))


def small_t2t(
    *,
    image: Size = 32,
    dim: int = 256,
    width: int = 64,
    heads: int = 4,
    depth: int = 12,
    channels: int = 3,
    classes: int | None = 10,
    mlp_ratio: float = 2.0,
    drop_path: float = 0.0,
) -> Model:
    """Lee et al.'s T2T: soft splits down to a grid of 8 x 8, fixed sinusoids, a second skip around each attention."""
    no_bias = Dense(bias=None)
    attention = SkipAttention(Attention(heads, query=no_bias, key=no_bias, value=no_bias))
    blocks = deepening(Block(attention, Mlp(mlp_ratio), NORM), depth, drop_path)
    splits = max((min(pair(image)) // 8).bit_length() - 1, 2)
    return Model(
        TokensToTokens(dim, width, splits),
        (Join(("class",)), AddSinusoid(), *blocks),
        Tokens(("class",), NORM),
        classes,
        image_of(image, channels),
    )


small_vit_32 = partial(small_vit)
small_vit_64 = partial(small_vit, image=64, classes=200)
small_cait_32 = partial(small_cait)
small_cait_64 = partial(small_cait, image=64, classes=200)
small_pit_32 = partial(small_pit)
small_pit_64 = partial(small_pit, image=64, classes=200)
small_swin_32 = partial(small_swin)
small_swin_64 = partial(small_swin, image=64, classes=200)
small_t2t_32 = partial(small_t2t)
small_t2t_64 = partial(small_t2t, image=64, classes=200)
