"""A model is a tokenizer, a list of layers, and a readout."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from frugalvit.errors import SpecError, at
from frugalvit.nn.layers import Layer
from frugalvit.nn.network import Network, Taps, grown, seeded, some_classes, tapped, torch_limits
from frugalvit.nn.readout import Readout
from frugalvit.nn.shape import Image, Shape
from frugalvit.nn.tokenizer import Tokenizer
from frugalvit.spec import check_fields


@dataclass(frozen=True)
class Model:
    """The description of a model. `classes=None` is for the data to fill in."""

    tokenizer: Tokenizer
    layers: tuple[Layer, ...]
    readout: Readout
    classes: int | None
    image: Image

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the outputs' logits."""
        return tuple(getattr(self.readout, "names", ("class",)))

    def build(self, *, taps: tuple[str, ...] = (), seed: int | None = None) -> VisionTransformer:
        """The module, with fresh parameters: from `seed` alone, or from torch's global generator as usual.

        Taps add tensors to the outputs: `tokens[i]`, what the i-th block leaves behind, and `attention[i]`, its map.
        """
        with at("model"), torch_limits(), seeded(seed):
            check_fields(self)
            classes = some_classes(self.classes)
            with at("tokenizer"):
                tokenizer, shape = self.tokenizer.build(self.image)
            layers, shapes = grown(self.layers, shape, Shape)
            with at("readout"):
                readout = self.readout.build(shapes[-1], classes)
            return VisionTransformer(self, tokenizer, layers, readout, shapes, block_taps(layers, taps))


class VisionTransformer(Network):
    """The built model: tokenizer, layers, readout."""

    spec: Model
    tokenizer: nn.Module
    shapes: list[Shape]


def block_taps(layers: nn.ModuleList, taps: tuple[str, ...]) -> Taps:
    """Blocks are the layers that have attention; a map can be tapped where the attention shows it."""
    found = tapped([i for i, layer in enumerate(layers) if hasattr(layer, "attention")], ("tokens", "attention"), taps)
    for index, kinds in found.items():
        if "attention" in kinds and not hasattr(layers[index].attention, "explained"):
            name = type(layers[index].attention).__name__
            tap = kinds["attention"][0]
            raise SpecError(f"'{tap}': {name} shows no map. Give it explained(x) -> (y, attention).", path="taps")
    return found
