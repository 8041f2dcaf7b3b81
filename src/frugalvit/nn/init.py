"""The initializations the papers use, by name. `fill` writes into a tensor in place."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from frugalvit.errors import SpecError


@dataclass(frozen=True)
class Normal:
    """N(0, std²), as in DeiT: its truncation at an absolute ±2 is 100 standard deviations away, so there is none."""

    std: float = 0.02

    def __post_init__(self) -> None:
        if isinstance(self.std, float) and self.std < 0:
            raise SpecError(f"a deviation of {self.std}. Use 0 and more.", path="std")

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        tensor.normal_(0.0, self.std)


@dataclass(frozen=True)
class Zeros:
    """All zeros: biases, and the head of a ViT (Dosovitskiy et al. 2021)."""

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        tensor.zero_()


@dataclass(frozen=True)
class XavierUniform:
    """U(±sqrt(6 / (fan_in + fan_out))): attention and MLP kernels of the original ViT."""

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        bound = math.sqrt(6.0 / (fan_in + fan_out))
        tensor.uniform_(-bound, bound)


@dataclass(frozen=True)
class XavierNormal:
    """N(0, 2 / (fan_in + fan_out)): the scaled-down models of Lee et al. 2021.

    There, one matrix holds q, k and v, and a convolution counts its pixels: `times` is how often fan_out counts.
    """

    times: int = 1

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        tensor.normal_(0.0, math.sqrt(2.0 / (fan_in + self.times * fan_out)))


@dataclass(frozen=True)
class Identity:
    """Ones on the diagonal: the values of ConViT's local blocks start as the tokens themselves."""

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        if fan_in != fan_out or tensor.ndim != 2:
            raise SpecError(f"an identity from {fan_in} to {fan_out} features. Use it for square matrices.")
        torch.nn.init.eye_(tensor)


@dataclass(frozen=True)
class LecunNormal:
    """A normal cut at two standard deviations with variance 1 / fan_in: Flax's default, the original ViT's patches."""

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        # the inverse distribution function maps uniform draws to a cut normal; 0.8796 is the deviation of N(0, 1) cut at ±2
        edge = math.erf(2.0 / math.sqrt(2.0))
        std = math.sqrt(1.0 / fan_in) / 0.87962566103423978
        tensor.uniform_(-edge, edge).erfinv_().mul_(math.sqrt(2.0) * std)


@dataclass(frozen=True)
class FanInUniform:
    """U(±1 / sqrt(fan_in)), weight and bias alike: PyTorch's default, which DeiT leaves on its patch projection."""

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        bound = 1.0 / math.sqrt(fan_in)
        tensor.uniform_(-bound, bound)


@dataclass(frozen=True)
class Ones:
    """All ones: the scale of a norm."""

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        tensor.fill_(1.0)


@dataclass(frozen=True)
class Filled:
    """One value everywhere: the head's bias under AugReg's sigmoid loss, the log-odds of one class in a thousand."""

    value: float

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        tensor.fill_(self.value)


@dataclass(frozen=True)
class KaimingNormal:
    """N(0, 2 / fan_out): keeps the gradient's size through rectified layers (He et al. 2015, eq. 14); ResNet, RegNet."""

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        tensor.normal_(0.0, math.sqrt(2.0 / fan_out))


@dataclass(frozen=True)
class FanOutUniform:
    """U(±1 / sqrt(fan_out)): the head of EfficientNet (Tan & Le 2019, released code)."""

    @torch.no_grad()
    def fill(self, tensor: Tensor, fan_in: int, fan_out: int) -> None:
        bound = 1.0 / math.sqrt(fan_out)
        tensor.uniform_(-bound, bound)


Init = (
    Normal
    | Zeros
    | XavierUniform
    | XavierNormal
    | Identity
    | LecunNormal
    | FanInUniform
    | Ones
    | Filled
    | KaimingNormal
    | FanOutUniform
)
