"""Convolutional networks and hybrids: the published sizes, parameters and costs."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from torch.utils.flop_counter import FlopCounterMode

from frugalvit.measure.cost import cost
from frugalvit.nn.convnet import ConvNet
from frugalvit.nn.model import Model
from frugalvit.spec import decode, encode
from frugalvit.zoo.find import functions, model, models
from frugalvit.zoo.regnet import stages

GMACS = {  # timm's
    "resnet18": 1.82,
    "resnet34": 3.67,
    "resnet50": 4.11,
    "regnety_040": 4.0,
    "regnety_080": 8.0,
    "regnety_120": 12.1,
    "regnety_160": 15.96,
    "efficientnet_b0": 0.39,
}
HYBRID_GMACS = {  # timm's, which count norms and the standardizing of kernels too
    "vit_tiny_r_s16_p8_224": 0.44,
    "vit_tiny_r_s16_p8_384": 1.34,
    "vit_small_r26_s32_224": 3.56,
    "vit_small_r26_s32_384": 10.43,
    "vit_large_r50_s32_224": 19.58,
}
HYBRID_MILLIONS = {"vit_tiny_r_s16_p8_224": 6.34, "vit_small_r26_s32_224": 36.43, "vit_large_r50_s32_224": 328.99}


def timms(name: str) -> tuple[int, int]:
    """Parameters and multiply-accumulates of timm's module."""
    with torch.device("meta"):
        theirs = timm.create_model(name)
        side = theirs.default_cfg["input_size"][1] if name.startswith("vit") else 224
        with FlopCounterMode(display=False) as counter:
            theirs.eval()(torch.empty(1, 3, side, side))
    return sum(one.numel() for one in theirs.parameters()), counter.get_total_flops() // 2


def normalized(name: str) -> tuple[int, int]:
    """How many numbers the norms of a hybrid normalize for one picture, and how many weights are standardized."""
    spec = model(name)
    found = 0

    def count(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        nonlocal found
        found += output.numel()

    with torch.device("meta"):
        module = spec.build(seed=0).eval()
        for one in module.modules():
            if "Norm" in type(one).__name__ and hasattr(one, "weight"):
                one.register_forward_hook(count)
        module(torch.empty(1, 3, spec.image.height, spec.image.width))
    kernels = [one for one in module.modules() if "Standardized" in type(one).__name__]
    return found, sum(parameter.numel() for one in kernels for parameter in one.parameters())


@pytest.mark.parametrize("name", GMACS | HYBRID_GMACS)
def test_parameters_and_costs_are_timms(name: str) -> None:
    found = cost(model(name))
    parameters, macs = timms(name)
    assert found.parameters == parameters
    assert found.macs == pytest.approx(macs, rel=0.01)
    if name in GMACS:
        assert found.macs / 1e9 == pytest.approx(GMACS[name], rel=0.01, abs=0.005)  # half of the last printed digit
    else:  # products alone are up to 2.7 % less; timm's column counts five for each normalized number, four for a kernel's
        numbers, weights = normalized(name)
        assert (found.macs + 5 * numbers + 4 * weights) / 1e9 == pytest.approx(HYBRID_GMACS[name], rel=0.003)
    if name in HYBRID_MILLIONS:
        assert round(parameters / 1e6, 2) == HYBRID_MILLIONS[name]


@pytest.mark.parametrize(("name", "millions"), [("resnet56_cifar", 0.85), ("resnet110_cifar", 1.73)])
def test_cifar_networks_have_the_papers_parameters(name: str, millions: float) -> None:
    found = cost(model(name))
    assert round(found.parameters / 1e6, 2) == millions
    assert len(model(name).layers) * 2 + 2 == int("".join(filter(str.isdigit, name)))


def test_regnet_widths_are_those_of_the_papers_table() -> None:
    assert stages(22, 96, 31.41, 2.24, 64) == [(128, 2), (192, 6), (512, 12), (1088, 2)]
    assert stages(17, 192, 76.82, 2.19, 56) == [(168, 2), (448, 4), (896, 10), (2016, 1)]
    assert stages(19, 168, 73.36, 2.37, 112) == [(224, 2), (448, 5), (896, 11), (2240, 1)]
    assert stages(18, 200, 106.23, 2.48, 112) == [(224, 2), (448, 4), (1232, 11), (3024, 1)]


@pytest.mark.parametrize("name", [*GMACS, *HYBRID_GMACS, "resnet56_cifar", "resnet110_cifar"])
def test_every_network_is_listed_and_survives_json(name: str) -> None:
    assert name in models()
    spec = model(name, classes=7, channels=1, drop_path=0.2)
    assert decode(json.loads(json.dumps(encode(spec))), Model if name.startswith("vit") else ConvNet) == spec
    assert (spec.classes, spec.image.channels) == (7, 1)
    drops = [getattr(layer, "drop", getattr(getattr(layer, "residual", None), "drop", 0.0)) for layer in spec.layers]
    assert 0.15 < max(drops) <= 0.2 and drops[0] == 0.0


def test_helpers_of_a_family_are_no_models() -> None:
    assert {"resnet", "regnety", "efficientnet", "hybrid"} <= set(functions())
    assert not {"stages", "widened", "stage"} & set(functions())


@pytest.mark.parametrize(
    ("name", "stem"),
    [("resnet18", "Stem(64)"), ("regnety_040", "Stem(32)"), ("efficientnet_b0", '{"part": "Stem", "channels": 32}')],
)
def test_small_pictures_keep_their_size_through_a_small_stem(name: str, stem: str) -> None:
    module = model(name, f"stem={stem}", image=32, classes=10).build(seed=0)
    assert (module.shapes[0].height, module.shapes[0].width) == (32, 32)
    image, label = torch.randn(2, 3, 32, 32), torch.tensor([3, 8])
    before = module.stem.branch.conv1.weight.clone()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.nn.functional.cross_entropy(module(image)["class"], label).backward()
    optimizer.step()
    assert all(one.isfinite().all() for one in module.parameters())
    assert not torch.equal(module.readout.heads["class"].weight, before)
