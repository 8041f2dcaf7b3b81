"""The transformer block, and how blocks are stacked."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor, nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.attention import SelfAttention
from frugalvit.nn.mlp import FeedForward, Mlp
from frugalvit.nn.norm import LayerNorm, Norm
from frugalvit.nn.residual import Plain, Residual
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class Block:
    """x += attention(norm(x)); x += mlp(norm(x)): the pre-norm block of ViT and DeiT."""

    attention: SelfAttention
    mlp: FeedForward = Mlp()
    norm: Norm = LayerNorm()
    residual: Residual = Plain()

    def build(self, shape: Shape) -> tuple[PreNorm, Shape]:
        with at("norm"):
            norms = self.norm.build(shape), self.norm.build(shape)
        with at("attention"):
            attention = self.attention.build(shape)
            if not isinstance(attention, nn.Module):
                raise SpecError(
                    f"{type(self.attention).__name__}.build returned {type(attention).__name__}, not a module alone."
                )
        with at("mlp"):
            mlp = self.mlp.build(shape)
        with at("residual"):
            sums = self.residual.build(shape), self.residual.build(shape)
        return PreNorm(norms, attention, mlp, sums), shape


class PreNorm(nn.Module):
    def __init__(
        self,
        norms: tuple[nn.Module, nn.Module],
        attention: nn.Module,
        mlp: nn.Module,
        sums: tuple[nn.Module, nn.Module],
    ):
        super().__init__()
        self.norm1, self.norm2 = norms
        self.attention = attention
        self.mlp = mlp
        self.sum1, self.sum2 = sums
        self.draws: int = sum(int(getattr(one, "draws", 0)) for one in sums)

    def forward(self, x_BND: Tensor, draws_RB: Tensor | None = None) -> Tensor:
        return self.joined(x_BND, self.attention(self.norm1(x_BND)), draws_RB)

    def explained(self, x_BND: Tensor, draws_RB: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output, and the attention_BHNN on the way to it."""
        y_BND, attention_BHNN = self.attention.explained(self.norm1(x_BND))  # type: ignore[operator]
        return self.joined(x_BND, y_BND, draws_RB), attention_BHNN

    def joined(self, x_BND: Tensor, y_BND: Tensor, draws_RB: Tensor | None) -> Tensor:
        first_B, second_B = (None, None) if draws_RB is None else draws_RB
        x_BND = self.sum1(x_BND, y_BND, first_B)
        return self.sum2(x_BND, self.mlp(self.norm2(x_BND)), second_B)


def deepening(block: Block, depth: int, drop: float = 0.0) -> tuple[Block, ...]:
    """`depth` blocks whose drop rate grows in equal steps from 0 to `drop`: DeiT's stochastic depth."""
    if depth < 1:
        raise SpecError(f"a depth of {depth} leaves no block. Use 1 and more.", path="depth")
    last = max(depth - 1, 1)
    with at("drop_path"):
        Plain(drop)  # one block alone would drop nothing, yet a rate out of range is a mistake there too
        return tuple(replace(block, residual=Plain(drop * i / last)) for i in range(depth))
