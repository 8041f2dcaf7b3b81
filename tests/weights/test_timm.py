"""Logits equal timm's, weights carried over in both directions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import timm
import torch
from tests.zoo.test_models import MILLIONS, PARAMETERS
from timm.models.vision_transformer import checkpoint_filter_fn

from frugalvit.errors import WeightsNotice
from frugalvit.nn.block import Block
from frugalvit.nn.model import Model, VisionTransformer
from frugalvit.nn.readout import fuse
from frugalvit.weights.load import export_weights, load_weights
from frugalvit.weights.resample import BicubicAntialias
from frugalvit.zoo.find import model

PAPERS = [*PARAMETERS, *MILLIONS]
TOLERANCE = 1e-5


def lively(module: torch.nn.Module) -> torch.nn.Module:
    """Random weights away from any initialization's zeros and ones, scaled so that activations stay near one."""
    noise = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))  # a prime: no row repeats another
    start = 0
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            rows = noise.repeat((start + parameter.numel()) // len(noise) + 1)
            values = rows[start : start + parameter.numel()].view(parameter.shape)
            start = (start + 101) % len(noise)
            if parameter.ndim == 1:
                parameter.copy_(values * 0.1 + ("norm" in name and name.endswith("weight")))
            elif parameter.ndim == 2:
                parameter.copy_(values * parameter.shape[1] ** -0.5)
            else:
                parameter.copy_(values * (0.02 if "embed.proj" in name or "tokenizer" in name else 0.5))
    return module.eval()


def unfilled(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """A module whose parameters are yet to be filled, without the minutes that initializing them takes."""
    with torch.device("meta"):
        module = build()
    return module.to_empty(device="cpu").eval()


@torch.inference_mode()
def difference(ours: VisionTransformer, theirs: torch.nn.Module, size: tuple[int, int]) -> float:
    image = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
    expected = theirs(image)
    assert expected.std() > 0.1  # a silent model would agree with anything
    return (fuse(ours(image)) - expected).abs().max().item()


SHALLOW = 2  # blocks that are enough to see other sizes by
LONG = ("vit_large_patch16_224", "deit_base_patch16_384", "deit_base_distilled_patch16_384")  # to compute


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in PAPERS])
def test_logits_equal_timms_in_both_directions_and_at_other_sizes(name: str) -> None:
    spec = model(name)
    size = (spec.image.height, spec.image.width)
    theirs = lively(unfilled(lambda: timm.create_model(name)))
    ours = unfilled(spec.build)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is resampled, nothing is fresh
        assert str(load_weights(ours, theirs.state_dict())) == ""
    assert difference(ours, theirs, size) <= TOLERANCE
    written = export_weights(ours)
    assert written.keys() == theirs.state_dict().keys()
    assert all(torch.equal(written[key], value) for key, value in theirs.state_dict().items())
    del ours, written

    behind = tuple(f"blocks.{number}." for number in range(SHALLOW, 99))
    weights = {key: value for key, value in theirs.state_dict().items() if not key.startswith(behind)}
    weights = at_224(weights, name) if size != (224, 224) else weights
    for other in ((192, 192), (112, 160)) if "patch8" in name else ((384, 384), (224, 320)):
        larger = unfilled(lambda other=other: timm.create_model(name, img_size=other, depth=SHALLOW))
        larger.load_state_dict(checkpoint_filter_fn(dict(weights), larger))
        resized = unfilled(shallow(model(name, image=other)).build)
        with pytest.warns(WeightsNotice, match="positions resampled from"):
            load_weights(resized, weights, resample=BicubicAntialias())
        assert difference(resized, larger, other) <= TOLERANCE


def shallow(spec: Model) -> Model:
    first = next(place for place, layer in enumerate(spec.layers) if isinstance(layer, Block))
    return replace(spec, layers=spec.layers[: first + SHALLOW])


def at_224(state: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """The state with positions of the 224-pixel model, to be resized from."""
    positions = lively(unfilled(lambda: timm.create_model(name, img_size=224, depth=1))).pos_embed
    return state | {"pos_embed": positions.detach()}


def test_what_we_export_loads_in_timm_from_a_file(tmp_path) -> None:
    from frugalvit.weights.files import write_safetensors

    ours = lively(model("deit_tiny_distilled_patch16_224", classes=5).build())
    write_safetensors(tmp_path / "deit.safetensors", export_weights(ours))
    theirs = timm.create_model("deit_tiny_distilled_patch16_224", num_classes=5, checkpoint_path=tmp_path / "deit.safetensors")
    assert difference(ours, theirs.eval(), (224, 224)) <= TOLERANCE


def test_wrappers_around_a_state_dict_are_taken_off() -> None:
    theirs = lively(timm.create_model("deit_tiny_patch16_224"))
    ours = model("deit_tiny_patch16_224").build(seed=0).eval()
    wrapped = {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in theirs.state_dict().items()}}
    load_weights(ours, wrapped)
    assert difference(ours, theirs, (224, 224)) <= TOLERANCE


def test_features_are_timms() -> None:
    theirs = lively(timm.create_model("deit_tiny_distilled_patch16_224"))
    ours = model("deit_tiny_distilled_patch16_224").build(seed=0).eval()
    load_weights(ours, theirs.state_dict())
    image = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        expected = theirs.forward_head(theirs.forward_features(image), pre_logits=True)
        found = torch.stack(list(ours.features(image).values())).mean(0)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
