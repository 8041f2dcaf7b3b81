"""FrugalViT: vision transformers for people with little data, little compute and few bits."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# PEP 562: a name is imported when it is first used, so that parts without torch stay without it
_HOMES = {
    "frugalvit.assign": ("override",),
    "frugalvit.deploy.classifier": ("Classifier", "load"),
    "frugalvit.deploy.native": ("load_packed",),
    "frugalvit.outline": ("describe",),
    "frugalvit.errors": ("DataError", "FrugalError", "SpecError", "WeightsError"),
    "frugalvit.measure.cost": ("cost",),
    "frugalvit.nn.model": ("Model",),
    "frugalvit.nn.readout": ("MeanLogits", "SumSoftmax", "fuse"),
    "frugalvit.recipes.find": ("recipe",),
    "frugalvit.run": ("fit", "train"),
    "frugalvit.seeds": ("train_seeds",),
    "frugalvit.spec": ("decode", "encode", "swap"),
    "frugalvit.weights.load": ("export_weights", "load_weights"),
    "frugalvit.zoo.find": ("model", "models"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

if TYPE_CHECKING:
    from frugalvit.assign import override as override
    from frugalvit.deploy.classifier import Classifier as Classifier
    from frugalvit.deploy.classifier import load as load
    from frugalvit.deploy.native import load_packed as load_packed
    from frugalvit.errors import DataError as DataError
    from frugalvit.errors import FrugalError as FrugalError
    from frugalvit.errors import SpecError as SpecError
    from frugalvit.errors import WeightsError as WeightsError
    from frugalvit.measure.cost import cost as cost
    from frugalvit.nn.model import Model as Model
    from frugalvit.nn.readout import MeanLogits as MeanLogits
    from frugalvit.nn.readout import SumSoftmax as SumSoftmax
    from frugalvit.nn.readout import fuse as fuse
    from frugalvit.outline import describe as describe
    from frugalvit.recipes.find import recipe as recipe
    from frugalvit.run import fit as fit
    from frugalvit.run import train as train
    from frugalvit.seeds import train_seeds as train_seeds
    from frugalvit.spec import decode as decode
    from frugalvit.spec import encode as encode
    from frugalvit.spec import swap as swap
    from frugalvit.weights.load import export_weights as export_weights
    from frugalvit.weights.load import load_weights as load_weights
    from frugalvit.zoo.find import model as model
    from frugalvit.zoo.find import models as models

__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'frugalvit' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
