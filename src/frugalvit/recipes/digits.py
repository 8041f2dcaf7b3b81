"""A tiny model of every family on 1,297 handwritten digits, for a first look at one: no download, under a minute on one core.

All are ours, not the papers': they show that a family learns, not which is best. `vit.digits` and `deit.digits` have their own
files. Families that halve their grid read the 8 x 8 pixels enlarged to 16, so that there is a grid to halve.
"""

from __future__ import annotations

from dataclasses import replace

from frugalvit.data.augment import Augment, PadCrop
from frugalvit.data.dataset import Digits
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.conv import MaxPool, Same, Silu
from frugalvit.nn.conv_blocks import BasicBlock, Stem
from frugalvit.nn.init import Normal, XavierUniform
from frugalvit.nn.layers import AddPositions
from frugalvit.nn.linear import Dense
from frugalvit.nn.map_norm import GroupNorm
from frugalvit.nn.model import Model
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.small import ADDED, Added
from frugalvit.spec import swap
from frugalvit.training.duration import Epochs, Steps
from frugalvit.training.optimizer import AdamW
from frugalvit.training.recipe import Data, Recipe
from frugalvit.training.schedule import Cosine
from frugalvit.zoo.cait import cait as cait_model
from frugalvit.zoo.convit import convit as convit_model
from frugalvit.zoo.deit import deit as deit_model
from frugalvit.zoo.efficientnet import efficientnet as efficientnet_model
from frugalvit.zoo.hybrid import CONV
from frugalvit.zoo.hybrid import hybrid as hybrid_model
from frugalvit.zoo.pit import pit as pit_model
from frugalvit.zoo.regnet import regnety
from frugalvit.zoo.resnet import resnet as resnet_model
from frugalvit.zoo.small import small_t2t
from frugalvit.zoo.swin import swin as swin_model
from frugalvit.zoo.vit import vit as vit_model

POSITIONS = Normal(0.5)  # at the papers' 0.02 it takes hundreds of steps to tell tokens apart
KERNELS = XavierUniform()  # the papers' N(0, 0.02²) is for widths of 192 and more; at 48 it nearly silences a branch


