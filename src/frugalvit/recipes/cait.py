"""CaiT (Touvron et al. 2021b): DeiT's recipe, longer, with a drop rate for each size."""

from __future__ import annotations

from dataclasses import replace

from frugalvit.errors import SpecError
from frugalvit.recipes import deit
from frugalvit.training.duration import Epochs
from frugalvit.training.optimizer import AdamW
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Constant
from frugalvit.zoo.find import model as named

# the drop rate of every block, the same at all depths, in the paper's table of models
DROP_PATH = {
    "xxs24": 0.05,
    "xxs36": 0.1,
    "xs24": 0.05,
    "xs36": 0.1,
    "s24": 0.1,
    "s36": 0.2,
    "s48": 0.3,
    "m24": 0.2,
    "m36": 0.3,
    "m48": 0.4,
}


def published_drop_path(model: str) -> float:
    """The drop rate of a model of that name, `cait_xxs24_224`."""
    size = model.removeprefix("cait_").split("_")[0]
    if size not in DROP_PATH:
        raise SpecError(f"the paper has no rate for '{model}'. Set one, for example drop_path=0.1.", path="drop_path")
    return DROP_PATH[size]


def imagenet(*, model: str = "cait_xxs24_224", epochs: int = 400, batch: int = 1024, drop_path: float | None = None) -> Recipe:
    """CaiT on ImageNet-1k at 224 pixels: DeiT's recipe for 400 epochs, the paper's drop rate, evaluated on whole pictures.

    frugalvit train cait.imagenet model=cait_xxs36_224 --data IMAGENET --out runs/xxs36
    The paper, without a teacher: top-1 77.6 (XXS-24), 79.1 (XXS-36), 82.7 (S-24), 83.3 (S-36). Not run here.
    """
    rate = published_drop_path(model) if drop_path is None else drop_path
    made = deit.imagenet(model=model, epochs=epochs, batch=batch, drop_path=rate)
    return replace(made, model=named(model, image=224, drop_path=rate), data=replace(made.data, crop=1.0))


def imagenet_384(
    *, model: str = "cait_xxs24_384", epochs: int = 60, batch: int = 256, drop_path: float | None = None
) -> Recipe:
    """Fine-tuning at 384 or 448 pixels as the authors gave it for M-48 (deit issue 108): lr 5e-6, everything else as before.

    frugalvit train cait.imagenet_384 --init cait_xxs24_224 --data IMAGENET --out runs/xxs24_384
    The paper, without a teacher: top-1 80.4 (XXS-24), 81.8 (XXS-36), 84.3 (S-24), 84.8 (S-36). Not run here. Other sizes than
    M-48 are not documented, nor is the schedule: here DeiT's, constant after the warm-up. M-48 drops 0.3 here, not 0.4.
    """
    rate = min(published_drop_path(model), 0.3) if drop_path is None else drop_path
    made = deit.imagenet(model=model, epochs=epochs, batch=batch, drop_path=rate)
    return replace(
        made,
        data=replace(made.data, crop=1.0),
        optimizer=AdamW(5e-6, weight_decay=0.05),
        schedule=Constant(Epochs(5), start=1e-6),
    )
