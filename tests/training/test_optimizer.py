from __future__ import annotations

import pytest
import torch

from frugalvit.errors import SpecError
from frugalvit.nn.foreign import ForeignModel
from frugalvit.nn.model import Model
from frugalvit.nn.shape import Image
from frugalvit.training.average import Average, Ema, EmaOver
from frugalvit.training.optimizer import (
    AdamW,
    AllParameters,
    Matrices,
    Sgd,
    parameter_groups,
    peak_lr,
)
from frugalvit.training.tune import Everything


def test_matrices_are_decayed_and_nothing_else(toy: Model) -> None:
    module = toy.build()
    decayed = {name for name, parameter in module.named_parameters() if Matrices().covers(name, parameter)}
    expected = {"tokenizer.weight", "readout.heads.class.weight", "readout.heads.distill.weight"}
    for block in (2, 3):
        expected |= {f"layers.{block}.{name}.weight" for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")}
    assert decayed == expected


def test_groups_hold_every_parameter_once_with_its_decay(toy: Model) -> None:
    module = toy.build()
    groups = parameter_groups(module, AdamW(1e-3, weight_decay=0.3), Everything())
    names = [name for group in groups for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in module.named_parameters())
    built = AdamW(1e-3, weight_decay=0.3).build(groups, 1e-3)
    for group in built.param_groups:
        decays = {Matrices().covers(name, parameter) for name, parameter in zip(group["names"], group["params"], strict=True)}
        assert decays == {group["weight_decay"] == 0.3}


@pytest.mark.parametrize("make", [AdamW, Sgd])
def test_everything_decays_where_that_is_asked_for(toy: Model, make: type[AdamW | Sgd]) -> None:
    """Lee et al. decay biases, norms, positions and tokens as well: one step without gradients shrinks them all alike."""
    module = toy.build(seed=0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(2.0)
    spec = make(0.1, weight_decay=0.3, decays=AllParameters())
    groups = parameter_groups(module, spec, Everything())
    assert all("weight_decay" not in group for group in groups)
    optimizer = spec.build(groups, 0.1)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter, torch.full_like(parameter, 2 * (1 - 0.1 * 0.3)), msg=name)


def test_lower_layers_learn_slower(toy: Model) -> None:
    groups = parameter_groups(toy.build(), AdamW(1e-3, layer_decay=0.5), Everything())
    scale = {name: group["scale"] for group in groups for name in group["names"]}
    assert scale["readout.heads.class.weight"] == scale["readout.norm.weight"] == 1
    assert scale["layers.3.mlp.up.weight"] == 0.5
    assert scale["layers.2.mlp.up.weight"] == 0.25
    assert scale["tokenizer.weight"] == scale["layers.0.tokens.class"] == scale["layers.1.positions"] == 0.5**3


def test_nothing_learns_where_everything_is_frozen(toy: Model) -> None:
    with pytest.raises(SpecError, match=r"model: all of its parameters are frozen\. Unfreeze"):
        parameter_groups(toy.build().requires_grad_(False), AdamW(1e-3), Everything())


def undecayed(library: str, name: str, side: int) -> tuple[torch.nn.Module, set[str]]:
    """A model of another library, and the matrices of it that do not decay."""
    module = ForeignModel(library, name, 7, Image(side, side, 3)).build(seed=0)  # type: ignore[arg-type]
    groups = parameter_groups(module, AdamW(1e-3, weight_decay=0.3), Everything())  # type: ignore[arg-type]
    still = {name for group in groups if group.get("weight_decay") == 0 for name in group["names"]}
    return module.network, {name.removeprefix("network.") for name in still if module.get_parameter(name).ndim > 1}


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "swin_tiny_patch4_window7_224", "resnet18"])
def test_models_of_timm_decay_as_in_timm(name: str) -> None:
    factory = pytest.importorskip("timm.optim")
    network, ours = undecayed("timm", name, 224)
    spared = network.no_weight_decay() if hasattr(network, "no_weight_decay") else ()
    theirs, _ = factory.param_groups_weight_decay(network, 0.3, no_weight_decay_list=spared)
    assert theirs["weight_decay"] == 0
    ids = {id(one) for one in theirs["params"]}
    assert ours == {path for path, one in network.named_parameters() if id(one) in ids and one.ndim > 1}
    assert bool(ours) == (name != "resnet18")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("vit_b_32", {"class_token", "encoder.pos_embedding"}),
        (
            "swin_t",
            {
                f"features.{i}.{j}.attn.relative_position_bias_table"
                for i, n in ((1, 2), (3, 2), (5, 6), (7, 2))
                for j in range(n)
            },
        ),
        ("resnet18", set()),
    ],
)
def test_tokens_and_positions_of_torchvision_do_not_decay(name: str, wanted: set[str]) -> None:
    pytest.importorskip("torchvision")
    assert undecayed("torchvision", name, 64)[1] == wanted


