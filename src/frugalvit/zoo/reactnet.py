"""Bi-Real Net (Liu et al. 2018) and ReActNet (Liu et al. 2020): convolutional networks of one bit, to compare BinaryViT with.

First convolution, last layer and the 1 x 1 convolutions of ResNet's shortcuts are in full precision. Deviation: the released
code starts its binary weights at uniform numbers above zero, so that all signs are one; here they start as PyTorch's default.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frugalvit.errors import SpecError
from frugalvit.nn.binary_conv import BareStem, BiRealConv, PooledProjection, ReActConv
from frugalvit.nn.conv import MaxPool
from frugalvit.nn.convnet import ConvNet, MeanMaps
from frugalvit.nn.init import FanInUniform
from frugalvit.nn.linear import Dense
from frugalvit.nn.shape import Size, image_of

HEAD = MeanMaps(Dense(FanInUniform(), FanInUniform()))
MOBILENET = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)


def reactnet(
    *,
    widths: tuple[int, ...] = MOBILENET,
    stem: BareStem = BareStem(32, stride=2),
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
) -> ConvNet:
    """ReActNet-A: MobileNet's shape, each block a 3 x 3 and a 1 x 1 convolution of one bit, both with a shortcut.

    Where a width doubles, beyond the first block, maps are halved. For small pictures, `stem=BareStem(32)` keeps their size.
    """
    layers: list[ReActConv] = []
    before = stem.channels
    for index, width in enumerate(widths):
        stride = 2 if index and width != before else 1
        layers += [ReActConv(before, 3, stride), ReActConv(width, 1)]
        before = width
    return ConvNet(stem, tuple(layers), HEAD, classes, image_of(image, channels))


def binary_resnet(
    *,
    layer: BiRealConv | ReActConv,
    depths: tuple[int, ...],
    stem: BareStem = BareStem(64, kernel=7, stride=2, pool=MaxPool()),
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
) -> ConvNet:
    """ResNet with a shortcut around every single 3 x 3 convolution of one bit; `layer` is the first stage's.

    `depths` count convolutions. Each later stage halves the maps and has twice the channels.
    """
    if not depths or min(depths) < 1:
        raise SpecError(f"{depths}. Give each stage 1 convolution and more.", path="depths")
    layers = []
    for stage, depth in enumerate(depths):
        one = replace(layer, channels=layer.channels * 2**stage)
        layers += [replace(one, stride=2 if stage else 1), *[one] * (depth - 1)]
    return ConvNet(stem, tuple(layers), HEAD, classes, image_of(image, channels))


BIREAL = BiRealConv(64)
REACT = ReActConv(64, shortcut=PooledProjection())

reactnet_a_224 = partial(reactnet)
reactnet_a_32 = partial(reactnet, stem=BareStem(32), image=32, classes=10)
bireal_resnet18 = partial(binary_resnet, layer=BIREAL, depths=(4, 4, 4, 4))
bireal_resnet34 = partial(binary_resnet, layer=BIREAL, depths=(6, 8, 12, 6))
react_resnet18 = partial(binary_resnet, layer=REACT, depths=(4, 4, 4, 4))
react_resnet34 = partial(binary_resnet, layer=REACT, depths=(6, 8, 12, 6))
react_resnet18_32 = partial(binary_resnet, layer=REACT, depths=(4, 4, 4, 4), stem=BareStem(64), image=32, classes=10)
