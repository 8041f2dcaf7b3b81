"""Binary models of odd sizes with random parameters and statistics everywhere, to be packed."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
import torch

from frugalvit.data.finish import normalize
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.deploy.verify import noise_for
from frugalvit.nn.binary_attention import OneBitHeads
from frugalvit.nn.binary_block import PoolBranch
from frugalvit.nn.binary_channels import Affine
from frugalvit.nn.binary_merge import RealMerge
from frugalvit.nn.layers import AddPositions, Normalize
from frugalvit.nn.map_norm import BatchNormalized
from frugalvit.nn.model import Model
from frugalvit.nn.readout import Fusion, MeanLogits
from frugalvit.nn.residual import LayerScale
from frugalvit.zoo.binaryvit import CROSS, NORM, binary_deit, binaryvit

CLASSES = 7
PYRAMID = dict(dim=12, heads=(1, 3), depths=(2, 1), ratios=(3, 2), reductions=(2, 1), patch=2, image=(16, 24), classes=CLASSES)
FLAT = dict(dim=20, heads=5, depth=2, ratio=3, patch=4, image=(16, 24), classes=CLASSES)


def restless(model: Model) -> Model:
    """With norms and positions where they do not fold into the step before."""
    first, *rest = model.layers
    return replace(model, layers=(first, *rest[:1], Normalize(NORM), *rest, Normalize(NORM), AddPositions()))


MODELS: dict[str, Model] = {
    "pyramid": binaryvit(**PYRAMID),
    "star": binaryvit(**PYRAMID, merge=RealMerge()),
    "class": binary_deit(**FLAT),
    "distilled": binary_deit(**FLAT, summary=("class", "distill"), residual=LayerScale(0.1)),
    "pool": binary_deit(**FLAT, summary=(), branches=CROSS),
    "few branches": binary_deit(**FLAT, summary=(), branches=(PoolBranch(1, 5), PoolBranch(1, 1)), residual=Affine()),
    "gray": binary_deit(**FLAT, channels=1),
    "restless": restless(binaryvit(**PYRAMID)),
}

native_only = pytest.mark.skipif(
    importlib.util.find_spec("frugalvit.deploy._native") is None, reason="the one-bit runtime is not built here"
)


def classifier_of(model: Model, fusion: Fusion = MeanLogits(), seed: int = 0) -> Classifier:
    """A classifier whose every parameter is random, and whose statistics are near those of its pictures."""
    image = model.image
    channels = image.channels
    preprocess = Preprocess(image.height, image.width, (0.4, 0.5, 0.6)[:channels], (0.2, 0.25, 0.3)[:channels])
    names = tuple(f"klasse {number} \u00e4\U0001f600" for number in range(model.classes))
    classifier = Classifier(ClassifierSpec(model, preprocess, names, fusion), model.build(seed=seed))
    draw = torch.Generator().manual_seed(seed)
    randomize(classifier, draw)
    settle(classifier, noise_for(classifier, 24), draw)
    return classifier.eval()


@torch.no_grad()
def randomize(classifier: Classifier, draw: torch.Generator) -> None:
    for name, parameter in classifier.named_parameters():
        noise = torch.randn(parameter.shape, generator=draw)
        if name.endswith("slope"):
            parameter.copy_(0.25 + 0.1 * noise)
        elif "norm" in name and name.endswith("weight"):
            parameter.copy_((1 + 0.2 * noise) * torch.where(torch.rand(noise.shape, generator=draw) < 0.1, -1, 1))
        elif name.endswith(("factor", "gamma")):
            parameter.copy_(0.3 * noise)
        elif parameter.ndim == 1 or name.endswith("positions") or ".tokens." in name:
            parameter.copy_(0.2 * noise)
    shapes = classifier.module.shapes
    for index, layer in enumerate(classifier.module.layers):
        if isinstance(heads := getattr(layer, "attention", None), OneBitHeads):
            heads.step.fill_(1.4 * heads.grid[1] ** 2 / shapes[index].length)  # some keys are attended to, others not


@torch.no_grad()
def settle(classifier: Classifier, image_BHWC: np.ndarray, draw: torch.Generator) -> None:
    """Statistics of pictures, then somewhat beside them."""
    norms = [module for module in classifier.modules() if isinstance(module, BatchNormalized)]
    for module in norms:
        module.momentum = 1.0
    classifier.train()(model_input(classifier, image_BHWC))
    for module in norms:
        module.running_mean += 0.1 * torch.randn(module.running_mean.shape, generator=draw)
        module.running_var *= 1 + 0.2 * torch.rand(module.running_var.shape, generator=draw)


def model_input(classifier: Classifier, image_BHWC: np.ndarray) -> torch.Tensor:
    preprocess = classifier.preprocess
    return normalize(torch.from_numpy(image_BHWC).permute(0, 3, 1, 2), preprocess.mean, preprocess.std)
