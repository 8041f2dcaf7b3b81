"""Multi-head attention with slots: heads x scope x scale x terms before and after the softmax x linear maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from frugalvit.errors import SpecError, at
from frugalvit.nn.attention_paths import can_be_short, can_be_whole, can_talk, pays
from frugalvit.nn.kernels import ROUNDED, products_dtype
from frugalvit.nn.linear import Dense, Linear, stackable
from frugalvit.nn.projection import Apart, Together
from frugalvit.nn.scope import Everywhere, PatchesOnly, Scope, SummaryOnly
from frugalvit.nn.score import (
    FixedScale,
    FixedTemperature,
    GatePosition,
    HiddenDiagonal,
    HideSelf,
    LearnedTemperature,
    OffsetBias,
    PositionGate,
    RelativeBias,
    Scale,
    ScoreTerm,
)
from frugalvit.nn.shape import Shape


class AttentionPart(Protocol):
    """What may stand in a block's `attention` slot."""

    def build(self, shape: Shape) -> nn.Module:
        """A module x_BND -> y_BND. Give it `explained(x) -> (y_BND, attention_BHNN)` if its map is to be tapped."""
        ...


@dataclass(frozen=True)
class Attention:
    """softmax(q kᵀ / sqrt(K)) v over heads (Vaswani et al. 2017, eq. 1), with a place for each paper's change to it."""

    heads: int
    scope: Scope = Everywhere()
    scale: Scale = FixedScale()
    before: tuple[ScoreTerm, ...] = ()
    after: tuple[ScoreTerm, ...] = ()
    linear: Linear = Dense()
    query: Linear | None = None  # where its map is not as `linear`; key and value alike
    key: Linear | None = None
    value: Linear | None = None
    head_dim: int | None = None  # the width of a head; None: that of a token / heads

    def build(self, shape: Shape) -> MultiHead:
        if self.heads < 1 or (self.head_dim is None and shape.dim % self.heads):
            fitting = [n for n in range(1, shape.dim + 1) if shape.dim % n == 0]
            with at("heads"):
                raise SpecError(f"{self.heads} heads do not divide a width of {shape.dim}. Use one of {fitting}.")
        if self.head_dim is not None and self.head_dim < 1:
            raise SpecError(f"heads of width {self.head_dim}. Use 1 and more.", path="head_dim")
        refuse_misplaced(self.before, self.after)
        with at("scope"):
            scope, queries, keys = self.scope.build(shape)
        head_dim = self.head_dim or shape.dim // self.heads
        inner = self.heads * head_dim
        maps = tuple(self.map(name, shape.dim, inner) for name in ("query", "key", "value"))
        with at("linear"):
            out = self.linear.build(inner, shape.dim)
        with at("scale"):
            scale = self.scale.build(self.heads, head_dim)
        terms = {}
        for name in ("before", "after"):
            terms[name] = nn.ModuleList()
            for index, term in enumerate(getattr(self, name)):
                with at(f"{name}[{index}]"):
                    terms[name].append(term.build(self.heads, queries, keys))
        refuse_blindness(scope, self.before, self.after)
        qkv = Together(maps) if queries == keys and stackable(maps) else Apart(*maps)
        return MultiHead(self.heads, scope, keys.length, qkv, scale, terms["before"], terms["after"], out)

    def map(self, name: str, fan_in: int, fan_out: int) -> nn.Module:
        own: Linear | None = getattr(self, name)
        with at("linear" if own is None else name):
            return (own or self.linear).build(fan_in, fan_out)


def refuse_misplaced(before: tuple[ScoreTerm, ...], after: tuple[ScoreTerm, ...]) -> None:
    """Terms that mean something on one side of the softmax only."""
    for index, term in enumerate(before):
        if isinstance(term, HideSelf) and index < len(before) - 1:
            with at(f"before[{index}]"):
                raise SpecError("HideSelf must stand last: a term behind it would mix −inf into other scores.")
        if isinstance(term, GatePosition):
            with at(f"before[{index}]"):
                raise SpecError("GatePosition mixes two attentions, each with a softmax of its own, so it belongs in `after`.")
    for index, term in enumerate(after):
        if isinstance(term, (HideSelf, RelativeBias)):
            does = "hides" if isinstance(term, HideSelf) else "adds to"
            with at(f"after[{index}]"):
                raise SpecError(f"{type(term).__name__} {does} scores, so it belongs in `before`.")


