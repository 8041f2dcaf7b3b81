"""Toy sizes that are pairwise different, so that a transposed axis cannot hide: dim 12, heads 3, grid 5 x 7, batch 2."""

from __future__ import annotations

import os

import pytest
import torch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("COLUMNS", "200")

from frugalvit.measure.peers import LIMIT, WITHOUT_TILES, refuses_tiles
from frugalvit.nn.model import Model
from frugalvit.nn.shape import Shape
from frugalvit.zoo.deit import deit
from frugalvit.zoo.vit import vit

torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


def pytest_configure() -> None:
    """Leave matrix tiles alone where a virtual machine announces and refuses them: what multiplies in bf16 would be killed."""
    if refuses_tiles():
        os.environ[LIMIT] = WITHOUT_TILES


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def shape() -> Shape:
    return Shape(dim=12, height=5, width=7, summary=("class",))


@pytest.fixture
def toy() -> Model:
    """DeiT with a distillation token at toy size: image 20 x 28, patch 4, 9 classes."""
    return deit(dim=12, heads=3, depth=2, patch=4, image=(20, 28), classes=9, summary=("class", "distill"))


@pytest.fixture
def toy_vit() -> Model:
    return vit(dim=12, heads=3, depth=2, patch=4, image=(20, 28), classes=9)