def trained(spec: Architecture, epochs: int, batch: int, lr: float) -> Recipe:
    """What all families share: the training of `vit.digits`; pictures move by up to one of their 8 pixels."""
    return Recipe(
        model=spec,
        data=Data(Digits(), Augment((PadCrop(spec.image.height // 8),)), (0.3053,), (0.3765,), crop=1.0),
        objective=Objective((Supervised(loss=CrossEntropy(0.1)),)),
        optimizer=AdamW(lr, weight_decay=0.05),
        schedule=Cosine(Steps(50)),
        duration=Epochs(epochs),
        batch=batch,
        evaluate=Epochs(10),
        save=Epochs(10),
    )


def learnable(spec: Model, add: Added) -> Model:
    """The model with what is added, and with initial values that suit few channels and few steps (docs/notebook.md)."""
    for change in ADDED[add]:
        spec = change(spec)
    spec = swap(spec, AddPositions, lambda _: AddPositions(POSITIONS))
    return swap(spec, Dense, lambda dense: replace(dense, weight=KERNELS) if dense.weight == Dense().weight else dense)


# ------------------------------------------------------------------------------------------------ transformers


def vit(*, add: Added = "none", epochs: int = 30, batch: int = 64, lr: float = 2e-3, dim: int = 48, depth: int = 4) -> Recipe:
    """The ViT of `vit.digits`, narrower; with SPT and LSA it is SL-ViT.

    frugalvit train digits.vit add=spt+lsa --out runs/digits
    Ours, not a paper's.
    """
    spec = vit_model(dim=dim, heads=4, depth=depth, patch=2, image=8, channels=1, classes=None)
    return trained(learnable(spec, add), epochs, batch, lr)


def deit(*, add: Added = "none", epochs: int = 30, batch: int = 64, lr: float = 2e-3, dim: int = 48, depth: int = 4) -> Recipe:
    """A small DeiT without its distillation token, which `deit.digits` has.

    frugalvit train digits.deit --out runs/digits
    Ours, not a paper's.
    """
    spec = deit_model(dim=dim, heads=4, depth=depth, patch=2, image=8, channels=1, classes=None)
    return trained(learnable(spec, add), epochs, batch, lr)


def cait(
    *,
    add: Added = "none",
    epochs: int = 30,
    batch: int = 64,
    lr: float = 2e-3,
    dim: int = 48,
    depth: int = 3,
    layer_scale: float = 0.1,
) -> Recipe:
    """A small CaiT: talking heads on the patches, then one block of class attention; LayerScale starts at 0.1.

    frugalvit train digits.cait add=spt+lsa --out runs/digits
    Ours, not a paper's.
    """
    spec = cait_model(
        dim=dim,
        heads=4,
        depth=depth,
        class_depth=1,
        layer_scale=layer_scale,
        patch=2,
        image=8,
        channels=1,
        classes=None,
    )
    return trained(learnable(spec, add), epochs, batch, lr)


def convit(
    *,
    add: Added = "none",
    epochs: int = 30,
    batch: int = 64,
    lr: float = 2e-3,
    dim: int = 48,
    depth: int = 4,
    local: int = 2,
) -> Recipe:
    """A small ConViT: two blocks of gated positional attention, then the class token joins two plain ones.

    frugalvit train digits.convit --out runs/digits
    Ours, not a paper's.
    """
    spec = convit_model(dim=dim, heads=4, depth=depth, local=local, patch=2, image=8, channels=1, classes=None)
    return trained(learnable(spec, add), epochs, batch, lr)


def pit(*, add: Added = "none", epochs: int = 20, batch: int = 64, lr: float = 2e-3, dim: int = 24) -> Recipe:
    """A small PiT on 16 x 16 pixels: overlapping patches of 4, three stages.

    frugalvit train digits.pit add=spt+lsa --out runs/digits
    Ours, not a paper's.
    """
    spec = pit_model(dim=dim, heads=(2, 4, 8), depths=(1, 2, 1), patch=4, stride=2, image=16, channels=1, classes=None)
    return trained(learnable(spec, add), epochs, batch, lr)


def swin(*, add: Added = "none", epochs: int = 30, batch: int = 64, lr: float = 3e-3, dim: int = 24) -> Recipe:
    """A small Swin on 16 x 16 pixels: windows of 4 on a grid of 8, shifted in the second block, then one window in all.

    frugalvit train digits.swin add=spt+lsa --out runs/digits
    Ours, not a paper's.
    """
    spec = swin_model(dim=dim, heads=(2, 4), depths=(2, 2), window=4, patch=2, image=16, channels=1, classes=None)
    return trained(learnable(spec, add), epochs, batch, lr)


def t2t(
    *, add: Added = "none", epochs: int = 30, batch: int = 64, lr: float = 2e-3, dim: int = 48, width: int = 16, depth: int = 4
) -> Recipe:
    """A small T2T on 16 x 16 pixels: two soft splits to a grid of 4.

    frugalvit train digits.t2t add=spt+lsa --out runs/digits
    Ours, not a paper's.
    """
    spec = small_t2t(image=16, dim=dim, width=width, heads=4, depth=depth, channels=1, classes=None)
    return trained(learnable(spec, add), epochs, batch, lr)


def hybrid(*, epochs: int = 20, batch: int = 64, lr: float = 2e-3, dim: int = 48, depth: int = 3) -> Recipe:
    """A small hybrid of AugReg: a convolution, a pool and one residual block in front of a ViT on a grid of 4.

    frugalvit train digits.hybrid --out runs/digits
    Ours, not a paper's.
    """
    stem = Stem(64, pool=MaxPool(padding=Same()), conv=CONV, norm=GroupNorm())
    spec = hybrid_model(depths=(1,), dim=dim, heads=4, depth=depth, stem=stem, image=8, channels=1, classes=None)
    return trained(learnable(spec, "none"), epochs, batch, lr)


# ------------------------------------------------------------------------------------------------ convolutional networks


def resnet(*, epochs: int = 20, batch: int = 64, lr: float = 2e-3, channels: int = 16) -> Recipe:
    """A small ResNet, three stages of one block.

    frugalvit train digits.resnet --out runs/digits
    Ours, not a paper's.
    """
    spec = resnet_model(block=BasicBlock(channels), depths=(1, 1, 1), stem=Stem(channels), image=8, channels=1, classes=None)
    return trained(spec, epochs, batch, lr)


def regnet(*, epochs: int = 20, batch: int = 64, lr: float = 2e-3, depth: int = 4, start: int = 32, group: int = 16) -> Recipe:
    """A small RegNetY, two stages.

    frugalvit train digits.regnet --out runs/digits
    Ours, not a paper's.
    """
    spec = regnety(
        depth=depth, start=start, slope=16.0, multiplier=2.0, group=group, stem=Stem(16), image=8, channels=1, classes=None
    )
    return trained(spec, epochs, batch, lr)


def efficientnet(*, epochs: int = 20, batch: int = 64, lr: float = 2e-3, width: int = 128) -> Recipe:
    """A small EfficientNet: three stages of inverted bottlenecks.

    frugalvit train digits.efficientnet --out runs/digits
    Ours, not a paper's.
    """
    stages = ((1, 3, 1, 16, 1), (4, 3, 2, 24, 2), (4, 5, 2, 40, 2))
    stem = Stem(16, activation=Silu())
    spec = efficientnet_model(stages=stages, width=width, stem=stem, image=8, channels=1, classes=None)
    return trained(spec, epochs, batch, lr)
