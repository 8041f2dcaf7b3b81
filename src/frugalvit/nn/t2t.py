"""Tokens-to-token: overlapping patches of tokens, again and again, with attention in between (Yuan et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, unfold

from frugalvit.errors import SpecError, at
from frugalvit.nn.attention import refuse_misplaced
from frugalvit.nn.linear import Dense, Linear
from frugalvit.nn.mlp import FeedForward, Mlp
from frugalvit.nn.norm import LayerNorm, Norm
from frugalvit.nn.pooling import shifted
from frugalvit.nn.score import FixedScale, FixedTemperature, GatePosition, HiddenDiagonal, Scale, ScoreTerm
from frugalvit.nn.shape import Image, Shape


@dataclass(frozen=True)
class Shifts:
    """Four copies of the image moved diagonally by so many pixels, as further channels: SPT in T2T (Lee et al. 2021)."""

    pixels: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.pixels, int) and self.pixels < 1:
            raise SpecError(f"a shift of {self.pixels}. Use 1 and more.", path="pixels")


@dataclass(frozen=True)
class TokensToTokens:
    """`splits` soft splits of 3 x 3 with stride 2; before each but the first, a one-headed transformer of `width`.

    Its tokens are wider or narrower than what it makes of them, so its skip adds the values: x = v + out(A v);
    x += mlp(norm(x)) (Yuan et al. 2021, §3.1, as in Lee et al.'s models).
    """

    dim: int
    width: int = 64
    splits: int = 2
    shifts: Shifts | None = None
    scale: Scale = FixedScale()
    before: tuple[ScoreTerm, ...] = ()
    mlp: FeedForward = Mlp(1.0)
    norm: Norm = LayerNorm(1e-5)
    maps: Linear = Dense(bias=None)  # of q, k and v
    linear: Linear = Dense()

    def build(self, image: Image) -> tuple[SoftSplits, Shape]:
        if self.splits < 2 or min(self.dim, self.width) < 1:
            raise SpecError(
                f"{self.splits} splits to widths of {self.width} and {self.dim}. Use 2 splits and more, widths of 1 and more."
            )
        for index, term in enumerate(self.before):
            if isinstance(term, GatePosition):
                raise SpecError(
                    "GatePosition mixes two attentions, and soft splits have no place behind the softmax. Leave it out.",
                    path=f"before[{index}]",
                )
        refuse_misplaced(self.before, ())
        channels = image.channels * (5 if self.shifts else 1)
        shape = split(Shape(channels, image.height, image.width))
        transformers = nn.ModuleList()
        for _ in range(self.splits - 1):
            transformers.append(self.transformer(shape))
            shape = split(replace(shape, dim=self.width))
        with at("linear"):
            project = self.linear.build(shape.dim, self.dim)
        pixels = self.shifts.pixels if self.shifts else 0
        return SoftSplits(transformers, project, (image.height, image.width), pixels), replace(shape, dim=self.dim)

    def transformer(self, shape: Shape) -> TokenTransformer:
        narrow = replace(shape, dim=self.width)
        terms = nn.ModuleList()
        for index, term in enumerate(self.before):
            with at(f"before[{index}]"):
                terms.append(term.build(1, narrow, narrow))
        with at("norm"):
            norms = self.norm.build(shape), self.norm.build(narrow)
        with at("scale"):
            scale = self.scale.build(1, shape.dim)  # 1 / sqrt of the width that comes in, as published
        with at("maps"):
            maps = nn.ModuleList(self.maps.build(shape.dim, self.width) for _ in "qkv")
        with at("linear"):
            out = self.linear.build(self.width, self.width)
        with at("mlp"):
            return TokenTransformer(norms, maps, scale, terms, out, self.mlp.build(narrow))


def split(shape: Shape) -> Shape:
    """What a soft split of 3 x 3 with stride 2 leaves of a grid."""
    if min(shape.height, shape.width) < 2:
        raise SpecError(f"a grid of {shape.height} x {shape.width} is too small to split. Use a larger image or fewer splits.")
    return Shape(9 * shape.dim, (shape.height + 1) // 2, (shape.width + 1) // 2)


class TokenTransformer(nn.Module):
    def __init__(
        self,
        norms: tuple[nn.Module, nn.Module],
        maps: nn.ModuleList,
        scale: nn.Module,
        before: nn.ModuleList,
        out: nn.Module,
        mlp: nn.Module,
    ):
        super().__init__()
        self.norm1, self.norm2 = norms
        self.q, self.k, self.v = maps
        self.scale = scale
        self.before = before
        self.out = out
        self.mlp = mlp
        self.fused = all(isinstance(term, HiddenDiagonal) for term in before)

    def forward(self, x_BNI: Tensor) -> Tensor:
        z_BNI = self.norm1(x_BNI)
        q, k, v = (one(z_BNI)[:, None] for one in (self.q, self.k, self.v))  # B 1 N D
        if self.fused:
            seen_NN = self.before[0].seen_NN if self.before else None
            factor = self.scale.factor if isinstance(self.scale, FixedTemperature) else 1.0
            q = q if isinstance(self.scale, FixedTemperature) else self.scale(q)
            y = scaled_dot_product_attention(q, k, v, attn_mask=seen_NN, scale=factor)  # type: ignore[arg-type]
        else:
            y = self.plain(q, k, v)
        x_BND = (v + self.out(y))[:, 0]
        return x_BND + self.mlp(self.norm2(x_BND))

    def plain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The definition, which the kernel above must agree with."""
        a_B1NN = self.scale(q) @ k.transpose(-2, -1)
        for term in self.before:
            a_B1NN = term(a_B1NN)
        return torch.softmax(a_B1NN, dim=-1).to(v.dtype) @ v


class SoftSplits(nn.Module):
    def __init__(self, transformers: nn.ModuleList, project: nn.Module, image: tuple[int, int], pixels: int):
        super().__init__()
        self.transformers = transformers
        self.project = project
        self.image = image
        self.pixels = pixels

    def forward(self, image_BCHW: Tensor) -> Tensor:
        map_BCHW = shifted(image_BCHW, self.pixels) if self.pixels else image_BCHW
        height, width = self.image
        x_BNI = overlapping(map_BCHW)
        for transformer in self.transformers:
            height, width = (height + 1) // 2, (width + 1) // 2
            x_BND = transformer(x_BNI)
            x_BNI = overlapping(x_BND.transpose(1, 2).unflatten(2, (height, width)))
        return self.project(x_BNI)


def overlapping(map_BCHW: Tensor) -> Tensor:
    """Squares of 3 x 3 with stride 2 as tokens_BNI, zeros around the edge."""
    return unfold(map_BCHW, kernel_size=3, padding=1, stride=2).transpose(1, 2)
