"""Every step of a packed program, fed what PyTorch's own parts were fed: integers exactly, reals to 1e-5."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.deploy.packing import MODELS, classifier_of, model_input
from torch import Tensor

from frugalvit.deploy.classifier import Classifier
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import Step
from frugalvit.deploy.program import SignPlace
from frugalvit.deploy.simulated import Simulation
from frugalvit.deploy.verify import noise_for
from frugalvit.nn.binary_block import PoolingPreNorm
from frugalvit.nn.binary_channels import TokenBatchNormalized
from frugalvit.nn.binary_linear import SignedProduct
from frugalvit.nn.binary_merge import BinarySquares, RealSquares
from frugalvit.nn.layers import LearnedPositions
from frugalvit.nn.readout import MeanHeads

PICTURES = 3
TOLERANCE = 1e-5
THRESHOLDS = ("query_threshold", "key_threshold", "value_threshold")  # whose bits meet in one product


class Taps:
    """What went into every module and came out of it."""

    def __init__(self, classifier: Classifier, image: Tensor):
        self.inputs: dict[str, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}
        self.products: dict[str, Tensor] = {}  # of signs, as whole numbers
        for name, module in classifier.module.named_modules():
            module.register_forward_hook(self.keep(name))
        with torch.no_grad():
            classifier(image)

    def keep(self, name: str):
        def hook(module: torch.nn.Module, inputs: tuple, output: object) -> None:
            self.inputs[name] = inputs[0]
            if isinstance(output, Tensor):
                self.outputs[name] = output
            if isinstance(module, SignedProduct):
                self.products[name] = inputs[0] @ module.rows()[0].T
            if name.endswith(".gather"):
                self.products[name] = output.transpose(1, 2).flatten(2)

        return hook


def expected(classifier: Classifier, taps: Taps) -> Iterator[tuple[str, Tensor]]:
    """(kind, what the step should leave in its buffer), in the program's order."""
    module = classifier.module
    x = taps.outputs["tokenizer"]
    held, rows = "patches", 0  # the step that is still to come, and how many tokens have joined
    for index, layer in enumerate(module.layers):
        path = f"layers.{index}"
        after = taps.outputs[path]
        folds = isinstance(layer, LearnedPositions) or (isinstance(layer, TokenBatchNormalized) and held != "merge")
        if isinstance(layer, (PoolingPreNorm, BinarySquares, RealSquares, TokenBatchNormalized)) and not (held and folds):
            yield from opening(held, rows, x)
            held = ""
        if isinstance(layer, PoolingPreNorm):
            yield from of_block(layer, path, taps)
        elif isinstance(layer, BinarySquares):
            yield "affine", taps.outputs[f"{path}.norm1"]
            held = "merge"
        elif isinstance(layer, RealSquares):
            held = "merge_real"
        elif not held and isinstance(layer, TokenBatchNormalized):
            yield "affine", after
        elif not held and isinstance(layer, LearnedPositions):
            yield "tokens", layer.positions.expand(PICTURES, -1, -1)
            yield "add", after
        else:
            rows += after.shape[1] - x.shape[1]
        x = after
    readout = module.readout
    for number, name in enumerate(readout.heads):
        yield "mean", x[:, readout.summary :].mean(1) if isinstance(readout, MeanHeads) else x[:, readout.places[number]]
        yield "head", taps.outputs[f"readout.heads.{name}"] / len(readout.heads)
        if number:
            yield "add", torch.stack([taps.outputs[f"readout.heads.{one}"] for one in readout.heads]).mean(0)


def opening(held: str, rows: int, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    if held == "patches" and rows:
        yield "tokens", torch.cat([x[:, :rows], torch.zeros_like(x[:, rows:])], dim=1)
    if held:
        yield held, x


def of_block(block: PoolingPreNorm, path: str, taps: Taps) -> Iterator[tuple[str, Tensor]]:
    heads, at = block.attention, f"{path}.attention"
    normed = taps.outputs[f"{path}.norm1"]
    if heads.reduce is None:
        yield "affine", normed
    else:
        yield "pool", heads.squares(taps.inputs[path])
        yield "affine", taps.inputs[f"{at}.reduce"]
        yield "linear", taps.outputs[f"{at}.reduce"]
    yield "linear", taps.outputs[f"{at}.key"]
    yield "linear", taps.outputs[f"{at}.value"]
    if heads.reduce is not None:
        yield "affine", normed
    yield "linear", taps.outputs[f"{at}.query"]
    yield "attention", taps.outputs[f"{at}.act"]
    yield "linear", taps.outputs[f"{at}.out"]
    yield "add", taps.outputs[f"{path}.sum1"]
    yield "affine", taps.outputs[f"{path}.norm2"]
    yield "mlp", taps.outputs[f"{path}.mlp"]
    yield "add", taps.outputs[f"{path}.sum2"]
    if len(block.pools):
        yield "cross", taps.outputs[path]


class Recorded(Simulation):
    """Keeps the whole numbers before activations, in order."""

    def activate(self, step: Step, product_BND: Tensor, *shortcuts_BND: Tensor) -> Tensor:
        self.products.append(product_BND)
        return super().activate(step, product_BND, *shortcuts_BND)


def product_of(place: SignPlace) -> str:
    """The module that multiplies the bits of a place."""
    return place.module if place.name == "attended" else f"{place.module.removesuffix('.norm1')}.product"


@pytest.mark.parametrize("name", MODELS)
def test_every_step_computes_what_its_part_computes(name: str) -> None:
    classifier = classifier_of(MODELS[name])
    image_BHWC = noise_for(classifier, PICTURES)
    taps = Taps(classifier, model_input(classifier, image_BHWC))
    made = packed_model(classifier, name)
    twin = Recorded(made.packed)
    buffers, pixels = twin.empty(PICTURES), twin.normalized(torch.from_numpy(image_BHWC))
    wanted = list(expected(classifier, taps))
    assert [kind for kind, _ in wanted] == [step["kind"] for step in twin.packed.steps]
    multiplied = 0
    for number, (step, (kind, value)) in enumerate(zip(twin.packed.steps, wanted, strict=True)):
        value = value.detach().unsqueeze(1) if value.ndim == 2 else value.detach()
        twin.products = []
        found = twin.run(step, buffers, pixels)
        error = ((found - value).abs().max() / value.abs().max().clamp(min=1)).item()
        assert error < TOLERANCE, f"{name}, steps[{number}] ({kind}): {error}"
        places = [place for place in made.places if place.step == number and place.name not in THRESHOLDS]
        for place, product in zip(places, twin.products, strict=True):
            assert torch.equal(taps.products[product_of(place)], product), f"{name}, steps[{number}] ({kind})"
            multiplied += 1
        buffers[step["to"]] = value
    assert multiplied == len(taps.products) > 8
