"""The layers of Bi-Real Net and ReActNet against loops over pixels, and the networks' published sizes."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.nn.binary_conv import BareStem, BiRealConv, PooledProjection, ReActConv
from frugalvit.nn.binary_linear import RealWeights
from frugalvit.nn.conv import MaxPool
from frugalvit.nn.convnet import ConvNet
from frugalvit.nn.map_norm import BatchNormalized
from frugalvit.nn.shape import Image, MapShape
from frugalvit.spec import decode, encode
from frugalvit.zoo.find import model
from frugalvit.zoo.reactnet import BIREAL, REACT, binary_resnet, reactnet

SHAPE = MapShape(3, 4, 6)


def randomized(module: nn.Module) -> nn.Module:
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        tensor.data.normal_(0.0, 0.5)
        if name.endswith("running_var"):
            tensor.data.abs_().add_(0.1)
    return module.double().eval()


def sign(value: float) -> float:
    return 1.0 if value >= 0 else -1.0


def convolved(bits: Tensor, weight: Tensor, o: int, i: int, j: int, stride: int) -> float:
    """Of one picture at one place: mean |w| · Σ sign(w) · bit, zeros beyond the edge."""
    side = weight.shape[-1]
    total = 0.0
    for c in range(weight.shape[1]):
        for a in range(side):
            for b in range(side):
                y, x = i * stride + a - side // 2, j * stride + b - side // 2
                if 0 <= y < bits.shape[1] and 0 <= x < bits.shape[2]:
                    total += sign(weight[o, c, a, b].item()) * bits[c, y, x].item()
    return total * weight[o].abs().mean().item()


def normed(value: float, norm: BatchNormalized, o: int) -> float:
    mean, variance, weight, bias = (one[o].item() for one in (norm.running_mean, norm.running_var, norm.weight, norm.bias))
    return (value - mean) / math.sqrt(variance + 1e-5) * weight + bias


@pytest.mark.parametrize(("channels", "kernel", "stride"), [(3, 3, 1), (3, 3, 2), (6, 1, 1), (6, 3, 2)])
def test_a_react_convolution_is_its_equation(channels: int, kernel: int, stride: int) -> None:
    module, shape = ReActConv(channels, kernel, stride).build(SHAPE)
    assert shape == MapShape(channels, 4 // stride, 6 // stride)
    module = randomized(module)
    x_BCHW = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    found = module(x_BCHW)
    before, slope, after = module.act.before, module.act.slope, module.act.after
    bits = torch.where(x_BCHW[1] + module.shift[:, None, None] >= 0, 1.0, -1.0)
    for o in range(channels):
        for i in range(shape.height):
            for j in range(shape.width):
                y = normed(convolved(bits, module.product.weight, o, i, j, stride), module.norm, o)
                square = x_BCHW[1, o % 3, i * stride : (i + 1) * stride, j * stride : (j + 1) * stride]
                moved = y + square.mean().item() - before[o].item()
                expected = max(moved, 0.0) + slope[o].item() * min(moved, 0.0) + after[o].item()
                assert found[1, o, i, j].item() == pytest.approx(expected, abs=1e-10)


def test_a_bi_real_convolution_is_its_equation_and_projects_where_its_shape_changes() -> None:
    module, _ = BiRealConv(5, stride=2).build(SHAPE)
    module = randomized(module)
    x_BCHW = torch.randn(1, 3, 4, 6, dtype=torch.float64)
    found = module(x_BCHW)
    bits = torch.where(x_BCHW[0] >= 0, 1.0, -1.0)
    kernel_OI = module.shortcut.conv.weight[:, :, 0, 0]
    for o in range(5):
        for i in range(2):
            for j in range(3):
                y = normed(convolved(bits, module.product.weight, o, i, j, 2), module.norm, o)
                means_C = x_BCHW[0, :, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2))
                beside = normed((kernel_OI[o] * means_C).sum().item(), module.shortcut.norm, o)
                assert found[0, o, i, j].item() == pytest.approx(y + beside, abs=1e-10)
    same, _ = BiRealConv(3).build(SHAPE)
    assert isinstance(same.shortcut, nn.Identity) and not [name for name, _ in same.named_parameters() if "shift" in name]


def test_two_parallel_branches_that_are_joined_are_one_convolution_of_twice_the_channels() -> None:
    both = randomized(ReActConv(6, 1).build(SHAPE)[0])
    x_BCHW = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    halves = []
    for part in (slice(0, 3), slice(3, 6)):
        one = randomized(ReActConv(3, 1).build(SHAPE)[0])
        taken = {key: value if key == "shift" else value[part] for key, value in both.state_dict().items()}
        one.load_state_dict(taken)
        halves.append(one(x_BCHW))
    torch.testing.assert_close(both(x_BCHW), torch.cat(halves, dim=1))


def test_a_bare_stem_has_no_activation() -> None:
    module, shape = BareStem(5, 3, 2, MaxPool()).build(Image(16, 24))
    assert shape == MapShape(5, 4, 6)
    assert [type(part).__name__ for part in module] == ["Kernel", "BatchNormalized", "Largest"]


# millions of parameters, FLOPs e8, OPs e8: ReActNet's Table 1 and BinaryViT's Table 3
PUBLISHED = {
    "reactnet_a_224": ("29.3", 0.12, 0.87),
    "react_resnet34": ("21.8", 1.38, 1.93),
    "bireal_resnet18": ("11.7", 1.38, 1.64),  # published: 1.39 and 1.63
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_networks_have_the_published_size_and_cost(name: str) -> None:
    millions, flops, ops = PUBLISHED[name]
    found = cost(model(name))
    assert f"{found.parameters / 1e6:.1f}" == millions
    assert (round(found.flops / 1e8, 2), round(found.ops / 1e8, 2)) == (flops, ops)


@pytest.mark.parametrize(
    "spec",
    [
        reactnet(widths=(16, 32, 32), stem=BareStem(8), image=16, classes=5),
        binary_resnet(layer=BIREAL, depths=(1, 2), stem=BareStem(64), image=16, classes=5),
        binary_resnet(layer=REACT, depths=(2, 1), stem=BareStem(64), image=16, classes=5),
    ],
    ids=["reactnet", "bireal", "react"],
)
def test_networks_survive_json_and_every_parameter_hears_of_the_loss(spec: ConvNet) -> None:
    assert decode(json.loads(json.dumps(encode(spec))), ConvNet) == spec
    module = spec.build(seed=0).train()
    nn.functional.cross_entropy(module(torch.randn(4, 3, 16, 16))["class"], torch.arange(4)).backward()
    assert [key for key, one in module.named_parameters() if one.grad is None or not one.grad.abs().sum() > 0] == []


def test_the_first_of_two_stages_has_real_weights_under_the_same_names() -> None:
    real, binary = (ReActConv(6, weights=weights).build(SHAPE)[0] for weights in (RealWeights(), ReActConv(6).weights))
    binary.load_state_dict(real.state_dict())
    x_BCHW = torch.where(torch.randn(1, 3, 4, 6) >= 0, 1.0, -1.0)
    torch.testing.assert_close(real.product(x_BCHW), nn.functional.conv2d(x_BCHW, real.product.weight, padding=1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (ReActConv(4), r"shortcut: 3 channels cannot be repeated to 4"),
        (ReActConv(3, 2), r"kernel: a kernel of 2 x 2 has no middle"),
        (BiRealConv(6, stride=3, shortcut=PooledProjection()), r"shortcut: maps of 4 x 6 are no squares of 3 x 3"),
    ],
)
def test_impossible_binary_convolutions_are_refused(spec: ReActConv | BiRealConv, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec.build(SHAPE)
