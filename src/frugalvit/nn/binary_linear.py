"""BinaryViT's linear map of one bit, with the norm, the shortcut and the activation that follow it; an MLP of two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from frugalvit.errors import SpecError, at
from frugalvit.nn.binary_channels import RPReLU, TokenBatchNorm
from frugalvit.nn.init import FanInUniform, Init
from frugalvit.nn.quantize import OneBit, centered, sign, signed_rows
from frugalvit.nn.shape import Shape

# ------------------------------------------------------------------------------------------------ weights


@dataclass(frozen=True)
class CenteredSigns:
    """a_r sign(w − mean of its row), a_r = mean |w| of the row: BinaryViT's linear maps.

    `damping` guards against weights that change their sign step by step: it pulls each one towards ± a_r, away from zero
    (Nagel et al. 2022, eq. 5, with bins of one bit). It is added to the gradient of each batch, as loss terms of weights
    are; 0 is BinaryViT. Under fp16 it shrinks by the scale of the loss: use bf16.
    """

    damping: float = 0.0

    def __post_init__(self) -> None:
        refuse_damping(self.damping)

    def build(self, size: Sequence[int], init: Init) -> SignedProduct:
        return CenteredProduct(size, init, self.damping)


@dataclass(frozen=True)
class Signs:
    """a_r sign(w), a_r = mean |w| of the row: BinaryViT's convolutions. `damping` as in CenteredSigns."""

    damping: float = 0.0

    def __post_init__(self) -> None:
        refuse_damping(self.damping)

    def build(self, size: Sequence[int], init: Init) -> SignedProduct:
        return SignedProduct(size, init, self.damping)


@dataclass(frozen=True)
class RealWeights:
    """w as it is, in full precision, on activations of one bit: the first of ReActNet's two stages (Liu et al. 2020, §5.1)."""

    def build(self, size: Sequence[int], init: Init) -> RealProduct:
        return RealProduct(size, init)


@dataclass(frozen=True)
class FullPrecision:
    """w as it is, on activations as they are: no bit in the map, nor in the attention around it. A binary model's real twin."""

    def build(self, size: Sequence[int], init: Init) -> RealProduct:
        return RealProduct(size, init)


Weights = CenteredSigns | Signs | RealWeights | FullPrecision  # what may stand in a `weights` slot


def activations_for(weights: Weights) -> Callable[[Tensor], Tensor]:
    """What becomes of activations before they meet such weights: their signs, or nothing."""
    return unchanged if isinstance(weights, FullPrecision) else sign


def unchanged(x: Tensor) -> Tensor:
    return x


def refuse_damping(damping: float) -> None:
    if isinstance(damping, (int, float)) and damping < 0:
        raise SpecError(f"a damping of {damping} would push weights to zero. Use 0 and more, say 1e-4.", path="damping")


def filled(size: Sequence[int], init: Init) -> nn.Parameter:
    """A weight whose rows see all but the first axis."""
    weight = nn.Parameter(torch.empty(*size))
    init.fill(weight, weight[0].numel(), len(weight))
    return weight


class SignedProduct(OneBit):
    """x_..I times signs, then a scale a row. The weight may have the shape of a kernel; its rows are what one output sees."""

    def __init__(self, size: Sequence[int], init: Init, damping: float):
        super().__init__()
        self.weight = filled(size, init)
        self.damping = damping

    def latent_OI(self) -> Tensor:
        """The real numbers whose signs are the weights."""
        return self.weight.flatten(1)

    def rows(self) -> tuple[Tensor, Tensor]:
        """(signs_OI, scale_O)."""
        return signed_rows(self.weight.flatten(1), self.latent_OI(), self.damping)

    def forward(self, signs_I: Tensor) -> Tensor:
        signs_OI, scale_O = self.rows()
        return linear(self.narrowed(signs_I), self.narrowed(signs_OI)) * scale_O


class CenteredProduct(SignedProduct):
    def latent_OI(self) -> Tensor:
        return centered(self.weight.flatten(1))


class RealProduct(nn.Module):
    def __init__(self, size: Sequence[int], init: Init):
        super().__init__()
        self.weight = filled(size, init)

    def forward(self, x_I: Tensor) -> Tensor:
        return linear(x_I, self.weight.flatten(1))


# ------------------------------------------------------------------------------------------------ the map


@dataclass(frozen=True)
class Binary:
    """RPReLU(norm(W sign(x + shift)) + shortcut(x)) with W of one bit: every projection of BinaryViT (Le & Li 2023, §3).

    The shortcut is x; copies of x one behind the other where the map is wider; where it is narrower, means of neighbors.
    """

    weights: Weights = CenteredSigns()
    weight: Init = FanInUniform()
    norm: TokenBatchNorm = TokenBatchNorm()

    def build(self, fan_in: int, fan_out: int) -> BinaryLinear:
        refuse_widths(fan_in, fan_out)
        product = self.weights.build((fan_out, fan_in), self.weight)
        return BinaryLinear(fan_in, fan_out, product, self.norm, activations_for(self.weights))


def refuse_widths(fan_in: int, fan_out: int) -> None:
    if min(fan_in, fan_out) < 1 or max(fan_in, fan_out) % min(fan_in, fan_out):
        raise SpecError(
            f"a binary map from {fan_in} to {fan_out} features has no shortcut: copies and means of channels need whole "
            "numbers of them. Use widths of which one divides the other."
        )


class BinaryLinear(nn.Module):
    def __init__(self, fan_in: int, fan_out: int, product: nn.Module, norm: TokenBatchNorm, bits: Callable[[Tensor], Tensor]):
        super().__init__()
        self.bits = bits
        self.shift = nn.Parameter(torch.zeros(fan_in))
        self.product = product
        self.norm = norm.over(fan_out)
        self.act = RPReLU(fan_out)

    def forward(self, x_I: Tensor) -> Tensor:
        return self.act(beside(self.norm(self.product(self.bits(x_I + self.shift))), x_I))


def beside(y_O: Tensor, x_I: Tensor) -> Tensor:
    """y + x, the channels of x repeated or averaged to as many as y has."""
    into, out = x_I.shape[-1], y_O.shape[-1]
    if out >= into:
        return (y_O.unflatten(-1, (out // into, into)) + x_I.unsqueeze(-2)).flatten(-2)
    return y_O + x_I.unflatten(-1, (out, into // out)).mean(-1)


@dataclass(frozen=True)
class BinaryMlp:
    """down(up(x)) on each token, both of one bit, the hidden width `ratio` times the token's; no GELU (Le & Li 2023, §3)."""

    ratio: int = 4
    linear: Binary = Binary()

    def build(self, shape: Shape) -> BinaryLayers:
        if self.ratio < 1:
            raise SpecError(f"{self.ratio} times a width of {shape.dim} leaves no hidden unit. Use 1 and more.", path="ratio")
        with at("linear"):
            hidden = self.ratio * shape.dim
            return BinaryLayers(self.linear.build(shape.dim, hidden), self.linear.build(hidden, shape.dim))


class BinaryLayers(nn.Module):
    def __init__(self, up: nn.Module, down: nn.Module):
        super().__init__()
        self.up = up
        self.down = down

    def forward(self, x_BND: Tensor) -> Tensor:
        return self.down(self.up(x_BND))
