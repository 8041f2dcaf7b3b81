"""Logits of convolutional networks and hybrids equal timm's and torchvision's, weights carried over in both directions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision

from frugalvit.assign import override
from frugalvit.errors import WeightsError, WeightsNotice
from frugalvit.nn.conv import Silu
from frugalvit.nn.conv_blocks import BasicBlock, Bottleneck, Stem
from frugalvit.nn.map_norm import BatchNorm, GroupNorm
from frugalvit.nn.network import Network
from frugalvit.spec import swap
from frugalvit.weights.files import write_npz
from frugalvit.weights.load import export_weights, load_weights
from frugalvit.weights.published import published, released
from frugalvit.weights.timm import names
from frugalvit.zoo.find import model
from frugalvit.zoo.resnet import resnet

TOLERANCE = 1e-5
SIZES = {  # of the images: full where it is fast
    "resnet18": 224,
    "resnet34": 96,
    "resnet50": 224,
    "regnety_160": 96,
    "efficientnet_b0": 224,
    "vit_tiny_r_s16_p8_224": 224,
    "vit_small_r26_s32_224": 224,
}


def lively(module: torch.nn.Module) -> torch.nn.Module:
    """Random weights and statistics away from any initialization's zeros and ones, activations near one."""
    noise = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))  # a prime: no row repeats another
    start = 0
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            value.fill_(3)
            continue
        values = noise.roll(-start).repeat(value.numel() // len(noise) + 1)[: value.numel()].view(value.shape)
        start += 101
        if name.endswith("running_var"):
            value.copy_(values.abs() * 0.5 + 0.75)
        elif value.ndim == 1:
            value.copy_(values * 0.1 + name.endswith("weight"))
        else:
            value.copy_(values * value[0].numel() ** -0.5)
    return module.eval()


def unfilled(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    with torch.device("meta"):
        module = build()
    return module.to_empty(device="cpu").eval()


def timms(name: str, size: int) -> torch.nn.Module:
    return unfilled(lambda: timm.create_model(name, **({"img_size": size} if name.startswith("vit") else {})))


@torch.inference_mode()
def difference(ours: Network, theirs: torch.nn.Module, size: int) -> float:
    image = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    expected = theirs(image)
    assert expected.std() > 0.1  # a silent model would agree with anything
    return (ours(image)["class"] - expected).abs().max().item()


@pytest.mark.parametrize("name", SIZES)
def test_logits_equal_timms_in_both_directions(name: str) -> None:
    size = SIZES[name]
    theirs, ours = lively(timms(name, size)), unfilled(model(name, image=size).build)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(load_weights(ours, theirs.state_dict())) == ""
    assert difference(ours, theirs, size) <= TOLERANCE
    lively(ours)
    theirs.load_state_dict(export_weights(ours), strict=True)
    assert difference(ours, theirs, size) <= TOLERANCE


OTHERS = ["regnety_040", "regnety_080", "regnety_120", "vit_tiny_r_s16_p8_384", "vit_small_r26_s32_384"]
OTHERS += ["vit_large_r50_s32_224", "vit_large_r50_s32_384"]


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_sizes_have_timms_names_and_shapes(name: str) -> None:
    with torch.device("meta"):
        theirs, ours = timm.create_model(name).state_dict(), model(name).build()
        found = export_weights(ours)
    assert {key: value.shape for key, value in found.items()} == {key: value.shape for key, value in theirs.items()}


REGNETY_002 = ("regnety", "depth=13", "start=24", "slope=36.44", "multiplier=2.49", "group=8")


@pytest.mark.parametrize("name", ["resnet18", "regnety_002", "efficientnet_b0"])
def test_training_equals_timms_logits_gradients_and_statistics(name: str) -> None:
    spec = model(*REGNETY_002, image=64) if name == "regnety_002" else model(name, image=64)
    theirs, ours = lively(timms(name, 64)), unfilled(spec.build)
    load_weights(ours, theirs.state_dict())
    theirs.double().train()
    ours.double().train()
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected, found = theirs(image), ours(image)["class"]
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)
    expected.square().mean().backward()
    found.square().mean().backward()
    gradients, own = (dict(one.named_parameters()) for one in (theirs, ours))
    for foreign, name in names(ours.spec):
        if name in own:
            torch.testing.assert_close(own[name].grad, gradients[foreign].grad, atol=1e-9, rtol=1e-6)
    statistics = {key: value for key, value in export_weights(ours).items() if "running" in key}
    assert len(statistics) > 30
    for key, value in statistics.items():
        torch.testing.assert_close(value, theirs.state_dict()[key], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_torchvisions_resnets_load_and_are_written(name: str) -> None:
    theirs = lively(unfilled(lambda: torchvision.models.get_model(name, weights=None)))
    ours = unfilled(model(name, image=96).build)
    load_weights(ours, theirs.state_dict(), "torchvision")
    assert difference(ours, theirs, 96) <= TOLERANCE
    theirs.load_state_dict(export_weights(ours, "torchvision"), strict=True)


@pytest.mark.parametrize("name", ["vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224"])
def test_augregs_hybrid_files_are_written_as_timm_reads_them_and_read_back(tmp_path: Path, name: str) -> None:
    ours = lively(unfilled(model(name, image=64).build))
    write_npz(tmp_path / "hybrid.npz", export_weights(ours, "augreg"))
    arrays = dict(np.load(tmp_path / "hybrid.npz"))
    assert arrays["gn_root/scale"].shape == (1, 1, 1, 64) and arrays["conv_root/kernel"].shape == (7, 7, 3, 64)
    theirs = timms(name, 64)
    theirs.load_pretrained(str(tmp_path / "hybrid.npz"))
    assert difference(ours, theirs, 64) <= TOLERANCE
    flat = {f"opt/target/{key}": np.squeeze(value) if "/gn" in f"/{key}" else value for key, value in arrays.items()}
    for file in (arrays, flat) if "tiny" in name else (flat,):
        again = unfilled(model(name, image=64).build)
        load_weights(again, {key: torch.from_numpy(value) for key, value in file.items()}, "augreg")
        assert all(torch.equal(one, other) for one, other in zip(again.parameters(), ours.parameters(), strict=True))


def test_positions_of_a_hybrid_follow_another_image_size() -> None:
    theirs = lively(timms("vit_tiny_r_s16_p8_224", 64))
    ours = unfilled(model("vit_tiny_r_s16_p8_224", image=96).build)
    with pytest.warns(WeightsNotice, match="positions resampled from 2 x 2 to 3 x 3"):
        load_weights(ours, theirs.state_dict())


def test_counters_are_neither_needed_nor_wanted_and_heads_may_be_fresh() -> None:
    theirs = lively(timm.create_model("resnet18", num_classes=5))
    old = {name: value for name, value in theirs.state_dict().items() if "num_batches" not in name}
    ours = model("resnet18", image=32, classes=5).build()
    assert str(load_weights(ours, {"model": {f"module.{name}": value for name, value in old.items()}})) == ""
    other = model("resnet18", image=32, classes=7).build()
    with pytest.warns(WeightsNotice, match="head 'class' is fresh: the file has 5 classes, the model 7"):
        load_weights(other, theirs.state_dict())
    assert torch.equal(other.layers[3].branch.norm1.running_var, theirs.layer2[1].bn1.running_var)
    with pytest.raises(WeightsError, match=r"nothing in the model maps to 'layer1\.2"):
        load_weights(ours, timm.create_model("resnet34", num_classes=5).state_dict())


def test_what_others_have_no_name_for_is_refused_or_said() -> None:
    small = resnet(block=BasicBlock(8), depths=(1,), stem=Stem(8), image=16, classes=3)
    with pytest.raises(
        WeightsError, match=r"export to hf\.origin: hf has no names for a ConvNet. Use timm or official or torchv"
    ):
        export_weights(small.build(), "hf")
    with pytest.raises(WeightsError, match="torchvision names this family otherwise"):
        export_weights(model("efficientnet_b0", image=32).build(), "torchvision")
    with pytest.warns(WeightsNotice, match="the model has GroupNorm"):
        export_weights(swap(small, BatchNorm, lambda _: GroupNorm(2)).build())
    with pytest.warns(WeightsNotice, match="the model has Silu"):
        export_weights(override(small, "layers[0].activation=Silu").build())
    assert Silu() != small.layers[0].activation
    mixed = override(small, 'layers[0]={"part": "ConvNorm", "channels": 8}')
    with pytest.raises(WeightsError, match=r"layers\[0\]: no other library has a name for ConvNorm"):
        export_weights(mixed.build())
    plain = swap(model("vit_tiny_r_s16_p8_224", image=64).tokenizer, Stem, lambda one: one)
    assert not any(isinstance(layer, Bottleneck) for layer in plain.layers)


def test_released_hybrids_and_the_teacher_are_where_timm_says() -> None:
    cfgs = [timm.get_pretrained_cfg(name) for name in ("vit_small_r26_s32_224.augreg_in21k", "regnety_160.deit_in1k")]
    assert [released()[name].url for name in ("vit_small_r26_s32_224.augreg_in21k", "regnety_160.deit_in1k")] == [
        cfg.url for cfg in cfgs
    ]
    for name, file in released().items():
        if "_r" in name.partition(".")[0]:
            assert (file.url, file.classes, file.crop) == (
                (cfg := timm.get_pretrained_cfg(name)).url,
                cfg.num_classes,
                cfg.crop_pct,
            )
    assert published("regnety_160").origin == "official"
    assert published("vit_large_r50_s32_384").classes == 1000
