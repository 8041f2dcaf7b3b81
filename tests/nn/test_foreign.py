"""Classifiers of timm and torchvision wherever a model may stand."""

from __future__ import annotations

import builtins
import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
import torchvision
from tests.training.runs import StopAt, Stopped, states, tiny, trace

import frugalvit
from frugalvit.errors import SpecError, WeightsError, WeightsNotice
from frugalvit.measure.cost import cost
from frugalvit.measure.table import cost_table
from frugalvit.nn.foreign import ForeignModel
from frugalvit.nn.shape import Image
from frugalvit.run import train
from frugalvit.spec import decode, encode
from frugalvit.training.recipe import Recipe
from frugalvit.weights.load import export_weights, load_weights

NAMES = ["timm:test_resnet", "timm:test_vit", "torchvision:mobilenet_v3_small"]


@pytest.mark.parametrize("name", NAMES)
def test_a_foreign_model_builds_steps_counts_and_survives_json(name: str) -> None:
    spec = frugalvit.model(name, classes=7, image=64)
    assert decode(json.loads(json.dumps(encode(spec))), ForeignModel) == spec
    module = spec.build(seed=1)
    outputs = module(torch.randn(2, 3, 64, 64), module.random_draws(2))
    assert {head: tuple(logits.shape) for head, logits in outputs.items()} == {"class": (2, 7)} and spec.heads == ("class",)
    outputs["class"].square().sum().backward()
    counted = cost(spec)
    assert counted.parameters == sum(one.numel() for one in module.parameters())
    assert counted.macs > 10**6
    assert cost_table(spec, counted).row_count == 2
    again = spec.build(seed=1).state_dict()
    assert all(torch.equal(again[key], value) for key, value in spec.build(seed=1).state_dict().items())


def test_logits_and_features_are_the_librarys_own() -> None:
    ours = frugalvit.model("timm:test_resnet", classes=7, image=64).build(seed=0).eval()
    theirs = timm.create_model("test_resnet", num_classes=7).eval()
    theirs.load_state_dict(export_weights(ours), strict=True)
    image = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(image)["class"], theirs(image))
    expected = theirs.forward_head(theirs.forward_features(image), pre_logits=True)
    assert torch.equal(ours.features(image)["class"], expected)
    with pytest.raises(SpecError, match="readout: squeezenet1_1 does not end in one linear map"):
        frugalvit.model("torchvision:squeezenet1_1", classes=7, image=64).build().features(image)


def test_what_it_drops_is_a_function_of_the_draws() -> None:
    module = frugalvit.model("torchvision:mobilenet_v3_small", classes=7, image=64).build(seed=0).train()
    image, draws = torch.randn(4, 3, 64, 64), module.random_draws(4, torch.Generator().manual_seed(3))
    generator = torch.random.get_rng_state()
    one, two, other = (module(image, each)["class"] for each in (draws, draws, 1 - draws))
    assert torch.equal(one, two) and not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), generator)


