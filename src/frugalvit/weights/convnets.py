"""What timm and torchvision call the tensors of ResNet, RegNetY and EfficientNet, and timm and AugReg those of hybrids.

A stage is a run of layers with the same number of channels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from frugalvit.errors import WeightsError
from frugalvit.nn.conv import Convolution, StandardizedConvolution
from frugalvit.nn.conv_blocks import BasicBlock, Bottleneck, ConvNorm, InvertedBottleneck, Projected, Stem
from frugalvit.nn.conv_stem import ConvStem
from frugalvit.nn.convnet import ConvNet, MeanMaps
from frugalvit.nn.map_norm import BatchNorm, GroupNorm, MapNorm
from frugalvit.weights.translate import State

Pair = tuple[str, str]  # theirs, ours
COUNTER = "num_batches_tracked"  # of PyTorch's batch norm: used without a momentum only, so ours has none
Residual = BasicBlock | Bottleneck


def names(model: ConvNet) -> Iterator[Pair]:
    """(theirs, ours) for every tensor of a convolutional network, by the kind of its blocks."""
    if not isinstance(model.stem, Stem):
        raise unnamed(model.stem, "stem")
    if not isinstance(model.readout, MeanMaps):
        raise unnamed(model.readout, "readout")
    if any(isinstance(layer, InvertedBottleneck) for layer in model.layers):
        return efficientnet(model, model.stem)
    if any(isinstance(layer, Bottleneck) and layer.excite is not None for layer in model.layers):
        return regnet(model, model.stem)
    return resnet(model, model.stem)


def torchvision_names(model: ConvNet) -> Iterator[Pair]:
    """Its ResNets are named as timm's."""
    for index, layer in enumerate(model.layers):
        if not isinstance(layer, (BasicBlock, Bottleneck)) or getattr(layer, "excite", None) is not None:
            raise WeightsError(
                "torchvision names this family otherwise than timm, and only its ResNets are known. Use timm's file, or "
                "model 'torchvision:...'.",
                path=f"layers[{index}]",
            )
    return names(model)


def resnet(model: ConvNet, stem: Stem) -> Iterator[Pair]:
    """timm's and torchvision's ResNet."""
    yield "conv1.weight", "stem.branch.conv1.weight"
    yield from norm(stem.norm, "bn1", "stem.branch.norm1")
    for place, number, index, layer in staged(model.layers):
        if not isinstance(layer, (BasicBlock, Bottleneck)) or getattr(layer, "excite", None) is not None:
            raise unnamed(layer, f"layers[{index}]")
        theirs, ours = f"layer{place + 1}.{number}", f"layers.{index}"
        for one in range(1, 3 if isinstance(layer, BasicBlock) else 4):
            yield f"{theirs}.conv{one}.weight", f"{ours}.branch.conv{one}.weight"
            yield from norm(layer.norm, f"{theirs}.bn{one}", f"{ours}.branch.norm{one}")
        if projects(model.layers, stem, index):
            yield f"{theirs}.downsample.0.weight", f"{ours}.shortcut.conv.weight"
            yield from norm(layer.norm, f"{theirs}.downsample.1", f"{ours}.shortcut.norm")
    yield from both("fc", "readout.heads.class")


def regnet(model: ConvNet, stem: Stem) -> Iterator[Pair]:
    """timm's RegNetY, and DeiT's teacher, whose names timm kept."""
    yield "stem.conv.weight", "stem.branch.conv1.weight"
    yield from norm(stem.norm, "stem.bn", "stem.branch.norm1")
    for place, number, index, layer in staged(model.layers):
        if not isinstance(layer, Bottleneck):
            raise unnamed(layer, f"layers[{index}]")
        theirs, ours = f"s{place + 1}.b{number + 1}", f"layers.{index}"
        for one in range(1, 4):
            yield f"{theirs}.conv{one}.conv.weight", f"{ours}.branch.conv{one}.weight"
            yield from norm(layer.norm, f"{theirs}.conv{one}.bn", f"{ours}.branch.norm{one}")
        if layer.excite is not None:
            yield from both(f"{theirs}.se.fc1", f"{ours}.branch.excite.reduce")
            yield from both(f"{theirs}.se.fc2", f"{ours}.branch.excite.expand")
        if projects(model.layers, stem, index):
            yield f"{theirs}.downsample.conv.weight", f"{ours}.shortcut.conv.weight"
            yield from norm(layer.norm, f"{theirs}.downsample.bn", f"{ours}.shortcut.norm")
    yield from both("head.fc", "readout.heads.class")


