"""A convolutional network in front of a transformer: the hybrids of ViT and AugReg."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from frugalvit.errors import SpecError, at
from frugalvit.nn.conv_blocks import ConvLayer, Stem
from frugalvit.nn.init import FanInUniform, Init
from frugalvit.nn.network import next_layer
from frugalvit.nn.shape import Image, MapShape, Shape


@dataclass(frozen=True)
class ConvStem:
    """Patches of feature maps in place of pixels (Dosovitskiy et al. 2021, §3.1, "Hybrid Architecture")."""

    patch: int
    dim: int
    stem: Stem
    layers: tuple[ConvLayer, ...] = ()
    weight: Init = FanInUniform()
    bias: Init = FanInUniform()

    def build(self, image: Image) -> tuple[MapTokens, Shape]:
        with at("stem"):
            stem, maps = self.stem.build(image)
        layers = nn.ModuleList()
        for index, layer in enumerate(self.layers):
            with at(f"layers[{index}]"):
                module, maps = next_layer(layer, maps, MapShape)
                if getattr(module, "draws", 0):
                    raise SpecError("a tokenizer is given nothing to decide by. Use 0.", path="drop")
            layers.append(module)
        if min(self.patch, self.dim) < 1:
            raise SpecError(f"patches of {self.patch} x {self.patch} to a width of {self.dim}. Use sizes of 1 and more.")
        if maps.height % self.patch or maps.width % self.patch:
            raise SpecError(
                f"patches of {self.patch} x {self.patch} do not tile maps of {maps.height} x {maps.width} "
                f"(image {image}). Use a patch that divides both sides, or images of another size."
            )
        shape = Shape(self.dim, maps.height // self.patch, maps.width // self.patch)
        projection = MapProjection(maps.channels, self.patch, self.dim, self.weight, self.bias)
        return MapTokens(stem, layers, projection), shape


class MapTokens(nn.Module):
    def __init__(self, stem: nn.Module, layers: nn.ModuleList, projection: nn.Module):
        super().__init__()
        self.stem = stem
        self.layers = layers
        self.projection = projection

    def forward(self, image_BCHW: Tensor) -> Tensor:
        x_BCHW = self.stem(image_BCHW)
        for layer in self.layers:
            x_BCHW = layer(x_BCHW)
        return self.projection(x_BCHW)


class MapProjection(nn.Module):
    def __init__(self, channels: int, patch: int, dim: int, weight: Init, bias: Init):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, channels, patch, patch))
        self.bias = nn.Parameter(torch.empty(dim))
        weight.fill(self.weight, channels * patch**2, dim)
        bias.fill(self.bias, channels * patch**2, dim)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        x_BDHW = conv2d(x_BCHW, self.weight, self.bias, stride=self.weight.shape[2:])
        return x_BDHW.flatten(2).transpose(1, 2)
