"""BinaryViT's attention: one bit for q, k, v and probabilities, and a shortcut around what the heads gather."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.nn.binary_channels import RPReLU
from frugalvit.nn.binary_linear import Binary, FullPrecision, activations_for
from frugalvit.nn.quantize import OneBit, floored, thresholded
from frugalvit.nn.shape import Shape


@dataclass(frozen=True)
class BinaryAttention:
    """BinaryViT's attention over `heads` (Le & Li 2023, §3), of tokens x that a norm gave. Names in brackets are `Binary` maps:

    Q = [query](x)    x' = [reduce](means of squares of x, `reduction` a side)    K = [key](x')    V = [value](x')
    p = softmax(sign(Q + s_q) sign(K + s_k)ᵀ / sqrt(width of a head))
    y = RPReLU(norm(c [p > c/2] sign(V + s_v)) + Q + up(K) + up(V)),    the result [out](y)

    `up` gives each token of a square the square's; without reduction x' = x. The step c, at first `step`, is one for all
    heads; its gradient is a sum over all probabilities, so optimizers that are not Adam want it small.
    """

    heads: int
    reduction: int = 1
    linear: Binary = Binary()
    step: float = 0.005

    def __post_init__(self) -> None:
        if isinstance(self.step, (int, float)) and not self.step > 0:
            raise SpecError(f"a step of {self.step} between probabilities. Use a number above 0.", path="step")

    def build(self, shape: Shape) -> OneBitHeads:
        if self.heads < 1 or shape.dim % self.heads:
            fitting = [n for n in range(1, shape.dim + 1) if shape.dim % n == 0]
            problem = f"{self.heads} heads do not divide a width of {shape.dim}. Use one of {fitting}."
            raise SpecError(problem, path="heads")
        self.refuse_reduction(shape)
        kind = RealHeads if isinstance(self.linear.weights, FullPrecision) else OneBitHeads
        return kind(shape, self.heads, self.reduction, self.linear, self.step)

    def refuse_reduction(self, shape: Shape) -> None:
        side = self.reduction
        if side == 1:
            return
        if shape.summary:
            named = " and ".join(shape.summary)
            raise SpecError(f"squares tile patches, and {named} belong to none. Use 1, or read the mean.", path="reduction")
        if side < 1 or shape.height % side or shape.width % side:
            both = [n for n in range(1, min(shape.height, shape.width) + 1) if not (shape.height % n or shape.width % n)]
            raise SpecError(
                f"squares of {side} x {side} do not tile a grid of {shape.height} x {shape.width}. Use one of {both}, or "
                "another image size.",
                path="reduction",
            )


class OneBitHeads(nn.Module):
    def __init__(self, shape: Shape, heads: int, reduction: int, linear: Binary, step: float):
        super().__init__()
        dim = shape.dim
        self.heads = heads
        self.bits = activations_for(linear.weights)
        self.scale = (dim // heads) ** -0.5
        self.grid = (shape.height // reduction, reduction, shape.width // reduction, reduction)
        self.query = linear.build(dim, dim)
        self.reduce = linear.build(dim, dim) if reduction > 1 else None
        self.key = linear.build(dim, dim)
        self.value = linear.build(dim, dim)
        self.shift_q, self.shift_k, self.shift_v = (nn.Parameter(torch.zeros(dim)) for _ in range(3))
        self.step = nn.Parameter(torch.tensor(float(step)))
        self.scores: nn.Module = OneBitMatmul()
        self.gather: nn.Module = OneBitMatmul()
        self.norm = linear.norm.over(dim)
        self.act = RPReLU(dim)
        self.out = linear.build(dim, dim)

    def forward(self, x_BMD: Tensor) -> Tensor:
        return self.explained(x_BMD)[0]

    def explained(self, x_BMD: Tensor) -> tuple[Tensor, Tensor]:
        """The output, and the attention_BHMN that made it: 0 or the step."""
        q_BMD = self.query(x_BMD)
        seen_BND = x_BMD if self.reduce is None else self.reduce(self.squares(x_BMD))
        k_BND, v_BND = self.key(seen_BND), self.value(seen_BND)
        q_BHMK, k_BHNK, v_BHNK = (
            self.split(self.bits(x_BND + shift))
            for x_BND, shift in ((q_BMD, self.shift_q), (k_BND, self.shift_k), (v_BND, self.shift_v))
        )
        gathered_BHMK, attention_BHMN = self.gathered(q_BHMK, k_BHNK, v_BHNK)
        context_BMD = self.norm(gathered_BHMK.transpose(1, 2).flatten(2))
        y_BMD = self.act(context_BMD + q_BMD + self.up(k_BND) + self.up(v_BND))
        return self.out(y_BMD), attention_BHMN

    def gathered(self, q_BHMK: Tensor, k_BHNK: Tensor, v_BHNK: Tensor) -> tuple[Tensor, Tensor]:
        """What the heads gather, and the attention_BHMN by which they do."""
        step = floored(self.step)
        bits_BHMN = thresholded(self.probability(q_BHMK, k_BHNK), step)
        return self.gather(bits_BHMN, v_BHNK) * step, bits_BHMN * step

    def probability(self, q_BHMK: Tensor, k_BHNK: Tensor) -> Tensor:
        return torch.softmax(self.scores(q_BHMK, k_BHNK.transpose(-2, -1)) * self.scale, dim=-1)

    def split(self, x_BND: Tensor) -> Tensor:
        return x_BND.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # B H N K

    def squares(self, x_BMD: Tensor) -> Tensor:
        """The mean of each square."""
        return x_BMD.unflatten(1, self.grid).mean((2, 4)).flatten(1, 2)

    def up(self, x_BND: Tensor) -> Tensor:
        """To each token of a square the square's: the nearest neighbor."""
        if self.reduce is None:
            return x_BND
        high, side, wide, _ = self.grid
        x = x_BND.unflatten(1, (high, 1, wide, 1)).expand(-1, -1, side, -1, side, -1)
        return x.flatten(1, 4)


class RealHeads(OneBitHeads):
    """The same in full precision. It keeps the step, which nothing reads: its weights can begin a binary model."""

    def __init__(self, shape: Shape, heads: int, reduction: int, linear: Binary, step: float):
        super().__init__(shape, heads, reduction, linear, step)
        self.scores, self.gather = RealMatmul(), RealMatmul()

    def gathered(self, q_BHMK: Tensor, k_BHNK: Tensor, v_BHNK: Tensor) -> tuple[Tensor, Tensor]:
        probability_BHMN = self.probability(q_BHMK, k_BHNK)
        return self.gather(probability_BHMN, v_BHNK), probability_BHMN


class RealMatmul(nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a @ b


class OneBitMatmul(OneBit):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return (self.narrowed(a) @ self.narrowed(b)).to(a.dtype)
