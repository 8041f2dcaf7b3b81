"""The transformer block, and how blocks are stacked."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.attention import Attention, SelfAttention, SkipAttention
from frugalvit.nn.dropout import dropped
from frugalvit.nn.fixed_depth import Kept, on_kept
from frugalvit.nn.mlp import FeedForward, Mlp
from frugalvit.nn.norm import LayerNorm, Norm
from frugalvit.nn.residual import FixedCountDepth, LayerScale, Plain, Residual, at_rate, refuse_rate
from frugalvit.nn.scope import PatchesOnly, SummaryOnly, summary_of
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class Block:
    """x += attention(norm(x)); x += mlp(norm(x)): the pre-norm block of ViT and DeiT."""

    attention: SelfAttention
    mlp: FeedForward = Mlp()
    norm: Norm = LayerNorm()
    residual: Residual = Plain()
    dropout: float = 0.0  # of what attention and MLP give, and of the MLP's hidden units, as in the original ViT

    def __post_init__(self) -> None:
        refuse_rate(self.dropout, "dropout")

    def build(self, shape: Shape) -> tuple[PreNorm, Shape]:
        with at("norm"):
            norms = self.norm.build(shape), self.norm.build(shape)
        with at("attention"):
            attention = self.attention.build(shape)
            if not isinstance(attention, nn.Module):
                raise SpecError(
                    f"{type(self.attention).__name__}.build returned {type(attention).__name__}, not a module alone."
                )
            if isinstance(getattr(self.attention, "scope", None), (SummaryOnly, PatchesOnly)):
                raise SpecError("only summary tokens look here, and a Block changes all. Use SummaryBlock.", path="scope")
        with at("mlp"):
            mlp = feed_forward(self.mlp, shape, self.dropout)
        with at("residual"):
            sums = self.residual.build(shape), self.residual.build(shape)
        return PreNorm(norms, attention, mlp, sums, self.dropout), shape


def feed_forward(mlp: FeedForward, shape: Shape, dropout: float) -> nn.Module:
    """The MLP, with dropout of its hidden units."""
    if isinstance(mlp, Mlp):
        return mlp.build(shape, dropout)
    if dropout > 0:
        name = type(mlp).__name__
        raise SpecError(f"dropout={dropout} needs hidden units to drop, and {name} shows none. Use Mlp, or dropout=0.")
    return mlp.build(shape)


class PreNorm(nn.Module):
    def __init__(
        self,
        norms: tuple[nn.Module, nn.Module],
        attention: nn.Module,
        mlp: nn.Module,
        sums: tuple[nn.Module, nn.Module],
        dropout: float,
    ):
        super().__init__()
        self.norm1, self.norm2 = norms
        self.attention = attention
        self.mlp = mlp
        self.sum1, self.sum2 = sums
        self.dropout = dropout
        self.branches = sum(int(getattr(one, "draws", 0)) for one in sums)
        self.draws = self.branches + (3 if dropout > 0 else 0)

    def forward(self, x_BND: Tensor, draws_RB: Tensor | None = None) -> Tensor:
        kept = None if draws_RB is None else kept_by(self.sum1, len(x_BND))
        if kept is None or draws_RB is None:
            return self.computed(x_BND, draws_RB)
        few_RB = kept.some(draws_RB.T).T  # a sample takes its draws along, so its dropout is what it would be in the batch
        return on_kept(lambda some_BND: self.computed(some_BND, few_RB, kept.factor), kept, x_BND)

    def computed(self, x_BND: Tensor, draws_RB: Tensor | None, factor: float | None = None) -> Tensor:
        """Both branches, of samples that all keep them where a factor is given."""
        _, _, attended_B, *_ = self.decisions(draws_RB)
        return self.joined(x_BND, self.attended(x_BND, attended_B), draws_RB, factor)

    def explained(self, x_BND: Tensor, draws_RB: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output, and the attention_BHNN on the way to it: of all samples, also where few are kept."""
        _, _, attended_B, *_ = self.decisions(draws_RB)
        y_BND, attention_BHNN = self.attention.explained(self.norm1(x_BND))  # type: ignore[operator]
        return self.joined(x_BND, dropped(y_BND, attended_B, self.dropout), draws_RB), attention_BHNN

    def joined(self, x_BND: Tensor, y_BND: Tensor, draws_RB: Tensor | None, factor: float | None = None) -> Tensor:
        """The tokens behind both branches, y being the first."""
        first_B, second_B, _, hidden_B, fed_B = self.decisions(draws_RB)
        x_BND = added(self.sum1, x_BND, y_BND, first_B, factor)
        return added(self.sum2, x_BND, self.fed(x_BND, hidden_B, fed_B), second_B, factor)

    def attended(self, x_BND: Tensor, draw_B: Tensor | None) -> Tensor:
        return dropped(self.attention(self.norm1(x_BND)), draw_B, self.dropout)

    def fed(self, x_BND: Tensor, hidden_B: Tensor | None, draw_B: Tensor | None) -> Tensor:
        normed_BND = self.norm2(x_BND)
        z_BND = self.mlp(normed_BND) if hidden_B is None else self.mlp(normed_BND, hidden_B)
        return dropped(z_BND, draw_B, self.dropout)

    def decisions(self, draws_RB: Tensor | None) -> list[Tensor | None]:
        """Rows for both sums; for dropout of attention, of hidden units and of the MLP. None where nothing is decided."""
        rows: list[Tensor | None] = [] if draws_RB is None else [*draws_RB.unbind()]
        return [*(rows[: self.branches] or [None] * 2), *(rows[self.branches :] or [None] * 3)]