def efficientnet(model: ConvNet, stem: Stem) -> Iterator[Pair]:
    """timm's EfficientNet."""
    yield "conv_stem.weight", "stem.branch.conv1.weight"
    yield from norm(stem.norm, "bn1", "stem.branch.norm1")
    *blocks, last = model.layers
    for place, number, index, layer in staged(blocks):
        if not isinstance(layer, InvertedBottleneck):
            raise unnamed(layer, f"layers[{index}]")
        theirs, ours = f"blocks.{place}.{number}", f"layers.{index}"
        convolutions = ("conv_dw", "conv_pw") if layer.expand == 1 else ("conv_pw", "conv_dw", "conv_pwl")
        for one, name in enumerate(convolutions, 1):
            yield f"{theirs}.{name}.weight", f"{ours}.branch.conv{one}.weight"
            yield from norm(layer.norm, f"{theirs}.bn{one}", f"{ours}.branch.norm{one}")
        if layer.excite is not None:
            yield from both(f"{theirs}.se.conv_reduce", f"{ours}.branch.excite.reduce")
            yield from both(f"{theirs}.se.conv_expand", f"{ours}.branch.excite.expand")
    if not isinstance(last, ConvNorm):
        raise unnamed(last, f"layers[{len(blocks)}]")
    yield "conv_head.weight", f"layers.{len(blocks)}.branch.conv1.weight"
    yield from norm(last.norm, "bn2", f"layers.{len(blocks)}.branch.norm1")
    yield from both("classifier", "readout.heads.class")


def timm_stem(tokenizer: ConvStem) -> Iterator[Pair]:
    """timm's hybrids; without stages, its backbone is the stem itself."""
    backbone = "patch_embed.backbone."
    root = f"{backbone}stem." if tokenizer.layers else backbone
    yield f"{root}conv.weight", "tokenizer.stem.branch.conv1.weight"
    yield from norm(tokenizer.stem.norm, f"{root}norm", "tokenizer.stem.branch.norm1")
    for place, number, index, layer in staged(tokenizer.layers):
        layer = bottleneck(layer, index)
        theirs, ours = f"{backbone}stages.{place}.blocks.{number}", f"tokenizer.layers.{index}"
        for one in range(1, 4):
            yield f"{theirs}.conv{one}.weight", f"{ours}.branch.conv{one}.weight"
            yield from norm(layer.norm, f"{theirs}.norm{one}", f"{ours}.branch.norm{one}")
        if projects(tokenizer.layers, tokenizer.stem, index):
            yield f"{theirs}.downsample.conv.weight", f"{ours}.shortcut.conv.weight"
            yield from norm(layer.norm, f"{theirs}.downsample.norm", f"{ours}.shortcut.norm")
    yield from both("patch_embed.proj", "tokenizer.projection")


def augreg_stem(tokenizer: ConvStem) -> Iterator[Pair]:
    """AugReg's hybrids, as Flax names them."""
    yield "conv_root/kernel", "tokenizer.stem.branch.conv1.weight"
    yield from flax_norm(tokenizer.stem.norm, "gn_root", "tokenizer.stem.branch.norm1")
    for place, number, index, layer in staged(tokenizer.layers):
        layer = bottleneck(layer, index)
        theirs, ours = f"block{place + 1}/unit{number + 1}", f"tokenizer.layers.{index}"
        for one in range(1, 4):
            yield f"{theirs}/conv{one}/kernel", f"{ours}.branch.conv{one}.weight"
            yield from flax_norm(layer.norm, f"{theirs}/gn{one}", f"{ours}.branch.norm{one}")
        if projects(tokenizer.layers, tokenizer.stem, index):
            yield f"{theirs}/conv_proj/kernel", f"{ours}.shortcut.conv.weight"
            yield from flax_norm(layer.norm, f"{theirs}/gn_proj", f"{ours}.shortcut.norm")
    yield "embedding/kernel", "tokenizer.projection.weight"
    yield "embedding/bias", "tokenizer.projection.bias"


