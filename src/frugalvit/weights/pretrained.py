"""What timm and torchvision say of their own weights: where they lie, and which pictures they expect. Nothing is built."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from frugalvit.errors import WeightsError
from frugalvit.nn.foreign import imported, refuse_unknown
from frugalvit.weights.fetch import HUB, Fetched, download, fetch
from frugalvit.weights.published import Published


@dataclass(frozen=True)
class Pretrained:
    """The weights that a library has for one of its models."""

    released: Published
    size: tuple[int, int]  # of the pictures, height and width
    interpolation: Literal["bicubic", "bilinear"]
    hub: str = ""  # hf-hub:owner/name, where they lie there

    def fetch(self) -> Fetched:
        """The file on disk, downloaded if it must be."""
        if self.hub:
            return replace(fetch(self.hub), released=self.released)
        if not self.released.url:
            raise WeightsError("there are no pretrained weights. Give a file of weights.", path=self.released.name)
        return Fetched(download(self.released), self.released.origin, self.released.classes, released=self.released)


def pretrained(library: str, name: str) -> Pretrained | None:
    """What the library knows of that model's weights; None where it says nothing of the model."""
    refuse_unknown(library, name)
    return of_timm(name) if library == "timm" else of_torchvision(name)


def of_timm(name: str) -> Pretrained | None:
    known = imported("timm").get_pretrained_cfg(name)
    if known is None:
        return None
    hub = f"{HUB}{known.hf_hub_id}" if known.hf_hub_id else ""
    file = Published(f"timm:{name}", name, known.url or "", "timm", known.num_classes, known.mean, known.std, known.crop_pct)
    return Pretrained(file, tuple(known.input_size[1:]), filter_named(known.interpolation), hub)


def of_torchvision(name: str) -> Pretrained | None:
    weights: Any = imported("torchvision").models.get_model_weights(name).DEFAULT
    made = weights.transforms()
    side, covered = made.crop_size[0], made.resize_size[0]
    digits = weights.url.removesuffix(".pth").rpartition("-")[2]  # torch.hub's file names end in their hash
    file = Published(
        f"torchvision:{name}",
        name,
        weights.url,
        "torchvision",
        len(weights.meta["categories"]),
        tuple(made.mean),
        tuple(made.std),
        min(side / covered, 1.0),
        digits,
    )
    return Pretrained(file, (side, side), filter_named(made.interpolation.value))


def filter_named(name: str) -> Literal["bicubic", "bilinear"]:
    """Ours, of timm's and torchvision's filters; nearest and the like are no filters to distill with."""
    return "bilinear" if name == "bilinear" else "bicubic"