def refuse_blindness(scope: nn.Module, before: tuple[ScoreTerm, ...], after: tuple[ScoreTerm, ...]) -> None:
    """Pairs of a mask and a term that leave a query nothing to see, or show it what the mask hides."""
    if getattr(scope, "seen_WMN", None) is None:
        return
    if any(isinstance(term, GatePosition) for term in after):
        raise SpecError(
            "GatePosition weighs every place of a window, also those that a shifted window hides. Use windows without shift.",
            path="after",
        )
    if any(isinstance(term, HideSelf) for term in before) and getattr(scope, "fewest", 2) < 2:
        raise SpecError(
            "HideSelf leaves a token nothing to see: the shift cuts a window into regions of one token. Use larger windows "
            "or no shift.",
            path="before",
        )


class MultiHead(nn.Module):
    scope: Any

    def __init__(
        self,
        heads: int,
        scope: nn.Module,
        tokens: int,
        qkv: Together | Apart,
        scale: nn.Module,
        before: nn.ModuleList,
        after: nn.ModuleList,
        out: nn.Module,
    ):
        super().__init__()
        self.heads = heads
        self.scope = scope
        self.tokens = tokens  # that a query sees
        self.qkv = qkv
        self.scale = scale
        self.before = before
        self.after = after
        self.out = out
        # the kernel adds a bias and hides; a positional attention can be added to its result. All else needs the scores
        added = all(isinstance(term, (HiddenDiagonal, OffsetBias)) for term in before)
        self.fused = added and all(isinstance(term, PositionGate) for term in after) and len(after) <= 1
        self.talks = can_talk(self)
        self.short = can_be_short(self)
        self.whole = can_be_whole(self)

    def forward(self, x_BND: Tensor) -> Tensor:
        return self.out(self.values(x_BND))

    def values(self, x_BND: Tensor) -> Tensor:
        """What the heads gather, side by side: all but the last product."""
        if self.talks and x_BND.is_cuda:
            return self.talked(x_BND)
        if self.short and x_BND.is_cuda and products_dtype(x_BND) in ROUNDED:
            return self.shortened(x_BND)
        if self.whole and pays(x_BND):
            return self.passed(x_BND)
        if not self.fused or (len(self.after) and products_dtype(x_BND) == torch.float16):  # exp(λ) leaves its range
            return self.defined(x_BND)[0]
        gate: Any = self.after[0] if self.after else None
        q_GHMK, k_GHNK, v_GHNK = self.project(x_BND, None if gate is None else gate.rest())
        if isinstance(self.scale, FixedTemperature):
            factor = self.scale.factor
        else:
            q_GHMK, factor = self.scale(q_GHMK), 1.0
        mask = self.mask(q_GHMK)
        y_GHMK = scaled_dot_product_attention(q_GHMK, k_GHNK, v_GHNK, attn_mask=mask, scale=factor)
        if gate is not None:
            # (1 − g) A v + g P v with (1 − g) in the values: g / (1 − g) = exp(λ), and P is the same for every picture
            positional_HNN = (gate.odds() * gate.positional()).to(v_GHNK.dtype)
            y_GHMK = y_GHMK + torch.einsum("hmn,ghnk->ghmk", positional_HNN, v_GHNK)
        return self.beside(y_GHMK)

    def talked(self, x_BND: Tensor) -> Tensor:
        """Talking heads with one pass over the scores; in fp32 as defined."""
        q_GHMK, k_GHNK, v_GHNK = self.project(x_BND)
        scores_GHMN = self.scale(q_GHMK) @ k_GHNK.transpose(-2, -1)
        if scores_GHMN.dtype not in ROUNDED or scores_GHMN.shape[-1] > 256:
            return self.beside(self.attended(scores_GHMN, v_GHNK)[0])
        mix1: Any = self.before[0]
        mix2: Any = self.after[0]
        none_H = torch.zeros(self.heads, device=scores_GHMN.device)
        bias1, bias2 = (none_H if mix.bias is None else mix.bias for mix in (mix1, mix2))
        hides = len(self.before) == 2
        a_GHMN = torch.ops.frugalvit.talking_heads(scores_GHMN, mix1.weight, bias1, mix2.weight, bias2, hides)
        return self.beside(a_GHMN @ v_GHNK)

    def shortened(self, x_BND: Tensor) -> Tensor:
        """From qkv to y in one pass, where tokens are few."""
        from frugalvit.nn.short_attention import ShortAttention

        qkv: Any = self.qkv
        scale: Any = self.scale
        qkv_GNE = qkv.joined(self.scope.sees(x_BND)[0])
        learned = isinstance(scale, LearnedTemperature)
        scale_H: Tensor = scale.scale_H if learned else torch.full((self.heads,), scale.factor, device=x_BND.device)
        return self.scope.back(ShortAttention.apply(qkv_GNE, scale_H, len(self.before) > 0))

    def passed(self, x_BND: Tensor) -> Tensor:
        """By cuDNN, and back from y to qkv in one pass."""
        from frugalvit.nn.attention_gradient import WholeAttention

        qkv: Any = self.qkv
        scale: Any = self.scale
        product_GNE = qkv.product(self.scope.sees(x_BND)[0], qkv.weight, None if qkv.bias is None else qkv.bias.detach())
        return self.scope.back(WholeAttention.apply(product_GNE, qkv.bias, self.heads, scale.factor))

    def mask(self, q_GHMK: Tensor) -> Tensor | None:
        """What the kernel adds to the scores (a number), or whether a key is seen (a boolean); None for nothing."""
        bias, seen = None, None
        if (regions_WMN := getattr(self.scope, "seen_WMN", None)) is not None:
            seen = regions_WMN[:, None]
        for term in self.before:
            if isinstance(term, HiddenDiagonal):
                seen = term.seen_NN if seen is None else seen & term.seen_NN
            elif isinstance(term, OffsetBias):
                bias = term.table() if bias is None else bias + term.table()
        if bias is not None:
            bias = bias.to(q_GHMK.dtype)
            mask = bias if seen is None else bias.masked_fill(~seen, float("-inf"))
        elif seen is not None:
            mask = seen
        else:
            return None
        if mask.ndim == 4:  # one for each window of a sample: G = B W
            samples = q_GHMK.shape[0] // mask.shape[0]
            mask = mask.expand(samples, -1, self.heads, -1, -1).flatten(0, 1)
        return mask

    def explained(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        """The definition, step by step: the output, and the attention_GHMN that made it."""
        values_BND, a_GHMN = self.defined(x_BND)
        return self.out(values_BND), a_GHMN

    def defined(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        """The values as defined, and the attention_GHMN that gathered them."""
        q_GHMK, k_GHNK, v_GHNK = self.project(x_BND)
        y_GHMK, a_GHMN = self.attended(self.scale(q_GHMK) @ k_GHNK.transpose(-2, -1), v_GHNK)
        return self.beside(y_GHMK), a_GHMN

    def attended(self, a_GHMN: Tensor, v_GHNK: Tensor) -> tuple[Tensor, Tensor]:
        """From scores to values: terms, who is seen, softmax, terms."""
        for term in self.before:
            a_GHMN = term(a_GHMN)
        seen_WMN = getattr(self.scope, "seen_WMN", None)
        if seen_WMN is not None:
            a_BWHMN = a_GHMN.unflatten(0, (-1, len(seen_WMN)))
            a_GHMN = a_BWHMN.masked_fill(~seen_WMN[:, None], float("-inf")).flatten(0, 1)
        a_GHMN = torch.softmax(a_GHMN, dim=-1).to(v_GHNK.dtype)
        for term in self.after:
            a_GHMN = term(a_GHMN)
        if seen_WMN is not None and len(self.after):  # a mixture's bias must not show what a shifted window hides
            a_BWHMN = a_GHMN.unflatten(0, (-1, len(seen_WMN)))
            a_GHMN = a_BWHMN.masked_fill(~seen_WMN[:, None], 0.0).flatten(0, 1)
        return a_GHMN.to(v_GHNK.dtype) @ v_GHNK, a_GHMN

    def project(self, x_BND: Tensor, values_H11: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v; the values of each head times `values_H11`, where it is given."""
        q_GMD, k_GND, v_GND = self.qkv(*self.scope.sees(x_BND), values_H11)
        return self.split(q_GMD), self.split(k_GND), self.split(v_GND)

    def split(self, x_GND: Tensor) -> Tensor:
        return x_GND.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # G H N K

    def beside(self, y_GHMK: Tensor) -> Tensor:
        return self.scope.back(y_GHMK.transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class SkipAttention:
    """z + attention(z) of the normalized tokens z: the second skip in Lee et al.'s T2T blocks, beside the block's own."""

    inner: Attention

    def build(self, shape: Shape) -> AttentionWithSkip:
        with at("inner"):
            if isinstance(self.inner.scope, (SummaryOnly, PatchesOnly)):
                raise SpecError(
                    "only summary tokens look here, and the skip adds all. Use Everywhere or Windows.", path="scope"
                )
            return AttentionWithSkip(self.inner.build(shape))


class AttentionWithSkip(nn.Module):
    def __init__(self, inner: MultiHead):
        super().__init__()
        self.inner = inner

    def forward(self, x_BND: Tensor) -> Tensor:
        return x_BND + self.inner(x_BND)

    def explained(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        y_BND, attention_BHNN = self.inner.explained(x_BND)
        return x_BND + y_BND, attention_BHNN


SelfAttention = Attention | SkipAttention | AttentionPart  # what may stand in `Block.attention`
