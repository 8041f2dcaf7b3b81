"""Convolutions of one bit with a shortcut around each: the layers of Bi-Real Net and ReActNet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from frugalvit.errors import SpecError, at
from frugalvit.nn.binary_channels import RPReLU
from frugalvit.nn.binary_linear import RealProduct, RealWeights, SignedProduct, Signs
from frugalvit.nn.conv import Conv, Convolution, MaxPool, Symmetric, convolved, windows
from frugalvit.nn.init import FanInUniform, Init, Ones
from frugalvit.nn.map_norm import BatchNorm, MapNorm
from frugalvit.nn.quantize import sign
from frugalvit.nn.shape import Image, MapShape


@dataclass(frozen=True)
class BareStem:
    """Convolution, norm, and perhaps a pool, without an activation, in full precision: what an image meets first."""

    channels: int
    kernel: int = 3
    stride: int = 1
    pool: MaxPool | None = None
    conv: Conv = Convolution()
    norm: MapNorm = BatchNorm()

    def build(self, image: Image) -> tuple[nn.Sequential, MapShape]:
        shape = MapShape(image.channels, image.height, image.width)
        stem = nn.Sequential()
        with at("conv"):
            conv, shape = self.conv.build(shape, self.channels, self.kernel, self.stride, 1)
        stem.add_module("conv", conv)
        stem.add_module("norm", self.norm.build(self.channels, Ones()))
        if self.pool is not None:
            with at("pool"):
                pool, shape = self.pool.build(shape)
            stem.add_module("pool", pool)
        return stem, shape


# ------------------------------------------------------------------------------------------------ shortcuts


@dataclass(frozen=True)
class Repeated:
    """Means over squares where maps shrink; copies of the channels one behind the other where there are more (ReActNet)."""

    def build(self, shape: MapShape, channels: int, stride: int, norm: MapNorm) -> nn.Module:
        refuse_odd(shape, stride)
        if channels % shape.channels:
            raise SpecError(f"{shape.channels} channels cannot be repeated to {channels}. Use a multiple, or PooledProjection.")
        return RepeatedMaps(stride, channels // shape.channels)


@dataclass(frozen=True)
class PooledProjection:
    """x where its shape stays; else means over squares, a 1 x 1 convolution in full precision, and a norm (Bi-Real Net)."""

    conv: Conv = Convolution()

    def build(self, shape: MapShape, channels: int, stride: int, norm: MapNorm) -> nn.Module:
        if stride == 1 and channels == shape.channels:
            return nn.Identity()
        refuse_odd(shape, stride)
        small = MapShape(shape.channels, shape.height // stride, shape.width // stride)
        conv, _ = self.conv.build(small, channels, 1, 1, 1)
        parts = nn.Sequential()
        parts.add_module("pool", RepeatedMaps(stride, 1))
        parts.add_module("conv", conv)
        parts.add_module("norm", norm.build(channels, Ones()))
        return parts


BinaryShortcut = Repeated | PooledProjection


def refuse_odd(shape: MapShape, stride: int) -> None:
    if shape.height % stride or shape.width % stride:
        raise SpecError(
            f"maps of {shape.height} x {shape.width} are no squares of {stride} x {stride}. Use another image size."
        )


class RepeatedMaps(nn.Module):
    def __init__(self, stride: int, times: int):
        super().__init__()
        self.stride = stride
        self.times = times

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BCHW = avg_pool2d(x_BCHW, self.stride) if self.stride > 1 else x_BCHW
        return torch.cat([x_BCHW] * self.times, dim=1) if self.times > 1 else x_BCHW


# ------------------------------------------------------------------------------------------------ layers


@dataclass(frozen=True)
class BiRealConv:
    """norm(conv(sign(x))) + shortcut(x), the convolution of one bit (Liu et al. 2018, Fig. 3). Padding is with zeros."""

    channels: int
    kernel: int = 3
    stride: int = 1
    shortcut: BinaryShortcut = PooledProjection()
    weights: Signs | RealWeights = Signs()
    weight: Init = FanInUniform()
    norm: MapNorm = BatchNorm()

    def build(self, shape: MapShape) -> tuple[BinaryMaps, MapShape]:
        product, shortcut, leaves = built(self, shape)
        norm = self.norm.build(self.channels, Ones())
        return BinaryMaps(None, product, norm, shortcut, nn.Identity()), leaves


@dataclass(frozen=True)
class ReActConv:
    """RPReLU(norm(conv(sign(x + shift))) + shortcut(x)), the convolution of one bit (Liu et al. 2020, §4.2).

    Padding is with zeros. ReActNet's two branches that double the channels are one convolution here: the same numbers.
    """

    channels: int
    kernel: int = 3
    stride: int = 1
    shortcut: BinaryShortcut = Repeated()
    weights: Signs | RealWeights = Signs()
    weight: Init = FanInUniform()
    norm: MapNorm = BatchNorm()

    def build(self, shape: MapShape) -> tuple[BinaryMaps, MapShape]:
        product, shortcut, leaves = built(self, shape)
        norm = self.norm.build(self.channels, Ones())
        return BinaryMaps(shape.channels, product, norm, shortcut, MapRPReLU(self.channels)), leaves


def built(spec: BiRealConv | ReActConv, shape: MapShape) -> tuple[nn.Module, nn.Module, MapShape]:
    """The convolution, the shortcut, and the shape that both leave."""
    _, leaves = windows(shape, spec.channels, spec.kernel, spec.stride, Symmetric())
    if spec.kernel % 2 == 0:
        raise SpecError(f"a kernel of {spec.kernel} x {spec.kernel} has no middle. Use an odd number.", path="kernel")
    with at("shortcut"):
        shortcut = spec.shortcut.build(shape, spec.channels, spec.stride, spec.norm)
    size = (spec.channels, shape.channels, spec.kernel, spec.kernel)
    if isinstance(spec.weights, Signs):
        return SignedKernel(size, spec.weight, spec.weights.damping, spec.stride), shortcut, leaves
    return RealKernel(size, spec.weight, spec.stride), shortcut, leaves


class SignedKernel(SignedProduct):
    def __init__(self, size: tuple[int, int, int, int], init: Init, damping: float, stride: int):
        super().__init__(size, init, damping)
        self.stride = stride

    def forward(self, signs_BCHW: Tensor) -> Tensor:
        signs_OI, scale_O = self.rows()
        kernel_OIHW = signs_OI.view_as(self.weight)
        given_BCHW, kernel_OIHW = self.narrowed(signs_BCHW), self.narrowed(kernel_OIHW)
        return convolved(given_BCHW, kernel_OIHW, self.stride, around(kernel_OIHW)) * scale_O[:, None, None]


class RealKernel(RealProduct):
    def __init__(self, size: tuple[int, int, int, int], init: Init, stride: int):
        super().__init__(size, init)
        self.stride = stride

    def forward(self, signs_BCHW: Tensor) -> Tensor:
        return convolved(signs_BCHW, self.weight, self.stride, around(self.weight))


def around(kernel_OIHW: Tensor) -> tuple[int, int]:
    """How wide to pad for maps of the same size."""
    return (kernel_OIHW.shape[-1] // 2,) * 2


class MapRPReLU(RPReLU):
    """`RPReLU` whose channels are the second axis."""

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return super().forward(x_BCHW.movedim(1, -1)).movedim(-1, 1)


class BinaryMaps(nn.Module):
    def __init__(self, shifted: int | None, product: nn.Module, norm: nn.Module, shortcut: nn.Module, act: nn.Module):
        super().__init__()
        self.shift = None if shifted is None else nn.Parameter(torch.zeros(shifted))
        self.product = product
        self.norm = norm
        self.shortcut = shortcut
        self.act = act

    def forward(self, x_BCHW: Tensor) -> Tensor:
        moved_BCHW = x_BCHW if self.shift is None else x_BCHW + self.shift[:, None, None]
        return self.act(self.norm(self.product(sign(moved_BCHW))) + self.shortcut(x_BCHW))
