"""DeiT (Touvron et al. 2021), Table 1, plain and with the distillation token."""

from __future__ import annotations

from functools import partial

from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, deepening
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.nn.shape import Size, image_of
from frugalvit.nn.tokenizer import Patches


def deit(
    *,
    dim: int,
    heads: int,
    depth: int = 12,
    patch: Size = 16,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    mlp_ratio: float = 4.0,
    drop_path: float = 0.0,
    summary: tuple[str, ...] = ("class",),
) -> Model:
    """DeiT: plain ViT blocks, learned positions, N(0, 0.02²) weights. The paper trains with drop_path=0.1.

    Each summary token has a head of its own; the distilled models have `class` and `distill` (§4).
    """
    blocks = deepening(Block(Attention(heads), Mlp(mlp_ratio)), depth, drop_path)
    return Model(
        Patches(patch, dim),
        (Join(summary), AddPositions(), *blocks),
        Tokens(summary),
        classes,
        image_of(image, channels),
    )


DISTILLED = ("class", "distill")

deit_tiny_patch16_224 = partial(deit, dim=192, heads=3)
deit_small_patch16_224 = partial(deit, dim=384, heads=6)
deit_base_patch16_224 = partial(deit, dim=768, heads=12)
deit_base_patch16_384 = partial(deit, dim=768, heads=12, image=384)
deit_tiny_distilled_patch16_224 = partial(deit, summary=DISTILLED, dim=192, heads=3)
deit_small_distilled_patch16_224 = partial(deit, summary=DISTILLED, dim=384, heads=6)
deit_base_distilled_patch16_224 = partial(deit, summary=DISTILLED, dim=768, heads=12)
deit_base_distilled_patch16_384 = partial(deit, summary=DISTILLED, dim=768, heads=12, image=384)
