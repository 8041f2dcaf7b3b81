"""BinaryViT (Le & Li 2023): weights and activations of one bit, and the ladder that leads there from a binary DeiT.

The ladder, Table 1: a binary DeiT-S with a class token (48.5 % on ImageNet); global average pooling (56.4); pooling branches
(60.2); affine maps before the sums (61.8); a pyramid (67.7); real merging between its stages, BinaryViT* (70.6).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frugalvit.errors import SpecError, at
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_block import BinaryBlock, Joining, PoolBranch
from frugalvit.nn.binary_channels import Affine, TokenBatchNorm
from frugalvit.nn.binary_linear import BinaryMlp
from frugalvit.nn.binary_merge import BinaryMerge, RealMerge
from frugalvit.nn.block import refuse_stages
from frugalvit.nn.init import FanInUniform, Normal
from frugalvit.nn.layers import AddPositions, Join, Layer, Normalize
from frugalvit.nn.linear import Dense
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Mean, Tokens
from frugalvit.nn.residual import LayerScale, Plain
from frugalvit.nn.shape import Size, image_of
from frugalvit.nn.tokenizer import Patches
from frugalvit.spec import swap

CROSS = (PoolBranch(3, 1), PoolBranch(1, 3), PoolBranch(5, 1), PoolBranch(1, 5))
NORM = TokenBatchNorm()
HEAD = Dense(FanInUniform(), FanInUniform())


def binaryvit(
    *,
    dim: int,
    heads: tuple[int, ...],
    depths: tuple[int, ...],
    ratios: tuple[int, ...],
    reductions: tuple[int, ...],
    patch: Size = 4,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    drop_path: float = 0.0,
    merge: BinaryMerge | RealMerge = BinaryMerge(),
    residual: Joining = Affine(),
    branches: tuple[PoolBranch, ...] = CROSS,
) -> Model:
    """BinaryViT: stages of binary blocks, each with half the grid and twice the width of the one before.

    A stage's MLP is `ratios` times as wide as its tokens, and its keys and values are means of squares of `reductions` tokens a
    side. Patches, positions, norms and the head are in full precision. Weights start as PyTorch's defaults, as in the release.
    """
    refuse_stages(heads, depths)
    for name, numbers in (("ratios", ratios), ("reductions", reductions)):
        if len(numbers) != len(depths):
            raise SpecError(f"{numbers} for depths {depths}. Give one number a stage.", path=name)
    blocks: list[list[BinaryBlock]] = []
    for stage, depth in enumerate(depths):
        attention = BinaryAttention(heads[stage], reductions[stage])
        blocks.append([BinaryBlock(attention, BinaryMlp(ratios[stage]), NORM, residual, branches)] * depth)
    rates = iter(drop_rates(drop_path, sum(depths)))
    layers: list[Layer] = [Normalize(NORM)]
    for stage, inside in enumerate(blocks):
        if stage:
            layers.append(merge)
        layers += [AddPositions(), *(dropping(block, next(rates)) for block in inside)]
    return Model(Patches(patch, dim), tuple(layers), Mean(norm=NORM, linear=HEAD), classes, image_of(image, channels))


def binary_deit(
    *,
    dim: int,
    heads: int,
    depth: int = 12,
    ratio: int = 4,
    patch: Size = 16,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    drop_path: float = 0.0,
    summary: tuple[str, ...] = ("class",),
    residual: Joining = Plain(),
    branches: tuple[PoolBranch, ...] = (),
) -> Model:
    """The flat models of BinaryViT's ladder: a DeiT of binary blocks. Without summary tokens it reads the mean of the patches.

    Summary tokens and pooling branches exclude each other. The norm at the end is over all tokens, whichever are read.
    """
    if depth < 1:
        raise SpecError(f"a depth of {depth} leaves no block. Use 1 and more.", path="depth")
    block = BinaryBlock(BinaryAttention(heads), BinaryMlp(ratio), NORM, residual, branches)
    join = (Join(summary, Normal(1e-6)),) if summary else ()
    blocks = [dropping(block, rate) for rate in drop_rates(drop_path, depth)]
    return Model(
        Patches(patch, dim),
        (*join, AddPositions(), *blocks),
        Tokens(summary, NORM, HEAD) if summary else Mean(norm=NORM, linear=HEAD),
        classes,
        image_of(image, channels),
    )


def drop_rates(drop: float, depth: int) -> list[float]:
    """From 0 to `drop` in equal steps. The paper drops nothing."""
    with at("drop_path"):
        Plain(drop)
    return [drop * index / max(depth - 1, 1) for index in range(depth)]


def dropping(block: BinaryBlock, rate: float) -> BinaryBlock:
    return replace(block, residual=swap(block.residual, (Plain, LayerScale), lambda one: replace(one, drop=rate)))


SMALL = partial(binaryvit, dim=64, heads=(1, 2, 4, 8), depths=(3, 4, 8, 4), ratios=(8, 8, 4, 4), reductions=(8, 4, 1, 1))
TINY = partial(binaryvit, dim=64, heads=(1, 2, 4), depths=(2, 3, 4), ratios=(8, 8, 4), reductions=(4, 2, 1), classes=10)
FLAT_SMALL = partial(binary_deit, dim=384, heads=6)
FLAT_TINY = partial(binary_deit, dim=256, heads=4, depth=6, patch=4, image=32, classes=10)

binaryvit_small_patch4_224 = partial(SMALL)
binaryvit_small_patch4_224_star = partial(SMALL, merge=RealMerge())
binary_deit_small_patch16_224 = partial(FLAT_SMALL)
binary_deit_small_patch16_224_mean = partial(FLAT_SMALL, summary=())
binary_deit_small_patch16_224_pool = partial(FLAT_SMALL, summary=(), branches=CROSS)
binary_deit_small_patch16_224_affine = partial(FLAT_SMALL, summary=(), branches=CROSS, residual=Affine())

# the same for pictures of 32 to 96 pixels: as many weights flat as in a pyramid, at twice its operations
binaryvit_tiny_patch2_32 = partial(TINY, patch=2, image=32)
binaryvit_tiny_patch2_32_star = partial(TINY, patch=2, image=32, merge=RealMerge())
binaryvit_tiny_patch4_64 = partial(TINY, patch=4, image=64, classes=200)
binaryvit_tiny_patch4_96 = partial(TINY, patch=4, image=96)
binary_deit_tiny_patch4_32 = partial(FLAT_TINY)
binary_deit_tiny_patch4_32_mean = partial(FLAT_TINY, summary=())
binary_deit_tiny_patch4_32_pool = partial(FLAT_TINY, summary=(), branches=CROSS)
binary_deit_tiny_patch4_32_affine = partial(FLAT_TINY, summary=(), branches=CROSS, residual=Affine())
