"""Layers of convolutional networks: the blocks of ResNet, RegNetY and EfficientNet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from torch import Tensor, nn
from torch.nn.functional import pad

from frugalvit.errors import SpecError, at
from frugalvit.nn.binary_conv import BiRealConv, ReActConv
from frugalvit.nn.conv import Conv, Convolution, MaxPool, Rectifier, Relu, Silu, SqueezeExcite
from frugalvit.nn.init import Init, Ones
from frugalvit.nn.map_norm import BatchNorm, MapNorm
from frugalvit.nn.residual import Plain, StochasticSum
from frugalvit.nn.shape import Image, MapShape


class ConvLayerPart(Protocol):
    """What may stand in `ConvNet.layers`."""

    def build(self, shape: MapShape) -> tuple[nn.Module, MapShape]:
        """A module x_BCHW -> x_BCHW and the shape it leaves behind."""
        ...


class StemPart(Protocol):
    """What may stand in `ConvNet.stem`."""

    def build(self, image: Image) -> tuple[nn.Module, MapShape]:
        """A module image_BCHW -> x_BCHW and the shape of its maps."""
        ...


class Growing:
    """The named modules of a branch, in order, and the shape at its end so far."""

    def __init__(self, shape: MapShape, conv: Conv, norm: MapNorm):
        self.shape = shape
        self.conv = conv
        self.norm = norm
        self.branch = nn.Sequential()
        self.number = 0

    def convolve(
        self, channels: int, kernel: int, stride: int = 1, groups: int = 1, scale: Init = Ones(), then: Rectifier | None = None
    ) -> None:
        """`conv1`, `norm1` and, where one follows, `act1`, then `conv2` and so on."""
        self.number += 1
        with at("conv"):
            module, self.shape = self.conv.build(self.shape, channels, kernel, stride, groups)
        self.branch.add_module(f"conv{self.number}", module)
        with at("norm"):
            self.branch.add_module(f"norm{self.number}", self.norm.build(channels, scale))
        if then is not None:
            self.branch.add_module(f"act{self.number}", then.build())

    def excite(self, excite: SqueezeExcite | None, entering: int) -> None:
        if excite is not None:
            with at("excite"):
                self.branch.add_module("excite", excite.build(self.shape.channels, entering))


# ------------------------------------------------------------------------------------------------ without a shortcut


@dataclass(frozen=True)
class ConvNorm:
    """Convolution, norm, activation."""

    channels: int
    kernel: int = 3
    stride: int = 1
    conv: Conv = Convolution()
    norm: MapNorm = BatchNorm()
    activation: Rectifier = Relu()

    def build(self, shape: MapShape) -> tuple[Straight, MapShape]:
        grown = Growing(shape, self.conv, self.norm)
        grown.convolve(self.channels, self.kernel, self.stride, then=self.activation)
        return Straight(grown.branch), grown.shape


@dataclass(frozen=True)
class Stem:
    """Convolution, norm, activation, and perhaps a pool: what an image meets first. Small pictures want kernel 3, stride 1."""

    channels: int
    kernel: int = 3
    stride: int = 1
    pool: MaxPool | None = None
    conv: Conv = Convolution()
    norm: MapNorm = BatchNorm()
    activation: Rectifier = Relu()

    def build(self, image: Image) -> tuple[Straight, MapShape]:
        grown = Growing(MapShape(image.channels, image.height, image.width), self.conv, self.norm)
        grown.convolve(self.channels, self.kernel, self.stride, then=self.activation)
        if self.pool is None:
            return Straight(grown.branch), grown.shape
        with at("pool"):
            pool, shape = self.pool.build(grown.shape)
        grown.branch.add_module("pool", pool)
        return Straight(grown.branch), shape


class Straight(nn.Module):
    """A branch alone."""

    def __init__(self, branch: nn.Module):
        super().__init__()
        self.branch = branch

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.branch(x_BCHW)


# ------------------------------------------------------------------------------------------------ shortcuts


@dataclass(frozen=True)
class Projected:
    """x where its shape stays, else norm(conv 1 x 1 of it): He et al. 2016, §3.3, option B."""

    def build(self, shape: MapShape, channels: int, stride: int, conv: Conv, norm: MapNorm) -> nn.Module:
        if channels == shape.channels and stride == 1:
            return nn.Identity()
        kernel, _ = conv.build(shape, channels, 1, stride, 1)
        both = nn.Sequential()
        both.add_module("conv", kernel)
        both.add_module("norm", norm.build(channels, Ones()))
        return both


@dataclass(frozen=True)
class ZeroPadded:
    """Every `stride`-th pixel of x, with channels of zeros behind it where there are more: option A, no parameters."""

    def build(self, shape: MapShape, channels: int, stride: int, conv: Conv, norm: MapNorm) -> nn.Module:
        if channels < shape.channels:
            raise SpecError(f"zeros cannot turn {shape.channels} channels into {channels}. Use Projected.")
        return PaddedChannels(channels - shape.channels, stride)


Shortcut = Projected | ZeroPadded


class PaddedChannels(nn.Module):
    def __init__(self, more: int, stride: int):
        super().__init__()
        self.more = more
        self.stride = stride

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return pad(x_BCHW[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.more))


class ResidualMaps(nn.Module):
    """activation(shortcut(x) + branch(x)), the branch dropped at random per picture (stochastic depth)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, activation: nn.Module, drop: float):
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.sum = StochasticSum(drop)
        self.activation = activation
        self.draws: int = self.sum.draws

    def forward(self, x_BCHW: Tensor, draws_RB: Tensor | None = None) -> Tensor:
        y_BCHW = self.branch(x_BCHW)
        draw_B = None if draws_RB is None else draws_RB[0]
        sum_BCN = self.sum(self.shortcut(x_BCHW).flatten(2), y_BCHW.flatten(2), draw_B)
        return self.activation(sum_BCN.unflatten(2, y_BCHW.shape[2:]))


