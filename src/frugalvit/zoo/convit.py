"""ConViT (d'Ascoli et al. 2021), Table 1: DeiT whose first blocks start as convolutions."""

from __future__ import annotations

from functools import partial

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, deepening
from frugalvit.nn.init import Identity
from frugalvit.nn.layers import AddPositions, Join
from frugalvit.nn.linear import Dense
from frugalvit.nn.mlp import Mlp
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Tokens
from frugalvit.nn.score import GatePosition
from frugalvit.nn.shape import Size, image_of
from frugalvit.nn.tokenizer import Patches


def convit(
    *,
    dim: int,
    heads: int,
    depth: int = 12,
    local: int = 10,
    strength: float = 1.0,
    patch: Size = 16,
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    mlp_ratio: float = 4.0,
    drop_path: float = 0.0,
    summary: tuple[str, ...] = ("class",),
) -> Model:
    """ConViT: `local` blocks of gated positional attention on patches alone, then the class token joins plain blocks.

    `strength` is how narrowly a head looks at its place at first. q, k and v have no bias. The paper trains with drop_path=0.1.
    """
    no_bias = Dense(bias=None)
    values = Dense(weight=Identity(), bias=None)
    gated = Attention(heads, after=(GatePosition(strength),), query=no_bias, key=no_bias, value=values)
    plain = Attention(heads, query=no_bias, key=no_bias, value=no_bias)
    blocks = deepening(Block(plain, Mlp(mlp_ratio)), depth, drop_path)
    if not 0 <= local < depth:
        cure = f"Use 0 to {depth - 1}."
        raise SpecError(f"{local} local blocks of {depth}: the class token needs a block behind them. {cure}", path="local")
    near = tuple(Block(gated, block.mlp, block.norm, block.residual) for block in blocks[:local])
    return Model(
        Patches(patch, dim),
        (AddPositions(), *near, Join(summary), *blocks[local:]),
        Tokens(summary),
        classes,
        image_of(image, channels),
    )


convit_tiny = partial(convit, dim=192, heads=4)
convit_tiny_plus = partial(convit, dim=256, heads=4)
convit_small = partial(convit, dim=432, heads=9)
convit_small_plus = partial(convit, dim=576, heads=9)
convit_base = partial(convit, dim=768, heads=16)
convit_base_plus = partial(convit, dim=1024, heads=16)
