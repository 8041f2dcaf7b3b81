"""EfficientNet-B0 (Tan & Le 2019), Table 1."""

from __future__ import annotations

from functools import partial

from frugalvit.errors import at
from frugalvit.nn.conv import Silu
from frugalvit.nn.conv_blocks import ConvNorm, InvertedBottleneck, Stem
from frugalvit.nn.convnet import ConvNet, MeanMaps
from frugalvit.nn.init import FanOutUniform
from frugalvit.nn.linear import Dense
from frugalvit.nn.residual import Plain
from frugalvit.nn.shape import Size, image_of

# expand, kernel, stride, channels, blocks: stages 2 to 8 of Table 1
B0 = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


def efficientnet(
    *,
    stages: tuple[tuple[int, int, int, int, int], ...] = B0,
    width: int = 1280,
    stem: Stem = Stem(32, stride=2, activation=Silu()),
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    drop_path: float = 0.0,
) -> ConvNet:
    """EfficientNet: `stages` are (expand, kernel, stride, channels, blocks), `width` is what the head reads.

    The drop rate of the i-th of n blocks is drop_path · i / n, where there is a shortcut (released code: 0.2).
    For small pictures, `stem=Stem(32, activation=Silu())` keeps their size; spell it out in Python.
    Deviation: the released code drops a fifth of the head's inputs; there is no dropout here. Norms are timm's
    (eps 1e-5, momentum 0.1) and so is the symmetric padding; the released TensorFlow code has 1e-3, 0.01 and SAME.
    """
    with at("drop_path"):
        Plain(drop_path)
    total, number, blocks = sum(stage[-1] for stage in stages), 0, []
    for expand, kernel, stride, leaving, depth in stages:
        for index in range(depth):
            drop = drop_path * number / total if index else 0.0  # the first of a stage changes the shape
            blocks.append(InvertedBottleneck(leaving, expand, kernel, 1 if index else stride, drop=drop))
            number += 1
    return ConvNet(
        stem,
        (*blocks, ConvNorm(width, kernel=1, activation=Silu())),
        MeanMaps(Dense(weight=FanOutUniform())),
        classes,
        image_of(image, channels),
    )


efficientnet_b0 = partial(efficientnet, width=1280)