def test_weights_of_both_libraries_load_and_a_head_may_be_fresh() -> None:
    theirs = torchvision.models.mobilenet_v3_small(weights=None, num_classes=7)
    ours = frugalvit.model("torchvision:mobilenet_v3_small", classes=7, image=64).build()
    load_weights(ours, theirs.state_dict(), "torchvision")
    image = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours.eval()(image)["class"], theirs.eval()(image))
    other = frugalvit.model("torchvision:mobilenet_v3_small", classes=5, image=64).build()
    with pytest.warns(WeightsNotice, match=r"head 'network.classifier.3' is fresh: the file has 7 classes, the model 5"):
        load_weights(other, theirs.state_dict(), "torchvision")
    with pytest.raises(WeightsError, match=r"origin: the model is of torchvision. Use origin='torchvision'"):
        load_weights(other, theirs.state_dict(), "timm")
    with pytest.raises(WeightsError, match=r"augreg has no names for a ForeignModel"):
        export_weights(other, "augreg")


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("timm:deit_tiny_distilled_patch16_224", ("network.head", "network.head_dist")),
        ("torchvision:googlenet", ("network.aux1.fc2", "network.aux2.fc2", "network.fc")),  # two that are auxiliary
        ("torchvision:squeezenet1_1", ("network.classifier.1",)),  # a convolution
    ],
)
def test_all_heads_are_fresh_where_the_classes_are_others(name: str, heads: tuple[str, ...]) -> None:
    theirs, ours = (frugalvit.model(name, classes=classes).build(seed=classes) for classes in (7, 5))
    library = name.partition(":")[0]
    with pytest.warns(WeightsNotice) as told:
        load_weights(ours, export_weights(theirs, library), library)
    assert all(f"head '{head}' is fresh" in str(told[0].message) for head in heads)
    other = {key for key, value in ours.state_dict().items() if value.shape != theirs.state_dict()[key].shape}
    assert other == {f"{head}.{what}" for head in heads for what in ("weight", "bias")}
    assert all(torch.equal(value, theirs.state_dict()[key]) for key, value in ours.state_dict().items() if key not in other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:resnet26e", "timm:resnet26e.name: timm has no model 'resnet26e'. Did you mean 'resnet26'?"),
        ("torchvision:mobilenet_v3_smal", "torchvision has no model 'mobilenet_v3_smal'. Did you mean 'mobilenet_v3_small'?"),
        ("torchvision:fcn_resnet50", "torchvision has no model 'fcn_resnet50'"),  # no classifier
        ("timm:hf-hub:timm/resnet18", "timm has no model 'hf-hub:timm/resnet18'"),  # nothing is downloaded
        ("tim:resnet18", "tim:resnet18.library: no library is called 'tim'. Did you mean 'timm'?"),
    ],
)
def test_a_wrong_name_is_refused_with_the_nearest(name: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        frugalvit.model(name)
    assert message in str(error.value)


def test_what_a_library_cannot_do_is_said() -> None:
    with pytest.raises(SpecError, match=r"model\.image\.channels: 1 channels. torchvision's models take 3"):
        frugalvit.model("torchvision:resnet18", channels=1).build()
    with pytest.raises(SpecError, match=r"model\.taps: a model of timm has no places to tap"):
        frugalvit.model("timm:test_resnet").build(taps=("maps[0]",))
    with pytest.raises(SpecError, match="there is no parameter 'drop_path'"):
        frugalvit.model("timm:test_resnet", drop_path=0.1)
    with pytest.raises(SpecError, match="image: a batch of shape"):
        frugalvit.model("timm:test_resnet", image=64, classes=3).build()(torch.randn(2, 3, 32, 32))
    assert frugalvit.model("timm:vit_base_patch16_384").image == Image(384, 384)


def test_without_the_library_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def missing(name: str, package: str | None = None) -> object:
        if name == "timm":
            raise builtins.ImportError("no module named timm")
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SpecError, match=r"model\.library: timm is not installed. Run: pip install timm"):
        ForeignModel("timm", "resnet18", 10, Image(32, 32)).build()


@pytest.mark.parametrize(("name", "channels"), [("timm:test_resnet", 1), ("torchvision:shufflenet_v2_x0_5", 3)])
def test_it_trains_resumes_saves_loads_and_predicts(tmp_path: Path, name: str, channels: int) -> None:
    spec = frugalvit.model(name, image=32, channels=channels)
    gray = ",".join(["0.4"] * channels)
    recipe = tiny("epochs=1", "evaluate=Steps(4)", "save=Steps(2)", f"data.mean={gray}", f"data.std={gray}")
    recipe = replace(recipe, model=replace(spec, classes=None))
    assert decode(json.loads(json.dumps(encode(recipe))), Recipe) == recipe
    done = train(recipe, out=tmp_path / "whole", device="cpu")
    with pytest.raises(Stopped):
        train(recipe, out=tmp_path / "run", device="cpu", display=StopAt(4))
    train(recipe, out=tmp_path / "run", device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")
    state = safetensors.torch.load_file(states(tmp_path / "whole")[-1])
    counters = [value for name, value in state.items() if name.startswith("model.") and "num_batches" in name]
    assert counters and all(value == 8 for value in counters)

    loaded = frugalvit.load(tmp_path / "whole")
    assert done.classifier is not None
    image = torch.randn(3, channels, 32, 32)
    assert torch.equal(loaded(image), done.classifier(image))
    assert loaded.predict([np.zeros((8, 8), np.uint8)])[0].name in loaded.classes
    loaded.half().save(tmp_path / "half")
    assert next(frugalvit.load(tmp_path / "half").parameters()).dtype == torch.float16
