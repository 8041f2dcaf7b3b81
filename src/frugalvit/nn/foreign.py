"""Classifiers of other libraries, by name: built when asked for, never downloaded."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, Self

from torch import Tensor, nn

from frugalvit.errors import SpecError, at, suggestion
from frugalvit.nn.ends import Ends, ends_of
from frugalvit.nn.map_norm import keep_frozen_statistics
from frugalvit.nn.network import Network, seeded, torch_limits
from frugalvit.nn.shape import Image, MapShape, Shape
from frugalvit.spec import check_fields

Library = Literal["timm", "torchvision"]
LIBRARIES = ("timm", "torchvision")


@dataclass(frozen=True)
class ForeignModel:
    """The description of a timm or torchvision classifier, with fresh weights. `classes=None` is for the data to fill in."""

    library: Library
    name: str
    classes: int | None
    image: Image

    @property
    def heads(self) -> tuple[str, ...]:
        """The names of the outputs' logits."""
        return ("class",)

    def build(self, *, taps: tuple[str, ...] = (), seed: int | None = None) -> ForeignNetwork:
        """The module, with fresh parameters: from `seed` alone, or from torch's global generator as usual."""
        with at("model"), torch_limits(), seeded(seed):
            check_fields(self)
            if taps:
                raise SpecError(f"a model of {self.library} has no places to tap.", path="taps")
            if self.classes is None or self.classes < 1:
                raise SpecError(f"{self.classes} classes. Set how many there are, for example classes=10.", path="classes")
            refuse_unknown(self.library, self.name)
            build = from_timm if self.library == "timm" else from_torchvision
            return ForeignNetwork(self, build(self.name, self.classes, self.image))


class ForeignNetwork(Network):
    """The other library's module, with named heads. What it drops at random in training, one draw decides.

    One that drew nothing the first time is taken to never draw: then nothing waits for the draw, and a step can be captured.
    """

    first = "network"
    drops = True  # until it is seen
    spec: ForeignModel
    network: nn.Module

    def __init__(self, spec: ForeignModel, network: nn.Module):
        from frugalvit.nn.untraced import decided  # with torch's compiler, which takes seconds to load

        super().__init__(spec, network, nn.ModuleList(), nn.Identity(), [], {})
        self.decided = decided

    @property
    def draws(self) -> int:
        return 1

    def places(self) -> Iterator[tuple[str, nn.Module, Shape | MapShape | None]]:
        yield self.first, self.network, None

    def forward(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        """The logits_BC under "class". Without draws, torch's global generator decides as in the library itself."""
        self.refuse_misfits(image_BCHW, draws)
        if draws is not None and self.training and self.drops:
            outputs, self.drops = self.decided(self.network, image_BCHW, draws)
        else:
            outputs = self.network(image_BCHW)
        return {"class": getattr(outputs, "logits", outputs)}  # torchvision's Inception returns auxiliary logits beside

    def features(self, image_BCHW: Tensor, draws: Tensor | None = None) -> dict[str, Tensor]:
        """The vector_BD that the last linear map reads."""
        seen: list[Tensor] = []
        hook = self.network.get_submodule(self.classifier()).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            self(image_BCHW, draws)
        finally:
            hook.remove()
        return {"class": seen[-1]}

    def train(self, mode: bool = True) -> Self:
        """As usual, but for batch norms that do not learn: they keep their statistics, as ours do."""
        super().train(mode)
        keep_frozen_statistics(self.network)
        return self

    def ends(self) -> Ends:
        """The maps that give the logits, and the norms that stand last before these."""
        image = self.spec.image
        found = ends_of(self, (image.channels, image.height, image.width))
        outputs = [next(self.get_submodule(name).parameters()).shape[0] for name in found.heads]
        return found if set(outputs) == {self.spec.classes} else Ends((), found.norms)

    def classifier(self) -> str:
        """The path of the one linear map that ends in the classes."""
        known = {name: one for name, one in self.network.named_modules() if isinstance(one, nn.Linear)}
        ends = [name for name, one in known.items() if one.out_features == self.spec.classes]
        last = list(known)[-1:]
        if not ends or (len(ends) > 1 and ends[-1:] != last):
            raise SpecError(f"{self.spec.name} does not end in one linear map, so it shows no features.", path="readout")
        return ends[-1]


class OwnDraws(RuntimeError):
    """Of a CUDA graph: what decides these draws would be read on the host."""


def from_timm(name: str, classes: int, image: Image) -> nn.Module:
    timm = imported("timm")
    sizes: dict[str, Any] = {"num_classes": classes, "in_chans": image.channels}
    known = timm.get_pretrained_cfg(name)
    if known is not None and known.fixed_input_size and tuple(known.input_size[1:]) != (image.height, image.width):
        sizes["img_size"] = (image.height, image.width)
    try:
        return timm.create_model(name, pretrained=False, **sizes)
    except (AssertionError, TypeError, ValueError) as error:
        raise SpecError(f"timm cannot build {name} for images of {image} ({error}).", path="image") from error


def from_torchvision(name: str, classes: int, image: Image) -> nn.Module:
    models = imported("torchvision").models
    if image.channels != 3:
        raise SpecError(
            f"{image.channels} channels. torchvision's models take 3: use channels=3, or a model of timm.",
            path="image.channels",
        )
    sizes = {"image_size": image.height} if name.startswith("vit_") else {}
    if sizes and image.height != image.width:
        raise SpecError(f"torchvision's {name} takes squares, not {image}.", path="image")
    if name in ("googlenet", "inception_v3"):
        sizes = {"init_weights": True}
    return models.get_model(name, weights=None, num_classes=classes, **sizes)


def usual_image(library: str, name: str, channels: int) -> Image:
    """The size of pictures that a model is meant for."""
    refuse_unknown(library, name)
    known = imported("timm").get_pretrained_cfg(name) if library == "timm" else None
    height, width = known.input_size[1:] if known is not None else (224, 224)
    return Image(height, width, channels)


def refuse_unknown(library: str, name: str) -> None:
    if library not in LIBRARIES:
        raise SpecError(f"no library is called '{library}'. {suggestion(library, LIBRARIES)}", path="library")
    if library == "timm":
        timm = imported("timm")
        known, there = timm.list_models(), timm.is_model(name)
    else:
        models = imported("torchvision").models
        known = models.list_models(module=models)
        there = name in known
    if not there:
        raise SpecError(f"{library} has no model '{name}'. {suggestion(name, known)}", path="name")


def imported(library: str) -> ModuleType:
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise SpecError(f"{library} is not installed. Run: pip install {library}", path="library") from error