def kept_by(total: nn.Module, batch: int) -> Kept | None:
    """The samples whose branches are read, where these are some alone; None for all."""
    return total.kept(batch) if hasattr(total, "kept") else None  # type: ignore[operator]


def added(total: nn.Module, x_BND: Tensor, branch_BND: Tensor, draw_B: Tensor | None, factor: float | None) -> Tensor:
    """The sum, where draws or a factor decide what becomes of the branch."""
    return total(x_BND, branch_BND, draw_B) if factor is None else total(x_BND, branch_BND * factor)


@dataclass(frozen=True)
class SummaryBlock:
    """A block in which only summary tokens change: class attention over all tokens, an MLP on themselves (CaiT, §3).

    s += attention(norm([s; p])); s += mlp(norm(s)); the patches p pass untouched.
    """

    attention: SelfAttention
    mlp: FeedForward = Mlp()
    norm: Norm = LayerNorm()
    residual: Residual = Plain()
    dropout: float = 0.0  # as in Block

    def __post_init__(self) -> None:
        refuse_rate(self.dropout, "dropout")

    def build(self, shape: Shape) -> tuple[SummaryPreNorm, Shape]:
        with at("attention"):
            summary = summary_of(shape)
            if isinstance(self.attention, SkipAttention):
                raise SpecError("SkipAttention would add the patches to summary tokens. Use Attention with SummaryOnly.")
            if isinstance(self.attention, Attention) and not isinstance(self.attention.scope, (SummaryOnly, PatchesOnly)):
                scope = type(self.attention.scope).__name__
                raise SpecError(f"{scope} would change the patches too. Use SummaryOnly or PatchesOnly.", path="scope")
            attention = self.attention.build(shape)
        with at("norm"):
            norms = self.norm.build(shape), self.norm.build(summary)
        with at("mlp"):
            mlp = feed_forward(self.mlp, summary, self.dropout)
        with at("residual"):
            sums = self.residual.build(summary), self.residual.build(summary)
        return SummaryPreNorm(norms, attention, mlp, sums, self.dropout, len(shape.summary)), shape


class SummaryPreNorm(PreNorm):
    def __init__(
        self,
        norms: tuple[nn.Module, nn.Module],
        attention: nn.Module,
        mlp: nn.Module,
        sums: tuple[nn.Module, nn.Module],
        dropout: float,
        summary: int,
    ):
        super().__init__(norms, attention, mlp, sums, dropout)
        self.summary = summary

    def joined(self, x_BND: Tensor, y_BSD: Tensor, draws_RB: Tensor | None, factor: float | None = None) -> Tensor:
        summary_BSD = super().joined(x_BND[:, : self.summary], y_BSD, draws_RB, factor)
        return torch.cat([summary_BSD, x_BND[:, self.summary :]], dim=1)


def deepening(block: Block, depth: int, drop: float = 0.0) -> tuple[Block, ...]:
    """`depth` blocks whose drop rate grows in equal steps from 0 to `drop`: DeiT's stochastic depth."""
    last = max(depth - 1, 1)
    return tuple(dropping(block, drop * i / last) for i in range(checked(depth, drop)))


def even(block: Block, depth: int, drop: float = 0.0) -> tuple[Block, ...]:
    """`depth` blocks with the same drop rate: CaiT's stochastic depth."""
    return tuple(dropping(block, drop) for _ in range(checked(depth, drop)))


def checked(depth: int, drop: float) -> int:
    """The depth. One block alone would drop nothing, yet a rate out of range is a mistake there too."""
    if depth < 1:
        raise SpecError(f"a depth of {depth} leaves no block. Use 1 and more.", path="depth")
    with at("drop_path"):
        Plain(drop)
    return depth


def dropping(block: Block, drop: float) -> Block:
    """The block with another drop rate, however its branches join."""
    if not isinstance(block.residual, (Plain, LayerScale, FixedCountDepth)):
        raise SpecError(f"{type(block.residual).__name__} has no drop rate to set.", path="residual")
    return replace(block, residual=at_rate(block.residual, drop))


def refuse_stages(heads: tuple[int, ...], depths: tuple[int, ...]) -> None:
    """Stages are given by two lists of equal length."""
    if len(heads) != len(depths) or not depths:
        raise SpecError(f"heads {heads} for depths {depths}. Give one number a stage in both, as in 2,6,4.", path="heads")
    if min(depths) < 1:
        raise SpecError(f"{depths}. Give each stage 1 block and more.", path="depths")
