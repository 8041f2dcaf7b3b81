"""A training as a value: model, data, objective, and how long and how fast to learn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from frugalvit.data.augment import Augment
from frugalvit.data.dataset import Dataset
from frugalvit.data.erase import Erasing
from frugalvit.data.mix import Mix, NoMix
from frugalvit.data.order import Order, Shuffled
from frugalvit.data.preprocess import Preprocess, means_for
from frugalvit.data.source import Source
from frugalvit.data.subset import Subset
from frugalvit.errors import SpecError
from frugalvit.nn.architecture import Architecture
from frugalvit.objective.objective import Objective
from frugalvit.training.average import Ema, EmaOver
from frugalvit.training.devices import PrecisionName
from frugalvit.training.duration import NOTHING, Duration, Epochs, Steps
from frugalvit.training.optimizer import Optimizer
from frugalvit.training.schedule import Schedule
from frugalvit.training.teacher import Teaching
from frugalvit.training.tune import Everything, Tune


@dataclass(frozen=True)
class Stored:
    """Pictures are decoded once into a file in the cache; those with a shorter side above `limit` are shrunk to it.

    `decoder` device: JPEGs by the GPU where torchvision can, whose pixels differ a little from Pillow's.
    """

    limit: int | None = None
    decoder: Literal["pillow", "device"] = "pillow"

    def __post_init__(self) -> None:
        if isinstance(self.limit, int) and self.limit < 1:
            raise SpecError(f"{self.limit} pixels. Use 1 and more, or none.", path="limit")


@dataclass(frozen=True)
class Data:
    """Which pictures, and what is done to them."""

    dataset: Dataset
    augment: Augment
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop: float = 0.875  # the share of the resized picture that evaluation keeps
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    order: Order = Shuffled()
    erase: Erasing | None = None
    mix: Mix = NoMix()
    subset: Subset | None = None
    unreadable: Literal["replaced", "refused"] = "replaced"  # a picture that cannot be read, by the next one, or the end
    store: Stored | None = None  # of the training pictures
    validate: Literal["val", "test"] = "val"  # the split that is measured on the way; test: as papers report their best epoch


@dataclass(frozen=True)
class EarlyStop:
    """Stop when validation has not improved for so long; the best weights are the result."""

    patience: Duration = Epochs(10)

    def __post_init__(self) -> None:
        if self.patience in NOTHING:
            raise SpecError("no patience at all would stop at the first validation. Use Epochs(10), say.", path="patience")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training but the paths and the device."""

    model: Architecture
    data: Data
    objective: Objective
    optimizer: Optimizer
    schedule: Schedule
    duration: Duration
    batch: int = 128
    accumulate: int = 1  # batches whose gradients are added up to one step
    clip: float | None = None  # of the gradient's norm
    average: Ema | EmaOver | None = None  # where given, the averaged weights are the result
    teaching: Teaching | None = None  # where the objective has terms that learn from a teacher
    tune: Tune = Everything()
    stop: EarlyStop | None = None
    precision: PrecisionName = "auto"
    path: Literal["auto", "plain", "sent", "decoded", "kept"] = "auto"  # plain: as defined, augmented by the host; sent: the
    # same pictures, the rest one CUDA graph; decoded: JPEG files, decoded, cropped and augmented by the device; kept: pictures
    # on the device, all one graph. Each has draws of its own
    deterministic: bool = False  # the same bits from every run on one kind of device, at some cost
    evaluate: Duration = Epochs(1)
    save: Duration = Epochs(1)
    keep: int = 2  # checkpoints
    log_every: int = 20  # steps
    nonfinite: int = 20  # steps in a row with a loss or gradient that is no number, until the training ends
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "accumulate", "keep", "log_every", "nonfinite"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise SpecError(f"{value}. Use 1 and more.", path=name)
        if isinstance(self.clip, (int, float)) and not self.clip > 0:
            raise SpecError(f"a norm of {self.clip:g}. Use a number above 0, or none.", path="clip")
        if isinstance(self.seed, int) and self.seed < 0:
            raise SpecError(f"{self.seed}. Use 0 and more.", path="seed")
        if self.duration in (Steps(0), Epochs(0)):
            unit = type(self.duration).__name__.lower()
            raise SpecError(f"a training of 0 {unit}. Use a number above 0.", path="duration")

    @property
    def pictures(self) -> int:
        """Pictures a step."""
        return self.batch * self.accumulate


def preprocess_of(recipe: Recipe) -> Preprocess:
    """What evaluation and prediction do with a picture."""
    image, data = recipe.model.image, recipe.data
    same = len(data.mean) == image.channels
    mean, std = (data.mean, data.std) if same else means_for(image.channels, data.mean, data.std)
    return Preprocess(image.height, image.width, mean, std, data.crop, data.interpolation)


def filled(recipe: Recipe, source: Source) -> Recipe:
    """The recipe with the number of classes that the data has; another number is an error."""
    classes = len(source.classes)
    if recipe.model.classes is None:
        return replace(recipe, model=replace(recipe.model, classes=classes))
    if recipe.model.classes != classes:
        raise SpecError(
            f"the model has {recipe.model.classes} classes, the data {classes}. Set model.classes={classes}, or none.",
            path="recipe.model.classes",
        )
    return recipe
