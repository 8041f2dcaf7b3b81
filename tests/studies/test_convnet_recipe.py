from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import frugalvit
from frugalvit.data.mix import NoMix, SwitchMix
from frugalvit.errors import SpecError
from frugalvit.training.optimizer import Muon, Sgd, peak_lr


def test_the_default_is_a_resnet_18_for_small_pictures() -> None:
    """11,173,962 parameters with ten classes, as in the well-known adaptation: a 3 x 3 stem of 64 channels and no pool."""
    with torch.device("meta"):
        module = replace(frugalvit.recipe("convnet.cifar10").model, classes=10).build()
    assert sum(one.numel() for one in module.parameters()) == 11_173_962
    assert [(shape.channels, shape.height) for shape in module.shapes[::2]] == [
        (64, 32),
        (64, 32),
        (128, 16),
        (256, 8),
        (512, 4),
    ]


def test_rates_and_mixing_follow_the_words() -> None:
    sgd, muon = (frugalvit.recipe("convnet.cifar10", f"optimizer={name}", "batch=1024") for name in ("sgd", "muon"))
    assert isinstance(sgd.optimizer, Sgd) and peak_lr(sgd.optimizer, sgd.pictures) == pytest.approx(0.8)
    assert isinstance(muon.optimizer, Muon) and peak_lr(muon.optimizer, muon.pictures) == 2e-3
    plain = frugalvit.recipe("convnet.cifar10", "cutout=0.0", "augment=none")
    assert plain.data.mix == NoMix() and plain.data.erase is None and len(plain.data.augment.steps) == 2
    mixed = frugalvit.recipe("convnet.cifar10", "mixed=0.5", "lr=0.1", "weight_decay=1e-3").data.mix
    assert isinstance(mixed, SwitchMix) and mixed.probability == 0.5
    with pytest.raises(SpecError, match="augment"):
        frugalvit.recipe("convnet.cifar10", "augment=autoagument")
