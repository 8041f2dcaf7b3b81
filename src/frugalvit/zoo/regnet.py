"""RegNetY (Radosavovic et al. 2020), Table 9: DeiT's teacher is the 16 GF one."""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby

from frugalvit.errors import SpecError
from frugalvit.nn.conv import SqueezeExcite
from frugalvit.nn.conv_blocks import Bottleneck, Stem, deepening_maps, stage
from frugalvit.nn.convnet import ConvNet, MeanMaps
from frugalvit.nn.init import Normal, Zeros
from frugalvit.nn.linear import Dense
from frugalvit.nn.shape import Size, image_of


def regnety(
    *,
    depth: int,
    start: int,
    slope: float,
    multiplier: float,
    group: int,
    stem: Stem = Stem(32, stride=2),
    image: Size = 224,
    channels: int = 3,
    classes: int | None = 1000,
    drop_path: float = 0.0,
) -> ConvNet:
    """RegNetY: the widths of `depth` blocks lie near the line start + slope · j (w_0, w_a, w_m and g of the paper).

    For small pictures, `stem=Stem(32)` keeps their size.
    """
    blocks = [
        one
        for width, number in stages(depth, start, slope, multiplier, group)
        for one in stage(
            Bottleneck(width, width, groups=width // min(group, width), excite=SqueezeExcite(), scale=Zeros()), number, stride=2
        )
    ]
    return ConvNet(
        stem,
        deepening_maps(blocks, drop_path),
        MeanMaps(Dense(weight=Normal(0.01))),
        classes,
        image_of(image, channels),
    )


def stages(depth: int, start: int, slope: float, multiplier: float, group: int) -> list[tuple[int, int]]:
    """(width, number of blocks) of each stage: eq. 2 to 4, then widths that the groups divide (§A)."""
    for name, value, least in (("depth", depth, 1), ("start", start, 8), ("group", group, 1)):
        if value < least:
            raise SpecError(f"{value}. Use {least} and more.", path=name)
    widths = []
    for j in range(depth):
        power = round(math.log((start + slope * j) / start) / math.log(multiplier))
        widths.append(round(start * multiplier**power / 8) * 8)
    found = [(width, len(list(run))) for width, run in groupby(widths)]
    return [(round(width / min(group, width)) * min(group, width), number) for width, number in found]


regnety_040 = partial(regnety, depth=22, start=96, slope=31.41, multiplier=2.24, group=64)
regnety_080 = partial(regnety, depth=17, start=192, slope=76.82, multiplier=2.19, group=56)
regnety_120 = partial(regnety, depth=19, start=168, slope=73.36, multiplier=2.37, group=112)
regnety_160 = partial(regnety, depth=18, start=200, slope=106.23, multiplier=2.48, group=112)