# ------------------------------------------------------------------------------------------------ what the families share


def staged(layers: Iterable[object]) -> Iterator[tuple[int, int, int, object]]:
    """(stage, number in the stage, index in the list, layer)."""
    place, number, channels = -1, 0, None
    for index, layer in enumerate(layers):
        own = getattr(layer, "channels", None)
        place, number = (place, number + 1) if own == channels else (place + 1, 0)
        channels = own
        yield place, number, index, layer


def projects(layers: tuple[object, ...], stem: Stem, index: int) -> bool:
    """Whether the block's shortcut has parameters."""
    layer = layers[index]
    assert isinstance(layer, (BasicBlock, Bottleneck))
    before = getattr(layers[index - 1], "channels", None) if index else stem.channels
    return isinstance(layer.shortcut, Projected) and (layer.stride != 1 or layer.channels != before)


def norm(spec: MapNorm, theirs: str, ours: str) -> Iterator[Pair]:
    if not isinstance(spec, (BatchNorm, GroupNorm)):
        raise unnamed(spec, ours)
    yield from both(theirs, ours)
    if isinstance(spec, BatchNorm):
        yield f"{theirs}.running_mean", f"{ours}.running_mean"
        yield f"{theirs}.running_var", f"{ours}.running_var"


def flax_norm(spec: MapNorm, theirs: str, ours: str) -> Iterator[Pair]:
    if not isinstance(spec, GroupNorm):
        raise unnamed(spec, ours)
    yield f"{theirs}/scale", f"{ours}.weight"
    yield f"{theirs}/bias", f"{ours}.bias"


def both(theirs: str, ours: str) -> Iterator[Pair]:
    yield f"{theirs}.weight", f"{ours}.weight"
    yield f"{theirs}.bias", f"{ours}.bias"


def bottleneck(layer: object, index: int) -> Bottleneck:
    if not isinstance(layer, Bottleneck) or layer.excite is not None or not isinstance(layer.conv, StandardizedConvolution):
        raise unnamed(layer, f"tokenizer.layers[{index}]")
    return layer


def unnamed(part: object, path: str) -> WeightsError:
    name = type(part).__name__
    return WeightsError(
        f"no other library has a name for {name} here, so such weights can be neither read nor written.", path=path
    )


def without_counters(state: Mapping[str, Tensor]) -> State:
    """The state without what counts batches."""
    return {name: value for name, value in state.items() if not name.endswith(COUNTER)}


def with_counters(state: Mapping[str, Tensor]) -> State:
    """The inverse of `without_counters`: no batch was counted."""
    found: State = {}
    for name, value in state.items():
        found[name] = value
        if name.endswith("running_var"):
            found[f"{name.removesuffix('running_var')}{COUNTER}"] = torch.tensor(0)
    return found


def unlike(model: ConvNet) -> set[str]:
    """What names cannot say: choices that timm's networks of the same names do not have."""
    found = set()
    for layer in (model.stem, *model.layers):
        kind, rectifier = getattr(layer, "norm", BatchNorm()), getattr(layer, "activation", None)
        usual = "Silu" if any(isinstance(one, InvertedBottleneck) for one in model.layers) else "Relu"
        if not isinstance(kind, BatchNorm):
            found.add(type(kind).__name__)
        elif kind.eps != BatchNorm().eps:
            found.add(f"eps={kind.eps:g} in a norm")
        if type(rectifier).__name__ != usual:
            found.add(type(rectifier).__name__)
        if not isinstance(getattr(layer, "conv", None), Convolution):
            found.add(type(getattr(layer, "conv", None)).__name__)
    return found
