"""Multi-head attention with slots: heads x scope x scale x terms before and after the softmax x linear maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from frugalvit.errors import SpecError, at
from frugalvit.nn.linear import Dense, DenseLinear, Linear, stacked
from frugalvit.nn.scope import Everywhere, Scope
from frugalvit.nn.score import FixedScale, FixedTemperature, HiddenDiagonal, HideSelf, Scale, ScoreTerm
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

    def build(self, shape: Shape) -> MultiHead:
        if self.heads < 1 or shape.dim % self.heads:
            fitting = [n for n in range(1, shape.dim + 1) if shape.dim % n == 0]
            with at("heads"):
                raise SpecError(f"{self.heads} heads do not divide a width of {shape.dim}. Use one of {fitting}.")
        for index, term in enumerate(self.before[:-1]):
            if isinstance(term, HideSelf):
                with at(f"before[{index}]"):
                    raise SpecError("HideSelf must stand last: a term behind it would mix −inf into other scores.")
        for index, term in enumerate(self.after):
            if isinstance(term, HideSelf):
                with at(f"after[{index}]"):
                    raise SpecError("HideSelf hides scores, so it belongs in `before`.")
        with at("scope"):
            scope, queries, keys = self.scope.build(shape)
        with at("linear"):
            maps = tuple(self.linear.build(shape.dim, shape.dim) for _ in "qkv")
            out = self.linear.build(shape.dim, shape.dim)
        with at("scale"):
            scale = self.scale.build(self.heads, shape.dim // self.heads)
        terms = {}
        for name in ("before", "after"):
            terms[name] = nn.ModuleList()
            for index, term in enumerate(getattr(self, name)):
                with at(f"{name}[{index}]"):
                    terms[name].append(term.build(self.heads, queries, keys))
        # a subclass may compute something else, so only what is exactly a linear map is joined with its like
        together = queries == keys and all(type(one) in (nn.Linear, DenseLinear) and one.bias is not None for one in maps)
        qkv = Together(maps) if together else Apart(*maps)
        return MultiHead(self.heads, scope, qkv, scale, terms["before"], terms["after"], out)


class Together(nn.Module):
    """q, k and v of the same tokens in one product; the rows are all of q, then k, then v, as in timm."""

    def __init__(self, maps: tuple[nn.Module, ...]):
        super().__init__()
        joined = stacked(maps)  # type: ignore[arg-type]
        self.weight, self.bias = joined.weight, joined.bias

    def forward(self, from_GND: Tensor, to_GND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_GND, k_GND, v_GND = nn.functional.linear(from_GND, self.weight, self.bias).chunk(3, -1)
        return q_GND, k_GND, v_GND


class Apart(nn.Module):
    """q of the tokens that look; k and v of the tokens that are seen."""

    def __init__(self, q: nn.Module, k: nn.Module, v: nn.Module):
        super().__init__()
        self.q = q
        self.k = k
        self.v = v

    def forward(self, from_GMD: Tensor, to_GND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(from_GMD), self.k(to_GND), self.v(to_GND)


class MultiHead(nn.Module):
    scope: Any

    def __init__(
        self,
        heads: int,
        scope: nn.Module,
        qkv: Together | Apart,
        scale: nn.Module,
        before: nn.ModuleList,
        after: nn.ModuleList,
        out: nn.Module,
    ):
        super().__init__()
        self.heads = heads
        self.scope = scope
        self.qkv = qkv
        self.scale = scale
        self.before = before
        self.after = after
        self.out = out
        # the kernel can hide the diagonal; anything else between the scores and v needs the scores themselves
        only_hides = len(before) == 1 and isinstance(before[0], HiddenDiagonal)
        self.fused = not after and (not before or only_hides)

    def forward(self, x_BND: Tensor) -> Tensor:
        if not self.fused:
            return self.explained(x_BND)[0]
        q_GHMK, k_GHNK, v_GHNK = self.project(x_BND)
        hiding = self.before[0] if self.before else None
        seen_NN = hiding.seen_NN if isinstance(hiding, HiddenDiagonal) else None
        if isinstance(self.scale, FixedTemperature):
            factor = self.scale.factor
        else:
            q_GHMK, factor = self.scale(q_GHMK), 1.0
        y_GHMK = scaled_dot_product_attention(q_GHMK, k_GHNK, v_GHNK, attn_mask=seen_NN, scale=factor)
        return self.finish(y_GHMK)

    def explained(self, x_BND: Tensor) -> tuple[Tensor, Tensor]:
        """The definition, step by step: the output, and the attention_GHMN that made it."""
        q_GHMK, k_GHNK, v_GHNK = self.project(x_BND)
        a_GHMN = self.scale(q_GHMK) @ k_GHNK.transpose(-2, -1)
        for term in self.before:
            a_GHMN = term(a_GHMN)
        a_GHMN = torch.softmax(a_GHMN, dim=-1)
        for term in self.after:
            a_GHMN = term(a_GHMN)
        return self.finish(a_GHMN @ v_GHNK), a_GHMN

    def project(self, x_BND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_GMD, k_GND, v_GND = self.qkv(*self.scope.sees(x_BND))
        return self.split(q_GMD), self.split(k_GND), self.split(v_GND)

    def split(self, x_GND: Tensor) -> Tensor:
        return x_GND.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # G H N K

    def finish(self, y_GHMK: Tensor) -> Tensor:
        return self.out(self.scope.back(y_GHMK.transpose(1, 2).flatten(2)))


SelfAttention = Attention | AttentionPart  # what may stand in `Block.attention`
