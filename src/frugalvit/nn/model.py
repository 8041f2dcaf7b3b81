"""A model is a tokenizer, a list of layers, and a readout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at, whole_number
from frugalvit.nn.layers import Layer
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

    def build(self, *, taps: tuple[str, ...] = (), seed: int | None = None) -> VisionTransformer:
        """The module, with fresh parameters: from `seed` alone, or from torch's global generator as usual.

        Taps add tensors to the outputs: `tokens[i]`, what the i-th block leaves behind, and `attention[i]`, its map.
        """
        with at("model"), torch_limits(), torch.random.fork_rng() if seed is not None else nullcontext():
            if seed is not None:
                torch.manual_seed(seed)
            check_fields(self)
            if self.classes is None or self.classes < 1:
                raise SpecError(f"{self.classes} classes. Set how many there are, for example classes=10.", path="classes")
            with at("tokenizer"):
                tokenizer, shape = self.tokenizer.build(self.image)
            layers, shapes = nn.ModuleList(), [shape]
            for index, layer in enumerate(self.layers):
                with at(f"layers[{index}]"):
                    built = layer.build(shape)
                    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[1], Shape)):
                        raise SpecError(f"{type(layer).__name__}.build must return (module, the Shape it leaves behind).")
                module, shape = built
                layers.append(module)
                shapes.append(shape)
            with at("readout"):
                readout = self.readout.build(shape, self.classes)
            return VisionTransformer(self, tokenizer, layers, readout, shapes, taps)


@contextmanager
def torch_limits() -> Iterator[None]:
    """Sizes that torch cannot hold, as an error of ours."""
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError, TypeError) as error:
        if isinstance(error, TypeError) and "verflow" not in str(error):
            raise
        raise SpecError(f"torch cannot build it: {str(error).splitlines()[0]}. Use smaller sizes.") from error


class VisionTransformer(nn.Module):
    """The built model. It holds no randomness: stochastic depth reads `draws`, which the caller makes."""

    def __init__(
        self,
        spec: Model,
        tokenizer: nn.Module,
        layers: nn.ModuleList,
        readout: nn.Module,
        shapes: list[Shape],
        taps: tuple[str, ...],
    ):
        super().__init__()
        self.spec = spec
        self.tokenizer = tokenizer
        self.layers = layers
        self.readout = readout
        self.shapes = shapes  # after the tokenizer, then after each layer
        self.rows = [int(getattr(layer, "draws", 0)) for layer in layers]
        self.taps = tapped(layers, taps)

    @property
    def draws(self) -> int:
        """How many rows of draws a training step needs: one per random decision."""
        return sum(self.rows)

    def random_draws(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Uniform draws_RB for one training step, on the parameters' device."""
        device = next(self.parameters()).device
        return torch.rand(self.draws, batch, generator=generator, device=device)

    def forward(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        """The logits_BC of every head by name, always, and the taps that were asked for."""
        tokens_BND, outputs = self.run(image_BCHW, draws)
        return self.readout(tokens_BND) | outputs

    def features(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        """The vector_BD that each head reads, by the head's name."""
        if not hasattr(self.readout, "features"):
            raise SpecError(f"{type(self.readout).__name__} shows no features. Give it features(x) -> dict.", path="readout")
        return self.readout.features(self.run(image_BCHW, draws)[0])  # type: ignore[operator]

    def run(self, image_BCHW: Tensor, draws: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        self.refuse_misfits(image_BCHW, draws)
        outputs: dict[str, Tensor] = {}
        x_BND = self.tokenizer(image_BCHW)
        row = 0
        for index, (layer, rows) in enumerate(zip(self.layers, self.rows, strict=True)):
            wanted = self.taps.get(index, {})
            given = (draws[row : row + rows],) if rows and layer.training and draws is not None else ()
            if "attention" in wanted:
                x_BND, attention_BHNN = layer.explained(x_BND, *given)  # type: ignore[operator]
                outputs |= dict.fromkeys(wanted["attention"], attention_BHNN)
            else:
                x_BND = layer(x_BND, *given)
            outputs |= dict.fromkeys(wanted.get("tokens", ()), x_BND)
            row += rows
        return x_BND, outputs

    def refuse_misfits(self, image_BCHW: Tensor, draws: Tensor | None) -> None:
        image = self.spec.image
        if image_BCHW.ndim != 4 or image_BCHW.shape[1:] != (image.channels, image.height, image.width):
            raise SpecError(
                f"a batch of shape {tuple(image_BCHW.shape)} for a model of images B x {image.channels} x {image}. "
                "Resize the pictures, or build the model at their size (image=..., channels=...).",
                path="image",
            )
        dropping = any(rows and layer.training for layer, rows in zip(self.layers, self.rows, strict=True))
        if dropping and draws is None:
            raise SpecError(
                "this model drops branches at random (drop > 0) and was given nothing to decide by. "
                "Pass draws=module.random_draws(len(image)), or call module.eval().",
                path="draws",
            )
        if dropping and draws is not None and draws.shape != (self.draws, image_BCHW.shape[0]):
            wanted = (self.draws, image_BCHW.shape[0])
            raise SpecError(
                f"shape {tuple(draws.shape)}. Expected {wanted}, as module.random_draws(batch) makes it.", path="draws"
            )


def tapped(layers: nn.ModuleList, taps: tuple[str, ...]) -> dict[int, dict[str, list[str]]]:
    """Which outputs to keep, by layer: `{4: {"tokens": ["tokens[2]"]}}`. Blocks are the layers that have attention."""
    if isinstance(taps, str):
        raise SpecError(f"taps are a tuple of names. Write ({taps!r},).", path="taps")
    blocks = [index for index, layer in enumerate(layers) if hasattr(layer, "attention")]
    found: dict[int, dict[str, list[str]]] = {}
    for tap in taps:
        kind, _, rest = tap.partition("[")
        number = whole_number(rest.removesuffix("]"))
        if kind not in ("tokens", "attention") or not rest.endswith("]") or number is None:
            raise SpecError(f"'{tap}' is not a tap. Use tokens[i] or attention[i], i counting blocks from 0.", path="taps")
        if not -len(blocks) <= number < len(blocks):
            raise SpecError(f"'{tap}': there are {len(blocks)} blocks, 0 to {len(blocks) - 1}.", path="taps")
        index = blocks[number]
        if kind == "attention" and not hasattr(layers[index].attention, "explained"):
            name = type(layers[index].attention).__name__
            raise SpecError(f"'{tap}': {name} shows no map. Give it explained(x) -> (y, attention).", path="taps")
        found.setdefault(index, {}).setdefault(kind, []).append(tap)
    return found
