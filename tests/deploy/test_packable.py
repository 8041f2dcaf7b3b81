"""What has no packed form is refused with its path, a reason and a cure."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.deploy.packing import FLAT, MODELS, PYRAMID, classifier_of

import frugalvit
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import ClassifierSpec
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packable import refuse_unpackable
from frugalvit.errors import SpecError, WeightsError
from frugalvit.nn.binary_block import BinaryBlock, PoolBranch
from frugalvit.nn.binary_linear import Binary, RealWeights
from frugalvit.nn.binary_merge import BinaryMerge
from frugalvit.nn.layers import Join, Normalize
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.pooling import MergePatches
from frugalvit.nn.readout import MeanLogits, SumSoftmax
from frugalvit.nn.shape import Shape
from frugalvit.nn.tokenizer import Patches, ShiftedPatches
from frugalvit.spec import swap
from frugalvit.zoo.binaryvit import binary_deit, binaryvit
from frugalvit.zoo.change import binarized, with_binary_linears
from frugalvit.zoo.deit import deit

TOY = deit(dim=12, heads=3, depth=2, patch=4, image=(16, 24), classes=7)
CLASS, PYRAMIDAL = MODELS["class"], MODELS["pyramid"]
REAL = Binary(RealWeights())


def in_blocks(model: Model, **changes: object) -> Model:
    return replace(model, layers=swap(model.layers, BinaryBlock, lambda block: replace(block, **changes)))


def refused(model: object, crop: float = 0.875, fusion=MeanLogits()) -> str:
    image = model.image
    channels = image.channels
    preprocess = Preprocess(image.height, image.width, (0.5,) * channels, (0.5,) * channels, crop)
    shapes: list[Shape] = []
    if isinstance(model, Model):
        with torch.device("meta"):
            shapes = model.build(seed=0).shapes
    spec = ClassifierSpec(model, preprocess, tuple(map(str, range(model.classes))), fusion)
    with pytest.raises(SpecError) as caught:
        refuse_unpackable(spec, shapes)
    return str(caught.value)


CASES = {
    "real blocks behind shifted patches": (
        frugalvit.model("small_vit_32+spt"),
        "model.layers[2]: Block computes attention, norms and GELU",
    ),
    "a convnet": (frugalvit.model("resnet18", classes=7), "model: a ConvNet has no packed form"),
    "shifted patches": (replace(CLASS, tokenizer=ShiftedPatches(4, 20)), "model.tokenizer: ShiftedPatches has no"),
    "oblong patches": (replace(CLASS, tokenizer=Patches((4, 2), 20)), "model.tokenizer.patch: patches of 4 x 2"),
    "real blocks": (TOY, "model.layers[2]: Block computes attention, norms and GELU"),
    "binary maps alone": (with_binary_linears(TOY), "model.layers[2]: Block computes attention, norms and GELU"),
    "a late token": (replace(CLASS, layers=(*CLASS.layers, Join(("late",)))), "model.layers[4]: tokens that join behind"),
    "a norm of tokens": (replace(CLASS, layers=(*CLASS.layers, Normalize(LayerNorm()))), "model.layers[4].norm: LayerNorm"),
    "a real merge of Swin": (
        replace(PYRAMIDAL, layers=swap(PYRAMIDAL.layers, BinaryMerge, lambda _: MergePatches())),
        "model.layers[4]: MergePatches has no packed form",
    ),
    "real weights in attention": (
        in_blocks(CLASS, attention=replace(CLASS.layers[2].attention, linear=REAL)),
        "model.layers[2].attention.linear.weights: RealWeights are not of one bit",
    ),
    "real weights in the MLP": (
        in_blocks(CLASS, mlp=replace(CLASS.layers[2].mlp, linear=REAL)),
        "model.layers[2].mlp.linear.weights: RealWeights are not of one bit",
    ),
    "real weights between stages": (
        binaryvit(**PYRAMID, merge=BinaryMerge(RealWeights())),
        "model.layers[4].weights: RealWeights are not of one bit",
    ),
    "square windows": (
        in_blocks(PYRAMIDAL, branches=(PoolBranch(3, 1), PoolBranch(3, 3))),
        "model.layers[2].branches[1]: a window of 3 x 3",
    ),
    "long windows": (in_blocks(PYRAMIDAL, branches=(PoolBranch(1, 7),)), "model.layers[2].branches[0]: a window of 1 x 7"),
    "wide heads": (
        binary_deit(**(FLAT | {"dim": 256, "heads": 1})),
        "model.layers[2].attention.heads: heads 256 channels wide",
    ),
    "a norm of the readout": (
        replace(CLASS, readout=replace(CLASS.readout, norm=LayerNorm())),
        "model.readout.norm: LayerNorm has no packed form",
    ),
    "a binary head": (
        replace(binary_deit(**(FLAT | {"classes": 5})), readout=replace(CLASS.readout, linear=Binary())),
        "model.readout.linear: Binary has no packed form",
    ),
    "four channels": (binary_deit(**FLAT, channels=4), "preprocess.mean: 4 channels"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_part_without_a_packed_form_is_refused_by_its_path(case: str) -> None:
    model, problem = CASES[case]
    message = refused(model)
    assert message.startswith(problem)
    assert any(cure in message for cure in ("Use ", "use ", "Train ", "train ", "see ", "Join "))


def test_a_sum_of_softmaxes_and_a_crop_from_too_many_pixels_are_refused() -> None:
    assert "--head mean" in refused(MODELS["distilled"], fusion=SumSoftmax())
    assert "preprocess.crop" in refused(CLASS, crop=0.001)


def test_what_binarized_makes_can_be_packed() -> None:
    classifier = classifier_of(binarized(TOY))
    assert len(packed_model(classifier, "a").packed.steps) > 10


def test_numbers_that_are_not_finite_or_too_large_for_half_precision_are_refused() -> None:
    classifier = classifier_of(CLASS)
    with torch.no_grad():
        classifier.module.readout.heads["class"].weight[2, 3] = 1e9
    packed_model(classifier, "a")
    with pytest.raises(WeightsError, match=r"head\.weight: .* is too large for 16 bits. Leave --half out"):
        packed_model(classifier, "a", "half")
    with torch.no_grad():
        classifier.module.layers[2].mlp.up.shift[0] = torch.nan
    with pytest.raises(WeightsError, match=r"mlp\.up\.threshold: numbers that are not finite"):
        packed_model(classifier, "a")
