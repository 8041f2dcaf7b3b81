"""Convolutional parts against naive loops, and networks of them from spec to trained weights."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.training.runs import StopAt, Stopped, states, tiny, trace
from torch import Tensor, nn

import frugalvit
from frugalvit.assign import override
from frugalvit.data.batch import Batch
from frugalvit.errors import SpecError
from frugalvit.measure.cost import cost
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.conv import Convolution, MaxPool, Same, Silu, SqueezeExcite, StandardizedConvolution, Symmetric
from frugalvit.nn.conv_blocks import BasicBlock, Bottleneck, ConvNorm, InvertedBottleneck, Stem, ZeroPadded
from frugalvit.nn.conv_stem import ConvStem
from frugalvit.nn.convnet import ConvNet, MeanMaps
from frugalvit.nn.init import FanOutUniform, KaimingNormal, Ones, Zeros
from frugalvit.nn.map_norm import BatchNorm, GroupNorm
from frugalvit.nn.shape import Image, MapShape
from frugalvit.run import train
from frugalvit.spec import decode, encode
from frugalvit.training.recipe import Recipe
from frugalvit.zoo.hybrid import hybrid
from frugalvit.zoo.resnet import resnet

SHAPE = MapShape(12, 5, 7)


def toy(drop: float = 0.0) -> ConvNet:
    """Every kind of layer at toy size: image 20 x 28, 9 classes."""
    layers = (
        BasicBlock(12, drop=drop),
        BasicBlock(15, stride=2, shortcut=ZeroPadded(), drop=drop),
        Bottleneck(18, 6, stride=2, groups=2, excite=SqueezeExcite(), drop=drop),
        Bottleneck(18, 6, conv=StandardizedConvolution(padding=Same()), norm=GroupNorm(3)),
        InvertedBottleneck(18, expand=3, kernel=5, drop=drop),
        InvertedBottleneck(21, expand=1),
        ConvNorm(24, kernel=1, activation=Silu()),
    )
    return ConvNet(Stem(12, pool=MaxPool()), layers, MeanMaps(), 9, Image(20, 28))


def maps(shape: MapShape = SHAPE, batch: int = 2) -> Tensor:
    return torch.randn(batch, shape.channels, shape.height, shape.width, dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ mechanisms


def test_a_standardized_kernel_has_mean_0_and_variance_1_a_filter() -> None:
    module, _ = StandardizedConvolution(eps=1e-3).build(SHAPE, 4, 3, 1, 2)
    module.double()
    found = module.kernel_OIHW()
    for o in range(4):
        values = module.weight[o].flatten().tolist()
        mean = sum(values) / len(values)
        var = sum((one - mean) ** 2 for one in values) / len(values)
        expected = [(one - mean) / math.sqrt(var + 1e-3) for one in values]
        torch.testing.assert_close(found[o].flatten(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("channels", [1, 3, 4, 7, 8, 12])
def test_the_gradient_of_a_strided_kernel_of_one_pixel_is_right_channels_last(channels: int) -> None:
    """A linear map of every second pixel. Heaps that were written past their end would stop the process here."""
    module, _ = Convolution().build(MapShape(channels, 8, 6), 12, kernel=1, stride=2, groups=1)
    module.to(memory_format=torch.channels_last)
    x_BCHW = torch.randn(16, channels, 8, 6).to(memory_format=torch.channels_last)
    for _ in range(5):
        module.zero_grad()
        y_BCHW = module(x_BCHW)
        y_BCHW.square().sum().backward()
    seen_NC = x_BCHW[:, :, ::2, ::2].movedim(1, -1).flatten(0, 2).double()
    y_NO = seen_NC @ module.weight.detach()[:, :, 0, 0].double().T
    torch.testing.assert_close(y_BCHW.movedim(1, -1).flatten(0, 2).double(), y_NO, atol=1e-5, rtol=1e-5)
    assert module.weight.grad is not None
    torch.testing.assert_close(module.weight.grad[:, :, 0, 0].double(), 2 * y_NO.T @ seen_NC, atol=1e-3, rtol=1e-4)


def test_squeeze_excite_gates_each_channel_by_its_mean() -> None:
    module = SqueezeExcite(0.5).build(12, entering=8).double()
    x = maps()
    found = module(x)
    for b in range(2):
        mean = [x[b, c].mean().item() for c in range(12)]
        hidden = [
            max(0.0, sum(module.reduce.weight[r, c, 0, 0].item() * mean[c] for c in range(12)) + module.reduce.bias[r].item())
            for r in range(4)
        ]
        for c in range(12):
            score = sum(module.expand.weight[c, r, 0, 0].item() * hidden[r] for r in range(4)) + module.expand.bias[c].item()
            torch.testing.assert_close(found[b, c], x[b, c] / (1 + math.exp(-score)))


def test_group_norm_is_over_a_groups_channels_and_places() -> None:
    module = GroupNorm(3, eps=1e-3).build(12, Ones()).double()
    with torch.no_grad():
        module.weight.normal_()
        module.bias.normal_()
    x = maps()
    found = module(x)
    for b in range(2):
        for g in range(3):
            values = x[b, 4 * g : 4 * g + 4]
            mean = values.sum() / values.numel()
            var = ((values - mean) ** 2).sum() / values.numel()
            for c in range(4 * g, 4 * g + 4):
                expected = (x[b, c] - mean) / (var + 1e-3).sqrt() * module.weight[c] + module.bias[c]
                torch.testing.assert_close(found[b, c], expected)


def test_batch_norm_remembers_what_it_saw_and_frozen_ones_do_not() -> None:
    module = BatchNorm(momentum=0.25).build(12, Ones()).double()
    x = maps()
    found = module(x)
    mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    torch.testing.assert_close(found, (x - mean[:, None, None]) / (var + 1e-5).sqrt()[:, None, None])
    torch.testing.assert_close(module.running_mean, 0.25 * mean)
    torch.testing.assert_close(module.running_var, 0.75 + 0.25 * x.var((0, 2, 3)))
    module.weight.requires_grad_(False)
    before = module.running_mean.clone()
    assert torch.equal(module(x), module.eval()(x))
    assert torch.equal(module.running_mean, before)
    assert "num_batches_tracked" not in module.state_dict()


def test_the_shortcut_of_type_a_takes_every_second_pixel_and_adds_channels_of_zeros() -> None:
    module = ZeroPadded().build(SHAPE, 15, 2, Convolution(), BatchNorm())
    x = maps()
    found = module(x)
    assert found.shape == (2, 15, 3, 4)
    for c in range(15):
        for h in range(3):
            for w in range(4):
                expected = x[:, c, 2 * h, 2 * w] if c < 12 else torch.zeros(2, dtype=torch.float64)
                assert torch.equal(found[:, c, h, w], expected)
    assert not list(module.parameters())
    with pytest.raises(SpecError, match="zeros cannot turn 12 channels into 6"):
        ZeroPadded().build(SHAPE, 6, 2, Convolution(), BatchNorm())


@pytest.mark.parametrize("kernel", [1, 2, 3, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_padding_leaves_a_place_for_every_stride_the_odd_zero_behind(kernel: int, stride: int) -> None:
    module, shape = Convolution(padding=Same()).build(SHAPE, 4, kernel, stride, 1)
    module.double()
    assert (shape.height, shape.width) == (math.ceil(5 / stride), math.ceil(7 / stride))
    x = maps()
    found = module(x)
    assert found.shape[1:] == (shape.channels, shape.height, shape.width)
    top, _ = Same().pads(5, kernel, stride)
    left, _ = Same().pads(7, kernel, stride)
    for h in range(shape.height):
        for w in range(shape.width):
            expected = torch.zeros(2, 4, dtype=torch.float64)
            for i in range(kernel):
                for j in range(kernel):
                    y, z = h * stride + i - top, w * stride + j - left
                    if 0 <= y < 5 and 0 <= z < 7:
                        expected += x[:, :, y, z] @ module.weight[:, :, i, j].T
            torch.testing.assert_close(found[:, :, h, w], expected)


@pytest.mark.parametrize("padding", [Symmetric(), Same()])
def test_pools_of_negative_maps_never_see_the_padding(padding: Same | Symmetric) -> None:
    module, shape = MaxPool(padding=padding).build(MapShape(12, 6, 8))
    x = -maps(MapShape(12, 6, 8)).abs() - 1
    found = module(x)
    assert found.shape[1:] == (shape.channels, shape.height, shape.width)
    assert found.max() <= -1


def test_named_initializations_have_their_deviations() -> None:
    weight = torch.empty(64, 16, 3, 3)
    KaimingNormal().fill(weight, 16 * 9, 64 * 9)
    assert weight.std() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.05)
    FanOutUniform().fill(weight, 16 * 9, 64 * 9)
    assert weight.abs().max() <= 1 / 24 and weight.std() == pytest.approx(1 / 24 / math.sqrt(3), rel=0.05)
    depthwise, _ = Convolution().build(SHAPE, 12, 3, 1, 12)
    assert depthwise.weight.detach().std() == pytest.approx(math.sqrt(2 / 9), rel=0.2)  # a group's own outputs count
    block, _ = BasicBlock(12, scale=Zeros()).build(SHAPE)
    assert block.branch.norm1.weight.eq(1).all() and block.branch.norm2.weight.eq(0).all()


# ------------------------------------------------------------------------------------------------ networks


@pytest.mark.parametrize("drop", [0.0, 0.4])
def test_every_layer_builds_steps_counts_and_survives_json(drop: float) -> None:
    model = toy(drop)
    assert decode(json.loads(json.dumps(encode(model))), ConvNet) == model
    module = model.build(seed=0, taps=("maps[0]", "maps[-1]"))
    outputs = module(torch.randn(2, 3, 20, 28), module.random_draws(2) if module.draws else None)
    assert set(outputs) == {"class", "maps[0]", "maps[-1]"} and outputs["maps[-1]"].shape == (2, 24, 3, 4)
    for (_, _, shape), x in zip(module.places(), [None, outputs["maps[0]"]], strict=False):
        assert x is None or x.shape[1:] == (shape.channels, shape.height, shape.width)
    outputs["class"].square().sum().backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in module.parameters())
    counted = cost(model)
    assert counted.parameters == sum(one.numel() for one in module.parameters())
    assert counted.macs > 0 and counted.activations > 0
    assert module.eval().features(torch.randn(2, 3, 20, 28))["class"].shape == (2, 24)


def test_stochastic_depth_reads_its_row_of_draws_one_a_picture() -> None:
    model = override(toy(), "layers[0].drop=0.5", "layers[4].drop=0.25")
    module = model.build(seed=0, taps=("maps[0]", "maps[3]", "maps[4]"))
    assert module.draws == 2
    image = torch.randn(2, 3, 20, 28)
    with pytest.raises(SpecError, match=r"draws: this model drops branches at random"):
        module(image)
    kept, mixed = module(image, torch.zeros(2, 2)), module(image, torch.tensor([[0.0, 0.0], [0.0, 0.9]]))
    assert torch.equal(kept["maps[3]"], mixed["maps[3]"])
    assert torch.equal(mixed["maps[4]"][1], mixed["maps[3]"][1])  # dropped: what entered
    branch = kept["maps[4]"] - kept["maps[3]"]
    module.layers[4].sum.drop = 0.0
    plain = module(image, torch.zeros(2, 2))
    torch.testing.assert_close(branch * 0.75, plain["maps[4]"] - plain["maps[3]"], atol=1e-5, rtol=1e-5)
    module.eval()
    torch.testing.assert_close(module(image)["class"], module(image, torch.ones(2, 2))["class"], atol=0, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layers[2].groups=5",), r"model\.layers\[2\]\.conv\.groups: 5 groups do not divide 6 and 6 channels"),
        (("layers[3].norm.groups=5",), r"model\.layers\[3\]\.norm\.groups: 5 groups do not divide 6 channels"),
        (("layers[5].drop=0.1",), r"model\.layers\[5\]\.drop: there is no shortcut here"),
        (("layers[0].channels=0",), r"model\.layers\[0\]\.conv: 0 channels"),
        (("layers[0].stride=0",), r"model\.layers\[0\]\.conv: .* every 0 pixels"),
        (("layers[2].excite.ratio=0.01",), r"model\.layers\[2\]\.excite\.ratio: 0.01 times 15 channels leaves nothing"),
        (("classes=none",), r"model\.classes: None classes"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_path(change: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        override(toy(), *change).build()


def test_an_image_that_is_too_small_is_refused_with_the_cure() -> None:
    message = r"model\.layers\[6\]\.conv\.stride: maps of 1 x 1 cannot shrink by 2. Use a larger image, or a stem"
    with pytest.raises(SpecError, match=message):
        frugalvit.model("resnet18", image=16).build()
    frugalvit.model("resnet18", "stem=Stem(64)", image=16).build()
    with pytest.raises(SpecError, match="batch: one picture on maps of 1 x 1 has no variance"):
        frugalvit.model("resnet18", image=32, classes=3).build()(torch.randn(1, 3, 32, 32))
    with pytest.raises(SpecError, match=r"drop: a drop rate of 1\.0"):
        BasicBlock(3, drop=1.0)
    with pytest.raises(SpecError, match=r"taps: 'tokens\[0\]' is not a tap. Use maps\[i\]"):
        toy().build(taps=("tokens[0]",))


def test_a_hybrids_stem_refuses_what_a_tokenizer_cannot_do() -> None:
    small = hybrid(depths=(1,), dim=12, heads=3, depth=1, image=(40, 56), classes=9)
    assert isinstance(small.tokenizer, ConvStem)
    assert small.build()(torch.randn(2, 3, 40, 56))["class"].shape == (2, 9)
    assert small.build().shapes[0].height == 10 and small.build().shapes[0].width == 14
    dropping = replace(small.tokenizer, layers=(replace(small.tokenizer.layers[0], drop=0.1),))
    with pytest.raises(SpecError, match=r"model\.tokenizer\.layers\[0\]\.drop: a tokenizer is given nothing to decide by"):
        replace(small, tokenizer=dropping).build()
    with pytest.raises(SpecError, match=r"model\.tokenizer: patches of 3 x 3 do not tile maps of 10 x 14 \(image 40 x 56\)"):
        replace(small, tokenizer=replace(small.tokenizer, patch=3)).build()


def test_a_network_compiles_whole_and_agrees() -> None:
    module = toy(0.3).build(seed=0)
    image, draws = torch.randn(2, 3, 20, 28), module.random_draws(2)
    expected = module(image, draws)
    torch.testing.assert_close(torch.compile(module, backend="eager", fullgraph=True)(image, draws), expected)


# ------------------------------------------------------------------------------------------------ training


def tiny_net(*overrides: str) -> Recipe:
    model = resnet(block=BasicBlock(8), depths=(1, 1), stem=Stem(8), image=8, channels=1, classes=None, drop_path=0.2)
    return replace(tiny(*overrides), model=model)


def test_old_recipes_and_configs_with_a_model_still_load() -> None:
    old = encode(tiny())
    assert old["model"]["part"] == "Model"
    assert decode(json.loads(json.dumps(old)), Recipe) == tiny()
    assert decode(json.loads(json.dumps(encode(tiny_net()))), Recipe) == tiny_net()
    assert isinstance(tiny_net().model, Architecture)


def test_a_resumed_training_has_the_same_statistics_averages_and_weights(tmp_path: Path) -> None:
    whole = train(tiny_net("stop=EarlyStop()"), out=tmp_path / "whole", device="cpu")
    with pytest.raises(Stopped):
        train(tiny_net("stop=EarlyStop()"), out=tmp_path / "run", device="cpu", display=StopAt(12))
    train(tiny_net("stop=EarlyStop()"), out=tmp_path / "run", device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")
    state = safetensors.torch.load_file(states(tmp_path / "whole")[-1])
    for part in ("model", "average", "best"):
        assert f"{part}.layers.1.branch.norm2.running_var" in state
    assert not torch.equal(state["model.stem.branch.norm1.running_mean"], state["average.stem.branch.norm1.running_mean"])

    loaded = frugalvit.load(tmp_path / "whole")
    assert whole.classifier is not None
    image = torch.randn(3, 1, 8, 8)
    assert torch.equal(loaded(image), whole.classifier(image))
    assert loaded.predict([np.zeros((8, 8), np.uint8)])[0].name in loaded.classes


class Spoiled(nn.Module):
    """Cross-entropy whose value is no number at its sixth call."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        self.calls += 1
        scale = math.nan if int(self.calls) == 6 else 1.0
        return {"own": scale * nn.functional.cross_entropy(outputs["class"], batch.label_B)}


def test_a_skipped_step_leaves_no_trace_in_the_statistics(tmp_path: Path) -> None:
    train(tiny_net("log_every=1", "save=Steps(1)", "keep=99"), out=tmp_path / "run", objective=Spoiled(), device="cpu")
    before, skipped, after = (
        safetensors.torch.load_file(tmp_path / "run" / "state" / f"step-{s:09d}.safetensors") for s in (5, 6, 7)
    )
    for name in (name for name in before if name.startswith("model.") and "running" in name):
        assert torch.equal(before[name], skipped[name])
        assert not torch.equal(skipped[name], after[name])
