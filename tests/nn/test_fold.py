"""Folded networks against themselves before, ours in float64, and what must not be folded."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import frugalvit
from frugalvit.data.preprocess import Preprocess
from frugalvit.errors import SpecError
from frugalvit.nn.conv import Convolution, MaxPool, Same, Silu, SqueezeExcite, StandardizedConvolution
from frugalvit.nn.conv_blocks import BasicBlock, Bottleneck, ConvNorm, InvertedBottleneck, Stem, ZeroPadded
from frugalvit.nn.convnet import ConvNet, MeanMaps
from frugalvit.nn.fold import FoldedConvolution, folded
from frugalvit.nn.init import Ones
from frugalvit.nn.map_norm import BatchNorm, BatchNormalized
from frugalvit.nn.shape import Image, MapShape
from frugalvit.teaching import open_teacher
from frugalvit.training.devices import Place
from frugalvit.training.quick_teacher import channels_first, quick, quicken
from frugalvit.training.teacher import ReadyTeacher, Teacher
from frugalvit.training.teacher_networks import Members

NORMS = (BatchNormalized, nn.BatchNorm2d)
PICTURES = Preprocess(20, 28, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
CLASSES = tuple(map(str, range(9)))


def stirred(network: nn.Module) -> nn.Module:
    """With norms as training leaves them: no statistic, factor or shift is that of the beginning."""
    generator = torch.Generator().manual_seed(5)
    for one in network.modules():
        if isinstance(one, NORMS):
            assert one.running_mean is not None and one.running_var is not None
            one.running_mean.normal_(0, 0.4, generator=generator)
            one.running_var.uniform_(0.3, 2, generator=generator)
            if one.weight is not None:
                one.weight.data.uniform_(0.5, 1.5, generator=generator)
                one.bias.data.normal_(0, 0.3, generator=generator)
    return network.eval()


def toy() -> nn.Module:
    """Every kind of block, with odd paddings, groups, strides, and kernels that are standardized."""
    layers = (
        BasicBlock(12),
        BasicBlock(15, stride=2, shortcut=ZeroPadded()),
        Bottleneck(18, 6, stride=2, groups=2, excite=SqueezeExcite()),
        Bottleneck(18, 6, conv=StandardizedConvolution()),
        InvertedBottleneck(18, expand=3, kernel=5, stride=2, conv=Convolution(Same())),
        InvertedBottleneck(21, expand=1),
        ConvNorm(24, kernel=1, activation=Silu()),
    )
    return stirred(ConvNet(Stem(12, pool=MaxPool()), layers, MeanMaps(), 9, Image(20, 28)).build(seed=1))


def count(network: nn.Module, kind: type | tuple[type, ...]) -> int:
    return sum(isinstance(one, kind) for one in network.modules())


def answers(network: nn.Module, image_BCHW: Tensor) -> Tensor:
    with torch.no_grad():
        said = network(image_BCHW)
    return said["class"] if isinstance(said, dict) else said


def agree(before: nn.Module, after: nn.Module, image_BCHW: Tensor, within: float = 1e-9) -> None:
    expected = answers(before, image_BCHW)
    assert expected.std() > 1e-3
    assert (answers(after, image_BCHW) - expected).abs().max() < within * expected.abs().max()


# ------------------------------------------------------------------------------------------------ what is folded


def test_every_block_of_ours_answers_the_same_without_its_norms() -> None:
    network = toy().double()
    after = folded(network)
    norms = count(network, NORMS)
    assert (norms, count(after, NORMS), count(after, FoldedConvolution)) == (18, 0, norms)
    assert any(one.single for one in after.modules() if isinstance(one, FoldedConvolution))
    assert not any(
        one.requires_grad for one in after.modules() if isinstance(one, FoldedConvolution) for one in one.parameters()
    )
    agree(network, after, torch.randn(2, 3, 20, 28, dtype=torch.float64))
    agree(network.float(), after.float(), torch.randn(2, 3, 20, 28), within=1e-4)


def test_rectifiers_behind_folded_norms_are_folded_too() -> None:
    network = toy().double()
    after = folded(network)
    rectifying = [path for path, one in after.named_modules() if isinstance(one, FoldedConvolution) and one.rectifies]
    first = ["stem.branch.conv1", "layers.0.branch.conv1", "layers.1.branch.conv1"]  # what follows a sum stays behind it
    assert rectifying == [*first, *(f"layers.{place}.branch.conv{number}" for place in (2, 3) for number in (1, 2))]
    assert count(network, nn.ReLU) - count(after, nn.ReLU) == len(rectifying)
    agree(network, after, torch.randn(2, 3, 20, 28, dtype=torch.float64))


def test_channels_first_answer_the_same() -> None:
    network = toy()
    after = channels_first(quick(network, None))
    assert all(one.weight.is_contiguous() and not one.single for one in after.modules() if isinstance(one, FoldedConvolution))
    agree(network, after, torch.randn(2, 3, 20, 28), within=1e-4)


@pytest.mark.parametrize("name", ["timm:resnet10t", "timm:regnety_002"])
def test_networks_of_other_libraries_answer_the_same_without_their_norms(name: str) -> None:
    network = stirred(frugalvit.model(name, image=32, classes=9).build(seed=2))
    after = folded(network)
    assert count(network, NORMS) > 10 and count(after, NORMS) == 0
    agree(network, after, torch.randn(2, 3, 32, 32), within=1e-4)


class Branching(nn.Module):
    """A convolution that a norm and another read, and a bias before a norm without factors."""

    def __init__(self) -> None:
        super().__init__()
        self.read_twice, self.norm = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.conv, self.plain = nn.Conv2d(6, 5, 3, padding=(1, 2), dilation=2), nn.BatchNorm2d(5, affine=False)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        y_BCHW = self.read_twice(x_BCHW)
        return self.plain(self.conv(self.norm(y_BCHW) + y_BCHW.relu())).mean((2, 3))


def test_a_convolution_with_another_reader_keeps_its_norm_and_a_bias_is_scaled() -> None:
    network = stirred(Branching()).double()
    after = folded(network)
    assert isinstance(after.norm, nn.BatchNorm2d) and isinstance(after.plain, nn.Identity)
    agree(network, after, torch.randn(2, 3, 9, 11, dtype=torch.float64))


# ------------------------------------------------------------------------------------------------ what is not


class Refined(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).tanh()


class Deciding(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x_BCHW: Tensor) -> Tensor:
        return self.inner(x_BCHW) if x_BCHW.sum() > -1e9 else x_BCHW


def shared() -> nn.Sequential:
    conv = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(3), conv, nn.BatchNorm2d(3))


def shared_of_ours() -> nn.Sequential:
    conv, _ = Convolution().build(MapShape(3, 9, 11), 3, 3, 1, 1)
    return nn.Sequential(conv, BatchNorm().build(3, Ones()), conv, BatchNorm().build(3, Ones()))


def parted() -> nn.Sequential:
    """Something that stands twice lies between convolution and norm."""
    (conv, _), tanh = Convolution().build(MapShape(3, 9, 11), 3, 3, 1, 1), nn.Tanh()
    return nn.Sequential(tanh, conv, tanh, BatchNorm().build(3, Ones()))


def still_learning() -> nn.Sequential:
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)).eval()
    network[1].train()
    return network


def hooked() -> nn.Sequential:
    network = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)).eval()
    network[0].register_forward_hook(lambda module, given, made: made.tanh())
    return network


@pytest.mark.parametrize(
    "network",
    [
        stirred(shared()),
        stirred(shared_of_ours()),
        stirred(parted()),
        stirred(nn.Sequential(Refined(3, 6, 3), nn.BatchNorm2d(6))),
        stirred(nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(6))),
        stirred(Deciding(nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)))),
        still_learning(),
        hooked(),
    ],
    ids=["shared", "shared_of_ours", "parted", "refined", "reflecting", "deciding", "learning", "hooked"],
)
def test_what_computes_something_else_stays_as_it_is(network: nn.Module) -> None:
    after = folded(network)
    assert count(after, FoldedConvolution) == 0
    image_BCHW = torch.randn(2, 3, 9, 11)
    assert torch.equal(answers(copy.deepcopy(network), image_BCHW), answers(after, image_BCHW))


def test_a_network_in_training_is_refused_and_a_given_one_is_left_alone() -> None:
    network = toy()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    quick(network, torch.bfloat16)
    assert before.keys() == network.state_dict().keys()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    with pytest.raises(SpecError, match=r"training: statistics that move cannot be folded\. Call eval\(\) first"):
        folded(network.train())


# ------------------------------------------------------------------------------------------------ teachers


def test_folded_bf16_kernels_with_channels_last_are_as_exact_as_autocast() -> None:
    network, image_BCHW = toy(), torch.randn(5, 3, 20, 28)
    after = quick(network, torch.bfloat16)
    kernels = [one for one in after.modules() if isinstance(one, FoldedConvolution)]
    assert {one.weight.dtype for one in kernels} == {one.bias.dtype for one in kernels} == {torch.bfloat16}
    assert all(one.weight.is_contiguous(memory_format=torch.channels_last) for one in kernels)
    expected = answers(network, image_BCHW)
    with torch.autocast("cpu", torch.bfloat16):
        errors = [(answers(one, image_BCHW).float() - expected).square().mean().sqrt() for one in (network, after)]
    assert 0 < errors[1] < 1.5 * errors[0]


def opened(answer: object) -> Teacher:
    teacher = ReadyTeacher(answer, PICTURES, CLASSES)  # type: ignore[arg-type]
    return open_teacher(teacher, PICTURES, CLASSES, Place(torch.device("cpu"), "fp32"))


def test_a_quickened_teacher_gives_the_same_answers_alone_and_in_an_ensemble() -> None:
    network, image_BCHW = toy(), torch.randn(2, 3, 20, 28)
    place = Place(torch.device("cpu"), "fp32")
    alone = Teacher(network, PICTURES, PICTURES, CLASSES, place, name="toy", knows=9)
    members = Members([opened(network), opened(lambda image: image.flatten(1)[:, :9])])
    several = Teacher(members, PICTURES, PICTURES, CLASSES, place, name="both", knows=9)
    for teacher in (alone, several):
        expected = teacher(image_BCHW)["logits"]
        assert count(teacher, FoldedConvolution) == 0
        quicken(teacher)
        assert count(teacher, NORMS) == 0 and count(teacher, FoldedConvolution) == 18
        assert not any(one.training for one in teacher.modules())
        assert (teacher(image_BCHW)["logits"] - expected).abs().max() < 1e-4 * expected.abs().max()
        kept = list(teacher.modules())
        quicken(teacher)  # a second run that learns from it must not take it from the first one's graph
        assert all(one is before for one, before in zip(teacher.modules(), kept, strict=True))
