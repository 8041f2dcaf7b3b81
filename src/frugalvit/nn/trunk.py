"""Blocks that follow each other, with every sum and the norm behind it in one kernel: plain blocks that skip samples, on CUDA.

The definition is one block after the other. Here the sum that ends a block and the norm that begins the next are one pass,
which also takes a branch of some samples alone. Where all samples are computed a compiler's kernels are faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from frugalvit.nn.attention import MultiHead
from frugalvit.nn.block import PreNorm
from frugalvit.nn.fixed_depth import Kept
from frugalvit.nn.kernels import ROUNDED, has_kernel, products_dtype
from frugalvit.nn.linear import product_of
from frugalvit.nn.mlp import TwoLayers
from frugalvit.nn.residual import FixedCountSum, StochasticSum

LEAST = 1 << 22  # numbers in a batch's tokens from which it pays
WIDEST = 1024


def trunks(layers: Sequence[nn.Module], tapped: Iterable[int]) -> dict[int, int]:
    """Where runs of two and more plain blocks begin, and the layer behind each. None where there is no kernel."""
    found: dict[int, int] = {}
    if not has_kernel("add_norm"):
        return found
    begin = None
    for index, layer in enumerate([*layers, nn.Identity()]):
        plain = is_plain(layer) and index not in tapped
        if plain and begin is None:
            begin = index
        if not plain and begin is not None:
            if index - begin > 1:
                found[begin] = index
            begin = None
    return found


def is_plain(layer: nn.Module) -> bool:
    """Whether a block is made of the usual parts alone."""
    if type(layer) is not PreNorm or layer.dropout > 0:
        return False
    attention, mlp = layer.attention, layer.mlp
    if type(attention) is not MultiHead or type(mlp) is not TwoLayers:
        return False
    normed = all(narrow_norm(norm) for norm in (layer.norm1, layer.norm2))
    mapped = all(product_of(one) is linear and one.bias is not None for one in (attention.out, mlp.down))
    summed = all(type(one) in (StochasticSum, FixedCountSum) for one in (layer.sum1, layer.sum2))
    return normed and mapped and summed


def narrow_norm(norm: nn.Module) -> bool:
    """Whether this is a layer norm with both of its weights, of a width that one tile holds."""
    if type(norm) is not nn.LayerNorm or norm.weight is None or norm.bias is None:
        return False
    return norm.weight.ndim == 1 and len(norm.weight) <= WIDEST


def pays(x_BND: Tensor, blocks: Sequence[Any]) -> bool:
    """Whether to take this way: samples are skipped, of many rounded numbers, for gradients, and with nobody watching."""
    large = x_BND.is_cuda and torch.is_grad_enabled() and x_BND.numel() >= LEAST and products_dtype(x_BND) in ROUNDED
    return large and any(skips(block) for block in blocks) and not watched(blocks)


def skips(block: Any) -> bool:
    return isinstance(block.sum1, FixedCountSum) and block.sum1.drop > 0


def watched(blocks: Sequence[Any]) -> bool:
    """Whether a hook waits for one of the blocks or of their parts, which are not called here."""
    return any(one._forward_hooks or one._forward_pre_hooks for block in blocks for one in block.modules())


def through(blocks: Sequence[Any], x_BND: Tensor, draws: Sequence[Tensor | None]) -> Tensor:
    """The tokens behind all blocks; draws_RB for each of them, or None."""
    keeps = [computed_by(block, x_BND, draw) for block, draw in zip(blocks, draws, strict=True)]
    dtype = products_dtype(x_BND)
    y_KND = blocks[0].norm1(keeps[0].some(x_BND)).to(dtype)
    for index, (block, kept, draws_RB) in enumerate(zip(blocks, keeps, draws, strict=True)):
        first_B, second_B, *_ = block.decisions(draws_RB)
        out, down = block.attention.out, block.mlp.down
        branch_KND = linear(block.attention.values(y_KND), out.weight)
        factor_B = factor_of(block.sum1, kept, first_B, x_BND)
        x_BND, y_KND = joined(x_BND, branch_KND, out.bias, factor_B, block.norm2, kept, kept)
        branch_KND = linear(block.mlp.hidden(y_KND), down.weight)
        factor_B = factor_of(block.sum2, kept, second_B, x_BND)
        if index + 1 < len(blocks):
            x_BND, y_KND = joined(x_BND, branch_KND, down.bias, factor_B, blocks[index + 1].norm1, kept, keeps[index + 1])
    some_KND = kept.some(x_BND) + kept.some(factor_B)[:, None, None] * (branch_KND + down.bias)
    return kept.back(some_KND.to(x_BND.dtype), x_BND)


def joined(
    x_BND: Tensor, branch_KND: Tensor, bias_D: Tensor, factor_B: Tensor, norm: nn.LayerNorm, come: Kept, go: Kept
) -> tuple[Tensor, Tensor]:
    """The sum, and its norm for the samples that go on."""
    weights = bias_D, factor_B, norm.weight, norm.bias, norm.eps
    new_BND, y_KND, *_ = torch.ops.frugalvit.add_norm(x_BND, branch_KND, *weights, come.first, go.first, go.count)
    return new_BND, y_KND


def computed_by(block: Any, x_BND: Tensor, draws_RB: Tensor | None) -> Kept:
    """The samples that a block computes."""
    kept = None if draws_RB is None else block.sum1.kept(len(x_BND))
    return kept or Kept(0, len(x_BND), len(x_BND))


def factor_of(total: nn.Module, kept: Kept, draw_B: Tensor | None, x_BND: Tensor) -> Tensor:
    """What each sample's branch is multiplied by."""
    if isinstance(total, StochasticSum) and draw_B is not None and total.draws:
        keep = 1.0 - total.drop
        return (draw_B < keep) * torch.full((), 1.0 / keep, device=x_BND.device)
    return torch.full((len(x_BND),), kept.factor, device=x_BND.device)