def test_everything_decays_in_a_model_of_timm_too_where_that_is_asked_for() -> None:
    pytest.importorskip("timm")
    module = ForeignModel("timm", "deit_tiny_patch16_224", 7, Image(32, 32, 3)).build(seed=0)
    groups = parameter_groups(module, AdamW(1e-3, decays=AllParameters()), Everything())
    assert all("weight_decay" not in group for group in groups)


def test_the_learning_rate_grows_with_the_pictures_it_is_meant_for() -> None:
    assert peak_lr(AdamW(5e-4, per=512), 1024) == 1e-3
    assert peak_lr(AdamW(5e-4), 1024) == 5e-4


@pytest.mark.parametrize("spec", [AdamW(0.1), Sgd(0.1)])
def test_a_step_that_is_no_number_changes_neither_weights_nor_moments(spec: AdamW | Sgd) -> None:
    parameter = torch.nn.Parameter(torch.randn(5))
    optimizer = spec.build([{"params": [parameter], "names": ["p"], "scale": 1.0}], 0.1)
    for bad in (False, True):
        before = parameter.detach().clone(), {k: v.clone() for k, v in optimizer.state[parameter].items()}
        parameter.grad = torch.full((5,), torch.nan if bad else 1.0)
        optimizer.found_inf = torch.tensor(float(bad))
        optimizer.step()
        assert torch.equal(parameter, before[0]) == bad
    assert all(torch.equal(optimizer.state[parameter][name], value) for name, value in before[1].items())


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_is_its_equation(nesterov: bool) -> None:
    parameter = torch.nn.Parameter(torch.tensor([2.0]))
    spec = Sgd(0.1, weight_decay=0.5, momentum=0.8, nesterov=nesterov)
    optimizer = spec.build([{"params": [parameter], "names": ["p"], "scale": 1.0}], 0.1)
    weight, speed = 2.0, 0.0
    for grad in (1.0, -3.0, 0.5):
        parameter.grad = torch.tensor([grad])
        optimizer.step()
        grad += 0.5 * weight
        speed = 0.8 * speed + grad
        weight -= 0.1 * (grad + 0.8 * speed if nesterov else speed)
        assert parameter.item() == pytest.approx(weight, rel=1e-6)


def test_a_first_step_that_is_skipped_leaves_no_momentum() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = Sgd(0.1, momentum=0.8).build([{"params": [parameter], "names": ["w"]}], 0.1)
    parameter.grad = torch.full((3,), torch.nan)
    optimizer.found_inf, optimizer.grad_scale = torch.ones(()), None  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.found_inf = torch.zeros(())  # type: ignore[attr-defined]
    parameter.grad = torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(parameter.detach(), torch.full((3,), 0.9))


def test_nesterov_needs_momentum() -> None:
    with pytest.raises(SpecError, match=r"Nesterov's momentum is above 0, not 0\. Use 0\.9"):
        Sgd(0.1, momentum=0.0, nesterov=True)


def test_the_average_is_its_equation() -> None:
    module = torch.nn.Linear(2, 3)
    average = Average(Ema(0.9), module)
    expected = module.weight.detach().clone()
    for step in range(30):
        with torch.no_grad():
            module.weight.add_(1.0)
        average.update(module, step, torch.tensor(step % 7 != 3))
        if step % 7 == 3:  # a skipped step
            continue
        rate = min(0.9, (1 + step) / (10 + step))
        expected = rate * expected + (1 - rate) * module.weight.detach()
    torch.testing.assert_close(average.tensors["weight"], expected)


def test_an_average_over_a_share_of_the_training_fits_its_length() -> None:
    assert EmaOver(0.05).within(2000).decay == pytest.approx(0.99)
    assert EmaOver(0.05).within(200_000).decay == pytest.approx(0.9999)
    assert EmaOver(0.05).within(3).decay == 0.0
    assert Ema(0.9).within(3) == Ema(0.9)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5])
def test_an_average_over_no_share_is_refused(share: float) -> None:
    with pytest.raises(SpecError, match=r"above 0, up to 1"):
        EmaOver(share)
