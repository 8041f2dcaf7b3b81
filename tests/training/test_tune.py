"""Which parameters learn, and which statistics move."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import frugalvit
from frugalvit.data.dataset import Digits
from frugalvit.deploy.classifier import Classifier
from frugalvit.errors import SpecError
from frugalvit.nn.model import Model
from frugalvit.training.devices import place_for
from frugalvit.training.evaluate import Framed, evaluate
from frugalvit.training.optimizer import AdamW, Sgd, parameter_groups
from frugalvit.training.prepare import prepare
from frugalvit.training.tune import Everything, HeadsAndLastNorm, HeadsOnly, Tune

LAST = {  # the norm that the readout sees last, by model
    "small_vit_32": "readout.norm",
    "swin_tiny_patch4_window7_224": "readout.norm",
    "resnet18": "layers.7.branch.norm2",
    "regnety_160": "layers.17.branch.norm3",  # whose shortcut has a norm too
    "efficientnet_b0": "layers.16.branch.norm1",
    "timm:test_resnet": "network.layer4.0.bn2",  # likewise
    "timm:resnet18": "network.layer4.1.bn2",
    "timm:deit_tiny_patch16_224": "network.norm",
    "torchvision:resnet50": "network.layer4.2.bn3",
}


def learning(module: torch.nn.Module) -> set[str]:
    return {name for name, one in module.named_parameters() if one.requires_grad}


def test_a_linear_probe_learns_the_heads_alone(toy: Model) -> None:
    module = toy.build()
    groups = parameter_groups(module, Sgd(0.1), HeadsOnly())
    assert {name.split(".")[1] for group in groups for name in group["names"]} == {"heads"}
    assert learning(module) == {name for name, _ in module.named_parameters() if name.startswith("readout.heads.")}


def test_the_last_map_of_a_model_of_others_can_be_probed() -> None:
    module = frugalvit.model("timm:test_resnet", image=32, classes=5).build(seed=0)
    groups = parameter_groups(module, Sgd(0.1), HeadsOnly())
    names = {name for group in groups for name in group["names"]}
    assert names == {"network.fc.weight", "network.fc.bias"} == learning(module)


@pytest.mark.parametrize("name", LAST)
def test_the_last_norm_is_the_one_before_the_heads(name: str) -> None:
    if ":" in name:
        pytest.importorskip(name.partition(":")[0])
    with torch.device("meta"):
        module = frugalvit.model(name, classes=5).build()
    (heads,), (same, norm) = HeadsOnly().starts(module), HeadsAndLastNorm().starts(module)
    assert (same, norm) == (heads, f"{LAST[name]}.")
    parameter_groups(module, Sgd(0.1), HeadsAndLastNorm())
    of_heads = {one for one, _ in module.named_parameters() if one.startswith(heads)}
    assert of_heads and learning(module) == of_heads | {f"{LAST[name]}.weight", f"{LAST[name]}.bias"}


def test_both_heads_learn_behind_one_norm(toy: Model) -> None:
    module = toy.build()
    parameter_groups(module, Sgd(0.1), HeadsAndLastNorm())
    heads = {f"readout.heads.{head}.{what}" for head in ("class", "distill") for what in ("weight", "bias")}
    assert learning(module) == heads | {"readout.norm.weight", "readout.norm.bias"}


@pytest.mark.parametrize("tune", [Everything(), HeadsOnly(), HeadsAndLastNorm()], ids=lambda one: type(one).__name__)
def test_what_is_frozen_stays_so_and_is_left_out(toy: Model, tune: Tune) -> None:
    module = toy.build()
    learned = [name for name, _ in module.named_parameters() if name.startswith(tune.starts(module))]
    module.get_parameter(learned[0]).requires_grad_(False)
    groups = parameter_groups(module, AdamW(1e-3, layer_decay=0.5), tune)
    assert sorted(name for group in groups for name in group["names"]) == sorted(learned[1:])
    assert learning(module) == set(learned[1:])


@pytest.mark.parametrize("tune", [HeadsOnly(), HeadsAndLastNorm()], ids=lambda one: type(one).__name__)
def test_a_module_of_ones_own_does_not_tell_its_heads(tune: Tune, tmp_path: Path) -> None:
    made = replace(frugalvit.recipe("vit.digits", "epochs=1"), tune=tune)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 10))
    with pytest.raises(SpecError, match=r"recipe\.tune: Wrapped does not tell its heads\. Freeze what shall not learn"):
        frugalvit.train(made, out=tmp_path / "run", model=module, device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_network_without_norms_has_none_to_learn() -> None:
    module = torch.nn.ModuleDict({"readout": torch.nn.ModuleDict({"heads": torch.nn.Linear(3, 2)})})
    assert HeadsOnly().starts(module) == ("readout.heads.",)
    with pytest.raises(SpecError, match=r"recipe\.tune: the model has no norm that could learn\. Use HeadsOnly"):
        HeadsAndLastNorm().starts(module)


@pytest.mark.parametrize("model", ["timm:test_resnet", "resnet18"])
@pytest.mark.parametrize("tune", ["Everything", "HeadsOnly", "HeadsAndLastNorm"])
def test_statistics_move_where_a_norm_learns_and_nowhere_else(model: str, tune: str) -> None:
    if ":" in model:
        pytest.importorskip("timm")
    spec = frugalvit.model(model, image=32, classes=10, channels=1)
    made = replace(frugalvit.recipe("digits.resnet", "epochs=2", "batch=16", f"tune={tune}"), model=spec)
    training = prepare(made, {"train": Digits().open("train", None)}, place_for("cpu", "fp32"))
    module = training.state.module
    before = {name: value.clone() for name, value in module.state_dict().items() if "running_" in name}
    evaluate_and_go_on = module.eval().train()
    draws = module.random_draws(4, torch.Generator().manual_seed(0)) if module.draws else None
    evaluate_and_go_on(torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(1)), draws)
    moved = {name.rpartition(".")[0] for name, value in before.items() if not torch.equal(value, module.state_dict()[name])}
    every = {name.rpartition(".")[0] for name in before}
    last = HeadsAndLastNorm().starts(module)[1].removesuffix(".")
    assert moved == {"Everything": every, "HeadsOnly": set(), "HeadsAndLastNorm": {last}}[tune]


def test_a_teacher_is_fitted_to_larger_pictures_by_its_last_norm_and_heads(tmp_path: Path) -> None:
    """FixRes: half again as large, a convnet of the digits loses much of what it knows, and gets some of it back."""
    small = frugalvit.train(frugalvit.recipe("digits.resnet", "epochs=4"), out=tmp_path / "small", device="cpu")
    assert small.classifier is not None
    words = ("model.image=12", "tune=HeadsAndLastNorm", "duration=Epochs(4)", "schedule.warmup=Steps(5)")
    fitting = frugalvit.recipe(str(tmp_path / "small"), *words)
    fitted = frugalvit.train(fitting, out=tmp_path / "fitted", init=str(tmp_path / "small"), device="cpu")
    assert fitted.classifier is not None
    module = fitted.classifier.spec.model.build(seed=0)
    module.load_state_dict(small.classifier.module.state_dict())
    unfitted = Classifier(fitted.classifier.spec, module).eval()
    framed = Framed(Digits().open("val", None), unfitted.preprocess, place_for("cpu", "fp32"))
    assert evaluate(fitted.classifier.module, framed, 0)["top1"] > evaluate(module, framed, 0)["top1"] + 5
    same = {
        name
        for name, value in fitted.classifier.module.state_dict().items()
        if torch.equal(value, small.classifier.module.state_dict()[name])
    }
    assert {name.rpartition(".")[0] for name in fitted.classifier.module.state_dict() if name not in same} == {
        "readout.heads.class",
        HeadsAndLastNorm().starts(module)[1].removesuffix("."),
    }
