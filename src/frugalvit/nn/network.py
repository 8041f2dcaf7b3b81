"""What all built models are: an image goes through a first part, a list of layers and a readout to named heads."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError, at, whole_number
from frugalvit.nn import trunk
from frugalvit.nn.shape import Image, MapShape, Shape

Taps = dict[int, dict[str, list[str]]]  # {4: {"tokens": ["tokens[2]"]}}: which outputs to keep, by layer


class Description(Protocol):
    """What a network keeps of the spec that built it: the pictures it takes, and how many classes it tells apart."""

    @property
    def image(self) -> Image: ...

    @property
    def classes(self) -> int | None: ...


SEEDING = threading.RLock()  # torch's generator is one for all threads


class Network(nn.Module):
    """A built model. It holds no randomness: stochastic depth and dropout read `draws`, which the caller makes."""

    first = "tokenizer"  # the name of the part in front of the layers

    def __init__(
        self,
        spec: Description,
        first: nn.Module,
        layers: nn.ModuleList,
        readout: nn.Module,
        shapes: list[Shape] | list[MapShape],
        taps: Taps,
    ):
        super().__init__()
        self.spec = spec
        setattr(self, self.first, first)
        self.layers = layers
        self.readout = readout
        self.shapes = shapes  # after the first part, then after each layer
        self.rows = [int(getattr(layer, "draws", 0)) for layer in layers]
        self.taps = taps
        self.trunks = trunk.trunks([*layers], taps)  # runs of layers that a kernel of ours takes together
        self.stream: torch.dtype | None = None  # of what flows between layers; None: as the layers leave it

    @property
    def draws(self) -> int:
        """How many rows of draws a training step needs: one per random decision."""
        return sum(self.rows)

    def random_draws(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """Uniform draws_RB for one training step, on the parameters' device."""
        device = next(self.parameters()).device
        return torch.rand(self.draws, batch, generator=generator, device=device)

    def places(self) -> Iterator[tuple[str, nn.Module, Shape | MapShape | None]]:
        """The parts in the order that an image meets them: path, module, and the shape it leaves behind."""
        yield self.first, getattr(self, self.first), self.shapes[0]
        for index, layer in enumerate(self.layers):
            yield f"layers[{index}]", layer, self.shapes[index + 1]
        yield "readout", self.readout, None

    def forward(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        """The logits_BC of every head by name, always, and the taps that were asked for."""
        x, outputs = self.run(image_BCHW, draws)
        return self.readout(x) | outputs

    def features(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        """The vector_BD that each head reads, by the head's name."""
        if not hasattr(self.readout, "features"):
            raise SpecError(f"{type(self.readout).__name__} shows no features. Give it features(x) -> dict.", path="readout")
        return self.readout.features(self.run(image_BCHW, draws)[0])  # type: ignore[operator]

    def run(self, image_BCHW: Tensor, draws: Tensor | None) -> tuple[Tensor, dict[str, Tensor]]:
        self.refuse_misfits(image_BCHW, draws)
        outputs: dict[str, Tensor] = {}
        x = getattr(self, self.first)(image_BCHW)
        given = self.shared_out(draws)
        behind = 0
        for index, layer in enumerate(self.layers):
            if index in self.trunks and trunk.pays(x, blocks := self.layers[index : self.trunks[index]]):  # type: ignore[arg-type]
                behind = self.trunks[index]
                x = trunk.through(blocks, x, given[index:behind])  # type: ignore[arg-type]
            if index < behind:
                continue
            wanted = self.taps.get(index, {})
            rows = () if given[index] is None else (given[index],)
            if "attention" in wanted:
                x, attention_BHNN = layer.explained(x, *rows)  # type: ignore[operator]
                outputs |= dict.fromkeys(wanted["attention"], attention_BHNN)
            else:
                x = layer(x, *rows)
            x = x if self.stream is None else x.to(self.stream)
            outputs |= dict.fromkeys(wanted.get("tokens", wanted.get("maps", ())), x)
        return x, outputs

    def shared_out(self, draws: Tensor | None) -> list[Tensor | None]:
        """The draws_RB of each layer; None where it decides nothing."""
        found: list[Tensor | None] = []
        row = 0
        for layer, rows in zip(self.layers, self.rows, strict=True):
            found.append(draws[row : row + rows] if rows and layer.training and draws is not None else None)
            row += rows
        return found

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
                "this model drops branches at random (drop > 0) or units (dropout > 0), and was given nothing to decide by. "
                "Pass draws=module.random_draws(len(image)), or call module.eval().",
                path="draws",
            )
        if dropping and draws is not None and draws.shape != (self.draws, image_BCHW.shape[0]):
            wanted = (self.draws, image_BCHW.shape[0])
            raise SpecError(
                f"shape {tuple(draws.shape)}. Expected {wanted}, as module.random_draws(batch) makes it.", path="draws"
            )


def tapped(blocks: list[int], kinds: tuple[str, ...], taps: tuple[str, ...]) -> Taps:
    """Which outputs to keep, by layer. `blocks` are the indices of the layers that taps count, `kinds` what each shows."""
    if isinstance(taps, str):
        raise SpecError(f"taps are a tuple of names. Write ({taps!r},).", path="taps")
    found: Taps = {}
    for tap in taps:
        kind, _, rest = tap.partition("[")
        number = whole_number(rest.removesuffix("]"))
        if kind not in kinds or not rest.endswith("]") or number is None:
            known = " or ".join(f"{one}[i]" for one in kinds)
            raise SpecError(f"'{tap}' is not a tap. Use {known}, i counting blocks from 0.", path="taps")
        if not -len(blocks) <= number < len(blocks):
            raise SpecError(f"'{tap}': there are {len(blocks)} blocks, 0 to {len(blocks) - 1}.", path="taps")
        found.setdefault(blocks[number], {}).setdefault(kind, []).append(tap)
    return found


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Inside, fresh parameters are a function of the seed, whatever other threads build; without one, as torch draws.

    Parameters are made on the CPU unless the caller says otherwise, so the generators of CUDA are left alone.
    """
    if seed is None:
        yield
        return
    elsewhere = torch.get_default_device().type == "cuda"
    with SEEDING, torch.random.fork_rng(devices=None if elsewhere else []):
        torch.default_generator.manual_seed(seed)
        if elsewhere:
            torch.cuda.manual_seed_all(seed)
        yield


@contextmanager
def torch_limits() -> Iterator[None]:
    """Sizes that torch cannot hold, as an error of ours."""
    try:
        yield
    except (RuntimeError, OverflowError, MemoryError, TypeError) as error:
        if isinstance(error, TypeError) and "verflow" not in str(error):
            raise
        raise SpecError(f"torch cannot build it: {str(error).splitlines()[0]}. Use smaller sizes.") from error


def next_layer(layer: Any, shape: Any, kind: type) -> Any:
    """A layer built on `shape`: (module, the shape it leaves behind), or an error that says what is missing."""
    built = layer.build(shape)
    if not (isinstance(built, tuple) and len(built) == 2 and isinstance(built[1], kind)):
        raise SpecError(f"{type(layer).__name__}.build must return (module, the {kind.__name__} it leaves behind).")
    return built


def grown(specs: Sequence[Any], shape: Any, kind: type) -> tuple[nn.ModuleList, list[Any]]:
    """The layers built one on the other, and the shapes they meet: the first given, then what each leaves behind."""
    layers, shapes = nn.ModuleList(), [shape]
    for index, spec in enumerate(specs):
        with at(f"layers[{index}]"):
            module, left = next_layer(spec, shapes[-1], kind)
        layers.append(module)
        shapes.append(left)
    return layers, shapes


def some_classes(classes: int | None) -> int:
    """The number of classes, if there is one."""
    if classes is None or classes < 1:
        raise SpecError(f"{classes} classes. Set how many there are, for example classes=10.", path="classes")
    return classes
