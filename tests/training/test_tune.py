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

LAST = {  # the norms that the readout sees last, by model
    "small_vit_32": ("readout.norm",),
    "swin_tiny_patch4_window7_224": ("readout.norm",),
    "resnet18": ("layers.7.branch.norm2",),
    "regnety_160": ("layers.17.branch.norm3",),  # whose shortcut has a norm too
    "efficientnet_b0": ("layers.16.branch.norm1",),
    "timm:test_resnet": ("network.layer4.0.bn2",),  # likewise
    "timm:resnet18": ("network.layer4.1.bn2",),
    "timm:test_efficientnet": ("network.bn2",),  # timm's own kind, with the rectifier in it
    "timm:deit_tiny_patch16_224": ("network.norm",),
    "timm:deit_tiny_distilled_patch16_224": ("network.norm",),
    "timm:levit_128s": ("network.head.bn", "network.head_dist.bn"),
    "timm:crossvit_tiny_240": ("network.norm.0", "network.norm.1"),
    "timm:repvgg_a0": ("network.stages.3.0.conv_kxk.bn", "network.stages.3.0.conv_1x1.bn"),  # two ways that are added
    "timm:mobilenetv5_base": ("network.msfa.norm",),  # a norm of timm's own
    "torchvision:resnet50": ("network.layer4.2.bn3",),
    "torchvision:regnet_y_400mf": ("network.trunk_output.block4.block4-5.f.c.1",),
    "torchvision:googlenet": tuple(f"network.inception5b.branch{way}.bn" for way in ("1", "2.1", "3.1", "4.1")),  # joined
    "torchvision:swin_t": ("network.norm",),
}

HEADS = {  # of models of others: all that the logits come from, and none that is auxiliary
    "timm:deit_tiny_distilled_patch16_224": ("network.head", "network.head_dist"),
    "timm:levit_128s": ("network.head.linear", "network.head_dist.linear"),
    "timm:crossvit_tiny_240": ("network.head.0", "network.head.1"),
    "torchvision:googlenet": ("network.fc",),
    "torchvision:squeezenet1_1": ("network.classifier.1",),  # a convolution
    "torchvision:mobilenet_v3_small": ("network.classifier.3",),
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


def meta(name: str, classes: int = 5) -> torch.nn.Module:
    if ":" in name:
        pytest.importorskip(name.partition(":")[0])
    with torch.device("cpu" if "regnet_y" in name else "meta"):  # torchvision reads its initial values there
        return frugalvit.model(name, classes=classes).build()


@pytest.mark.parametrize("name", LAST)
def test_the_last_norms_are_those_before_the_heads(name: str) -> None:
    module = meta(name)
    heads, found = HeadsOnly().starts(module), HeadsAndLastNorm().starts(module)
    assert found == (*heads, *(f"{norm}." for norm in LAST[name]))
    parameter_groups(module, Sgd(0.1), HeadsAndLastNorm())
    of_heads = {one for one, _ in module.named_parameters() if one.startswith(heads)}
    of_norms = {one for one, _ in module.named_parameters() if one.rpartition(".")[0] in LAST[name]}
    assert of_heads and len(of_norms) >= len(LAST[name]) and learning(module) == of_heads | of_norms


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("classes", [5, 192])  # which is the width of some
def test_all_heads_of_a_model_of_others_learn_and_auxiliary_ones_do_not(name: str, classes: int) -> None:
    module = meta(name, classes)
    assert HeadsOnly().starts(module) == tuple(f"{head}." for head in HEADS[name])


def test_looking_for_the_ends_of_a_model_leaves_it_as_it_was() -> None:
    module = frugalvit.model("timm:test_resnet", image=32, classes=5).build(seed=0)
    module.train()
    modes = {name: part.training for name, part in module.named_modules()}
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with torch.no_grad():
        HeadsAndLastNorm().starts(module)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert {name: part.training for name, part in module.named_modules()} == modes and any(modes.values())
    assert not any(part._forward_hooks for part in module.modules())
    assert all(one.grad is None for one in module.parameters())


def test_a_last_norm_without_parameters_cannot_learn() -> None:
    module = meta("timm:qwen3_vit_88m")
    assert HeadsOnly().starts(module) == ("network.head.",)
    with pytest.raises(SpecError, match=r"recipe\.tune: its last norm, network\.norm, has no parameters that could learn"):
        HeadsAndLastNorm().starts(module)


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
    last = HeadsAndLastNorm().starts(module)[1].removesuffix(".")
    for again in (lambda: module, lambda: module.eval().train()):  # as it is trained first, and after a validation
        before = {name: value.clone() for name, value in module.state_dict().items() if "running_" in name}
        draws = module.random_draws(4, torch.Generator().manual_seed(0)) if module.draws else None
        again()(torch.randn(4, 1, 32, 32, generator=torch.Generator().manual_seed(1)), draws)
        moved = {name.rpartition(".")[0] for name, one in before.items() if not torch.equal(one, module.state_dict()[name])}
        every = {name.rpartition(".")[0] for name in before}
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
