"""Convolutions and pools over feature maps, and the choices they leave open."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, linear, max_pool2d, pad

from frugalvit.errors import SpecError
from frugalvit.nn.init import Init, KaimingNormal, Zeros
from frugalvit.nn.shape import MapShape

Pads = tuple[int, int, int, int]  # left, right, top, bottom
NARROW = 8  # channels that oneDNN handles at once with AVX2


@dataclass(frozen=True)
class Symmetric:
    """As many zeros on each side as keep the size at stride 1: PyTorch's habit."""

    def pads(self, side: int, kernel: int, stride: int) -> tuple[int, int]:
        return (kernel - 1) // 2, (kernel - 1) // 2


@dataclass(frozen=True)
class Same:
    """TensorFlow's SAME: as few zeros as leave ceil(side / stride) places, the odd one behind."""

    def pads(self, side: int, kernel: int, stride: int) -> tuple[int, int]:
        missing = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
        return missing // 2, missing - missing // 2


Padding = Symmetric | Same


def windows(shape: MapShape, channels: int, kernel: int, stride: int, padding: Padding) -> tuple[Pads, MapShape]:
    """How wide to pad for windows of `kernel` every `stride` pixels, and the shape of what they leave."""
    if min(channels, kernel, stride) < 1:
        raise SpecError(f"{channels} channels by {kernel} x {kernel} windows every {stride} pixels. Use 1 and more.")
    if stride > 1 and shape.height == shape.width == 1:
        raise SpecError(
            f"maps of 1 x 1 cannot shrink by {stride}. Use a larger image, or a stem that keeps its size: stem=Stem(channels).",
            path="stride",
        )
    top, bottom = padding.pads(shape.height, kernel, stride)
    left, right = padding.pads(shape.width, kernel, stride)
    high, wide = shape.height + top + bottom, shape.width + left + right
    if min(high, wide) < kernel:
        raise SpecError(
            f"windows of {kernel} x {kernel} do not fit into maps of {shape.height} x {shape.width}. "
            "Use a larger image, or smaller strides before this place."
        )
    return (left, right, top, bottom), MapShape(channels, (high - kernel) // stride + 1, (wide - kernel) // stride + 1)


# ------------------------------------------------------------------------------------------------ convolutions


class ConvolutionPart(Protocol):
    """What may stand in a `conv` slot."""

    def build(self, shape: MapShape, channels: int, kernel: int, stride: int, groups: int) -> tuple[nn.Module, MapShape]:
        """A module x_BCHW -> x_BCHW without bias, since a norm follows, and the shape it leaves behind."""
        ...


@dataclass(frozen=True)
class Convolution:
    """A kernel over the maps, without bias."""

    padding: Padding = Symmetric()
    weight: Init = KaimingNormal()

    def build(self, shape: MapShape, channels: int, kernel: int, stride: int, groups: int) -> tuple[Kernel, MapShape]:
        pads, leaves = windows(shape, channels, kernel, stride, self.padding)
        return Kernel(inputs(shape, channels, groups), channels, kernel, stride, groups, pads, self.weight), leaves


@dataclass(frozen=True)
class StandardizedConvolution:
    """A kernel whose outputs have mean 0 and variance 1 over their inputs (Qiao et al. 2019, eq. 4), without bias."""

    eps: float = 1e-8
    padding: Padding = Symmetric()
    weight: Init = KaimingNormal()

    def build(self, shape: MapShape, channels: int, kernel: int, stride: int, groups: int) -> tuple[Kernel, MapShape]:
        pads, leaves = windows(shape, channels, kernel, stride, self.padding)
        into = inputs(shape, channels, groups)
        return StandardizedKernel(into, channels, kernel, stride, groups, pads, self.weight, self.eps), leaves


Conv = Convolution | StandardizedConvolution | ConvolutionPart  # what may stand in a `conv` slot


def inputs(shape: MapShape, channels: int, groups: int) -> int:
    """How many channels each kernel sees."""
    if groups < 1 or shape.channels % groups or channels % groups:
        raise SpecError(
            f"{groups} groups do not divide {shape.channels} and {channels} channels. Use a number that divides both.",
            path="groups",
        )
    return shape.channels // groups


class Kernel(nn.Module):
    def __init__(self, into: int, channels: int, kernel: int, stride: int, groups: int, pads: Pads, init: Init):
        super().__init__()
        self.stride = stride
        self.groups = groups
        self.pads = pads
        self.weight = nn.Parameter(torch.empty(channels, into, kernel, kernel))
        init.fill(self.weight, into * kernel**2, channels * kernel**2 // groups)

    def kernel_OIHW(self) -> Tensor:
        return self.weight

    def forward(self, x_BCHW: Tensor) -> Tensor:
        left, right, top, bottom = self.pads
        if left == right and top == bottom:
            return convolved(x_BCHW, self.kernel_OIHW(), self.stride, (top, left), self.groups)
        return convolved(pad(x_BCHW, self.pads), self.kernel_OIHW(), self.stride, (0, 0), self.groups)


def convolved(x_BCHW: Tensor, kernel_OIHW: Tensor, stride: int, padding: tuple[int, int], groups: int = 1) -> Tensor:
    """`conv2d` without bias.

    Kernels of one pixel are given only those they see where channels are few. On CPUs with AVX2 and no AVX-512, oneDNN (torch
    2.15) else gets their gradient wrong and writes past its end, if the maps lie channels last.
    """
    if stride > 1 and kernel_OIHW.shape[2:] == (1, 1) and padding == (0, 0) and x_BCHW.shape[1] < NARROW:
        x_BCHW, stride = x_BCHW[:, :, ::stride, ::stride], 1
    return conv2d(x_BCHW, kernel_OIHW, None, stride, padding, 1, groups)


class StandardizedKernel(Kernel):
    def __init__(self, into: int, channels: int, kernel: int, stride: int, groups: int, pads: Pads, init: Init, eps: float):
        super().__init__(into, channels, kernel, stride, groups, pads, init)
        self.eps = eps

    def kernel_OIHW(self) -> Tensor:
        """(w − mean) / sqrt(var + eps) over all inputs of an output: a batch norm whose batch is the kernel."""
        rows_1OI = self.weight.flatten(1)[None]
        return batch_norm(rows_1OI, None, None, training=True, momentum=0.0, eps=self.eps).view_as(self.weight)


# ------------------------------------------------------------------------------------------------ between convolutions


@dataclass(frozen=True)
class Relu:
    """max(0, x)."""

    def build(self) -> nn.Module:
        return nn.ReLU()


@dataclass(frozen=True)
class Silu:
    """x · sigmoid(x), or Swish (Ramachandran et al. 2017): EfficientNet."""

    def build(self) -> nn.Module:
        return nn.SiLU()


Rectifier = Relu | Silu


@dataclass(frozen=True)
class MaxPool:
    """The largest of each `kernel` x `kernel` window, every `stride` pixels."""

    kernel: int = 3
    stride: int = 2
    padding: Padding = Symmetric()

    def build(self, shape: MapShape) -> tuple[Largest, MapShape]:
        pads, leaves = windows(shape, shape.channels, self.kernel, self.stride, self.padding)
        return Largest(self.kernel, self.stride, pads), leaves


class Largest(nn.Module):
    def __init__(self, kernel: int, stride: int, pads: Pads):
        super().__init__()
        self.kernel = kernel
        self.stride = stride
        self.pads = pads

    def forward(self, x_BCHW: Tensor) -> Tensor:
        left, right, top, bottom = self.pads
        if left == right and top == bottom:
            return max_pool2d(x_BCHW, self.kernel, self.stride, (top, left))
        return max_pool2d(pad(x_BCHW, self.pads, value=-math.inf), self.kernel, self.stride)


@dataclass(frozen=True)
class SqueezeExcite:
    """x_c · sigmoid(expand(act(reduce(mean x))))_c, a gate a channel (Hu et al. 2018, eq. 3).

    The squeezed width is `ratio` times the width of what enters the block, as in RegNetY and EfficientNet.
    """

    ratio: float = 0.25
    activation: Rectifier = Relu()

    def build(self, channels: int, entering: int) -> Gate:
        width = round(entering * self.ratio)
        if width < 1:
            raise SpecError(f"{self.ratio} times {entering} channels leaves nothing. Use a larger ratio.", path="ratio")
        return Gate(channels, width, self.activation.build())


class Gate(nn.Module):
    def __init__(self, channels: int, width: int, activation: nn.Module):
        super().__init__()
        self.reduce = Pointwise(channels, width)
        self.activation = activation
        self.expand = Pointwise(width, channels)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        gate_BC = self.expand(self.activation(self.reduce(x_BCHW.mean((2, 3))))).sigmoid()
        return x_BCHW * gate_BC[:, :, None, None]


class Pointwise(nn.Module):
    """A 1 x 1 convolution with bias, on the one place that a mean has left."""

    def __init__(self, into: int, channels: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, into, 1, 1))
        self.bias = nn.Parameter(torch.empty(channels))
        KaimingNormal().fill(self.weight, into, channels)
        Zeros().fill(self.bias, into, channels)

    def forward(self, x_BI: Tensor) -> Tensor:
        return linear(x_BI, self.weight.flatten(1), self.bias)
