"""The model of `small.best_cifar10`: a ViT on 8 x 8 tokens, with blocks before on a finer grid and behind on a coarser.

`recipes/small.py` trains it and adds SPT, LSA and gated positions.
"""

from __future__ import annotations

from dataclasses import replace

from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, dropping
from frugalvit.nn.layers import Layer
from frugalvit.nn.model import Model
from frugalvit.nn.pooling import MergePatches
from frugalvit.spec import swap
from frugalvit.zoo.change import with_mean_readout
from frugalvit.zoo.vit import vit


def pyramid(image: int, dim: int, heads: int, early: int, depth: int, late: int, mlp_ratio: float, drop_path: float) -> Model:
    """`depth` blocks of that width; `early` and `late` as `small.best_cifar10` says. Without them, a plain ViT."""
    refuse_blocks(early, depth, late)
    refuse_heads(dim, heads, part=2 if early else 1)
    side, patch = grid_of(image, patches_of=2 if early else 1, grids_of=2 if late else 1)
    first = 2 if early else 1  # how much finer and narrower than the `depth` blocks the model begins
    spec = vit(
        dim=dim // first,
        heads=heads // first,
        depth=early + depth + late,
        patch=patch // first,
        image=side,
        classes=None,
        mlp_ratio=mlp_ratio,
    )
    if early or late:
        spec = with_mean_readout(spec)
    if late:
        spec = merged_behind(spec, early + depth)
    if early:
        spec = merged_behind(spec, early)
    return replace(spec, layers=even_depth(spec.layers, drop_path))


def refuse_blocks(early: int, depth: int, late: int) -> None:
    for name, count in (("early", early), ("late", late)):
        if count < 0:
            raise SpecError(f"{count} blocks. Use 0 and more.", path=name)
    if depth < 1:
        raise SpecError(f"{depth} blocks between the early and the late ones. Use 1 and more.", path="depth")


def refuse_heads(dim: int, heads: int, part: int) -> None:
    """Raise unless heads have equally many channels, also where width and heads are divided by `part`."""
    if dim < 1 or dim % part:
        raise SpecError(f"{dim} channels. Use {'1 and more' if part == 1 else f'a multiple of {part}'}.", path="dim")
    if heads < 1 or heads % part or dim % heads:
        fitting = [one for one in range(part, dim + 1, part) if dim % one == 0]
        raise SpecError(f"{heads} heads of {dim} channels. Use one of {fitting}.", path="heads")


def grid_of(image: int, patches_of: int, grids_of: int) -> tuple[int, int]:
    """The model's side and its patch: of grids of 7 to 9 a side, the one whose side is nearest to the picture's.

    Patches are multiples of `patches_of` pixels and a grid's sides of `grids_of` patches, so that both can be halved. Of two
    sides equally near, the grid of 8 and the larger one. A grid of 6 would halve the compute, and one of 10 add two thirds.
    """
    grids = [grid for grid in range(7, 10) if grid % grids_of == 0]
    patches = range(2, 17, patches_of)

    def distance(one: tuple[int, int]) -> tuple[int, int, int, int]:
        grid, patch = one
        return abs(grid * patch - image), abs(grid - 8), -grid * patch, -grid

    grid, patch = min(((grid, patch) for grid in grids for patch in patches), key=distance)
    return grid * patch, patch


def merged_behind(spec: Model, early: int) -> Model:
    """The model with tokens merged by fours behind `early` blocks, and twice the heads from there on."""
    blocks = [place for place, layer in enumerate(spec.layers) if isinstance(layer, Block)]
    behind = blocks[early]
    rest = swap(spec.layers[behind:], Attention, lambda one: replace(one, heads=2 * one.heads))
    return replace(spec, layers=(*spec.layers[:behind], MergePatches(), *rest))


def even_depth(layers: tuple[Layer, ...], drop: float) -> tuple[Layer, ...]:
    """The layers with the same drop rate in every block."""
    return tuple(dropping(layer, drop) if isinstance(layer, Block) else layer for layer in layers)