# ------------------------------------------------------------------------------------------------ with a shortcut


@dataclass(frozen=True)
class BasicBlock:
    """Two 3 x 3 convolutions beside a shortcut (He et al. 2016, Fig. 5, left). `scale` fills the last norm's."""

    channels: int
    stride: int = 1
    shortcut: Shortcut = Projected()
    conv: Conv = Convolution()
    norm: MapNorm = BatchNorm()
    activation: Rectifier = Relu()
    scale: Init = Ones()
    drop: float = 0.0

    def __post_init__(self) -> None:
        Plain(self.drop)

    def build(self, shape: MapShape) -> tuple[ResidualMaps, MapShape]:
        grown = Growing(shape, self.conv, self.norm)
        grown.convolve(self.channels, 3, self.stride, then=self.activation)
        grown.convolve(self.channels, 3, scale=self.scale)
        with at("shortcut"):
            shortcut = self.shortcut.build(shape, self.channels, self.stride, self.conv, self.norm)
        return ResidualMaps(grown.branch, shortcut, self.activation.build(), self.drop), grown.shape


@dataclass(frozen=True)
class Bottleneck:
    """1 x 1 to `middle` channels, 3 x 3, 1 x 1 to `channels`, beside a shortcut (He et al. 2016, Fig. 5, right).

    The 3 x 3 has the stride ("v1.5"), the paper's first 1 x 1 in its place loses three of four pixels. With `groups` and
    `excite` it is RegNetY's block (Radosavovic et al. 2020, Fig. 4 and §5).
    """

    channels: int
    middle: int
    stride: int = 1
    groups: int = 1
    excite: SqueezeExcite | None = None
    shortcut: Shortcut = Projected()
    conv: Conv = Convolution()
    norm: MapNorm = BatchNorm()
    activation: Rectifier = Relu()
    scale: Init = Ones()
    drop: float = 0.0

    def __post_init__(self) -> None:
        Plain(self.drop)

    def build(self, shape: MapShape) -> tuple[ResidualMaps, MapShape]:
        grown = Growing(shape, self.conv, self.norm)
        grown.convolve(self.middle, 1, then=self.activation)
        grown.convolve(self.middle, 3, self.stride, self.groups, then=self.activation)
        grown.excite(self.excite, shape.channels)
        grown.convolve(self.channels, 1, scale=self.scale)
        with at("shortcut"):
            shortcut = self.shortcut.build(shape, self.channels, self.stride, self.conv, self.norm)
        return ResidualMaps(grown.branch, shortcut, self.activation.build(), self.drop), grown.shape


@dataclass(frozen=True)
class InvertedBottleneck:
    """1 x 1 to `expand` times as many channels, a kernel on each alone, 1 x 1 back: MBConv (Tan & Le 2019, Table 1).

    The expansion by 1 is left out, so there it is a depthwise separable convolution. x is added where its shape stays.
    """

    channels: int
    expand: int = 6
    kernel: int = 3
    stride: int = 1
    excite: SqueezeExcite | None = SqueezeExcite(activation=Silu())
    conv: Conv = Convolution()
    norm: MapNorm = BatchNorm()
    activation: Rectifier = Silu()
    drop: float = 0.0

    def __post_init__(self) -> None:
        Plain(self.drop)

    def build(self, shape: MapShape) -> tuple[ResidualMaps | Straight, MapShape]:
        grown, middle = Growing(shape, self.conv, self.norm), shape.channels * self.expand
        if self.expand != 1:
            grown.convolve(middle, 1, then=self.activation)
        grown.convolve(middle, self.kernel, self.stride, groups=middle, then=self.activation)
        grown.excite(self.excite, shape.channels)
        grown.convolve(self.channels, 1)
        if grown.shape == shape and self.stride == 1:
            return ResidualMaps(grown.branch, nn.Identity(), nn.Identity(), self.drop), shape
        if self.drop:
            raise SpecError("there is no shortcut here, so nothing can be dropped. Use 0.", path="drop")
        return Straight(grown.branch), grown.shape


# what may stand in `ConvNet.layers`
ConvLayer = BasicBlock | Bottleneck | InvertedBottleneck | ConvNorm | BiRealConv | ReActConv | ConvLayerPart

B = TypeVar("B", bound=BasicBlock | Bottleneck)


def stage(block: B, depth: int, stride: int) -> list[B]:
    """`depth` blocks at one resolution, which the first of them reaches by `stride`."""
    if depth < 1:
        raise SpecError(f"a stage of {depth} blocks. Use 1 and more.", path="depths")
    return [replace(block, stride=stride if index == 0 else 1) for index in range(depth)]


def deepening_maps(blocks: Sequence[B], drop: float) -> tuple[B, ...]:
    """The blocks with drop rates that grow in equal steps from 0 to `drop`."""
    with at("drop_path"):
        Plain(drop)
    last = max(len(blocks) - 1, 1)
    return tuple(replace(block, drop=drop * (index / last)) for index, block in enumerate(blocks))
