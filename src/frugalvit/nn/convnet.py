"""A convolutional network is a stem, a list of layers, and a readout: a second kind of model beside `Model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from frugalvit.errors import at
from frugalvit.nn.binary_conv import BareStem
from frugalvit.nn.conv_blocks import ConvLayer, Stem, StemPart
from frugalvit.nn.linear import Dense, Linear
from frugalvit.nn.network import Network, grown, seeded, some_classes, tapped, torch_limits
from frugalvit.nn.shape import Image, MapShape
from frugalvit.spec import check_fields


class MapReadoutPart(Protocol):
    """What may stand in `ConvNet.readout`."""

    def build(self, shape: MapShape, classes: int) -> nn.Module:
        """A module x_BCHW -> {"class": logits_BC}, with `features(x_BCHW)`, the dict of vectors_BD that it reads."""
        ...


@dataclass(frozen=True)
class MeanMaps:
    """A linear head on the mean of each map: global average pooling (Lin et al. 2014)."""

    linear: Linear = Dense()

    def build(self, shape: MapShape, classes: int) -> MapHeads:
        return MapHeads(nn.ModuleDict({"class": self.linear.build(shape.channels, classes)}))


class MapHeads(nn.Module):
    def __init__(self, heads: nn.ModuleDict):
        super().__init__()
        self.heads = heads

    def features(self, x_BCHW: Tensor) -> dict[str, Tensor]:
        """The mean of each map."""
        return dict.fromkeys(self.heads, x_BCHW.mean((2, 3)))

    def forward(self, x_BCHW: Tensor) -> dict[str, Tensor]:
        return {name: self.heads[name](x_BD) for name, x_BD in self.features(x_BCHW).items()}


FirstMaps = Stem | BareStem | StemPart  # what may stand in `ConvNet.stem`
MapReadout = MeanMaps | MapReadoutPart  # what may stand in `ConvNet.readout`


@dataclass(frozen=True)
class ConvNet:
    """The description of a convolutional network. `classes=None` is for the data to fill in."""

    stem: FirstMaps
    layers: tuple[ConvLayer, ...]
    readout: MapReadout
    classes: int | None
    image: Image

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the outputs' logits."""
        return ("class",)

    def build(self, *, taps: tuple[str, ...] = (), seed: int | None = None) -> ConvolutionalNetwork:
        """The module, with fresh parameters: from `seed` alone, or from torch's global generator as usual.

        Taps add tensors to the outputs: `maps[i]`, what the i-th layer leaves behind.
        """
        with at("model"), torch_limits(), seeded(seed):
            check_fields(self)
            classes = some_classes(self.classes)
            with at("stem"):
                stem, shape = self.stem.build(self.image)
            layers, shapes = grown(self.layers, shape, MapShape)
            with at("readout"):
                readout = self.readout.build(shapes[-1], classes)
            kept = tapped(list(range(len(layers))), ("maps",), taps)
            return ConvolutionalNetwork(self, stem, layers, readout, shapes, kept)


class ConvolutionalNetwork(Network):
    """The built network: stem, layers, readout."""

    first = "stem"
    spec: ConvNet
    stem: nn.Module
    shapes: list[MapShape]
