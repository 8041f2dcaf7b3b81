"""Foreign weights made into a classifier of ours."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from frugalvit.assign import override
from frugalvit.data.preprocess import Preprocess, means_for
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import DataError, SpecError, WeightsError
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.norm import LayerNorm
from frugalvit.spec import swap
from frugalvit.weights.fetch import Fetched
from frugalvit.weights.load import ORIGINS, load_weights
from frugalvit.weights.published import IMAGENET, Published, published
from frugalvit.weights.resample import Bicubic, Resample


def adopt(
    model: Architecture,
    fetched: Fetched,
    *,
    origin: str = "",
    like: str = "",
    changes: Sequence[str] = (),
    classes: Path | None = None,
    resample: Resample = Bicubic(),
    grid: tuple[int, int] | None = None,
    heads: Literal["kept", "fresh"] = "fresh",
) -> Classifier:
    """A classifier with the fetched weights.

    `like` is the released model whose pictures these weights expect; `changes` edit the rest of the description, as in
    `preprocess.crop=1.0` or `fusion=SumSoftmax`; `classes` is a file of class names; `heads="kept"` makes it an error when
    the file has another number of classes than the model.
    """
    if not fetched.path.exists():
        raise WeightsError("there is no such file or folder, and no model of that name.", path=str(fetched.path))
    if not (origin or fetched.origin):
        raise WeightsError(f"whose names does it have? Say --origin, one of: {', '.join(ORIGINS)}.", path=str(fetched.path))
    released = fetched.released or known(like)
    names = fetched.names if len(fetched.names) == model.classes and classes is None else class_names(model, classes)
    if fetched.eps is not None:
        norm = LayerNorm(fetched.eps)
        model = swap(model, LayerNorm, lambda _: norm)
    spec = ClassifierSpec(model, preprocess_of(model, released), names)
    spec = override(spec, *changes)
    module = spec.model.build(seed=0)
    done = load_weights(module, fetched.path, origin or fetched.origin, resample=resample, grid=grid)
    if done.fresh and heads == "kept":
        raise WeightsError(
            f"{' '.join(done.fresh)} Set classes=... to the file's, or to yours for a fresh head.", path=str(fetched.path)
        )
    return Classifier(spec, module).eval()


def known(name: str) -> Published | None:
    try:
        return published(name)
    except WeightsError:
        return None


def preprocess_of(model: Architecture, released: Published | None) -> Preprocess:
    colors = (released.mean, released.std) if released else IMAGENET
    mean, std = means_for(model.image.channels, *colors)
    crop = released.crop if released else 0.875
    return Preprocess(model.image.height, model.image.width, mean, std, crop)


def framing(preprocess: Preprocess) -> dict[str, str]:
    """How pictures are shown, as `import` takes it; their size comes with the model."""
    return {
        "preprocess.mean": ",".join(map(str, preprocess.mean)),
        "preprocess.std": ",".join(map(str, preprocess.std)),
        "preprocess.crop": str(preprocess.crop),
        "preprocess.interpolation": preprocess.interpolation,
    }


def class_names(model: Architecture, file: Path | None) -> tuple[str, ...]:
    """From a text file (a name a line) or a JSON list; without one, ImageNet's for 1000 classes, else numbers."""
    if model.classes is None:
        raise SpecError("how many classes are there? Set classes=...", path="classes")
    if file is None:
        return imagenet_names() if model.classes == 1000 else tuple(str(index) for index in range(model.classes))
    try:
        text = file.read_text(encoding="utf-8")
        names = json.loads(text) if file.suffix == ".json" else [line.strip() for line in text.splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"cannot be read as class names ({error}).", path=str(file)) from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError("expected a JSON list of names, or a text file with a name a line.", path=str(file))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"names '{twice[0]}' more than once. Give each class a name of its own.", path=str(file))
    if len(names) != model.classes:
        raise DataError(f"{len(names)} names for {model.classes} classes. Set classes={len(names)}.", path=str(file))
    return tuple(names)


def imagenet_names() -> tuple[str, ...]:
    from torchvision.models import ResNet18_Weights

    return tuple(ResNet18_Weights.DEFAULT.meta["categories"])
