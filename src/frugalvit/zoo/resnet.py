"""ResNet (He et al. 2016): Table 1 for ImageNet, in its "v1.5" form, and §4.2 for CIFAR."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from frugalvit.nn.conv import MaxPool
from frugalvit.nn.conv_blocks import BasicBlock, Bottleneck, Stem, ZeroPadded, deepening_maps, stage
from frugalvit.nn.convnet import ConvNet, MeanMaps
from frugalvit.nn.init import FanInUniform, Zeros
from frugalvit.nn.linear import Dense
from frugalvit.nn.shape import Size, image_of


def resnet(
    *,
    block: BasicBlock | Bottleneck,
    depths: tuple[int, ...],
    stem: Stem = Stem(64, kernel=7, stride=2, pool=MaxPool()),
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    drop_path: float = 0.0,
) -> ConvNet:
    """ResNet: `block` is the first stage's, each later stage halves the maps and has twice the channels.

    For small pictures, `stem=Stem(64)`: a 3 x 3 convolution that keeps the size, as in the paper's CIFAR networks. The
    ImageNet sizes start their branches at zero (Goyal et al. 2017, §5.1), as timm does; the paper's start at one.
    """
    blocks = [
        one
        for index, depth in enumerate(depths)
        for one in stage(widened(block, 2**index), depth, stride=1 if index == 0 else 2)
    ]
    return ConvNet(
        stem,
        deepening_maps(blocks, drop_path),
        MeanMaps(Dense(weight=FanInUniform(), bias=FanInUniform())),
        classes,
        image_of(image, channels),
    )


def widened(block: BasicBlock | Bottleneck, times: int) -> BasicBlock | Bottleneck:
    if isinstance(block, Bottleneck):
        return replace(block, channels=block.channels * times, middle=block.middle * times)
    return replace(block, channels=block.channels * times)


BASIC = BasicBlock(64, scale=Zeros())
PLAIN = BasicBlock(16, shortcut=ZeroPadded())  # 6n + 2 layers, option A: no parameters in the shortcuts

resnet18 = partial(resnet, block=BASIC, depths=(2, 2, 2, 2))
resnet34 = partial(resnet, block=BASIC, depths=(3, 4, 6, 3))
resnet50 = partial(resnet, block=Bottleneck(256, 64, scale=Zeros()), depths=(3, 4, 6, 3))
resnet56_cifar = partial(resnet, block=PLAIN, depths=(9, 9, 9), stem=Stem(16), image=32, classes=10)
resnet110_cifar = partial(resnet, block=PLAIN, depths=(18, 18, 18), stem=Stem(16), image=32, classes=10)
