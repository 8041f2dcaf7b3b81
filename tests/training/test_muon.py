"""Muon against its equations in float64, against torch's, and where the steps, the states and the recipes meet it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.runs import Notes, StopAt, Stopped, column, tiny, trace
from torch import Tensor, nn

from frugalvit.errors import SpecError
from frugalvit.nn.conv_blocks import BasicBlock
from frugalvit.nn.foreign import ForeignModel
from frugalvit.nn.model import Model
from frugalvit.nn.shape import Image
from frugalvit.outline import flatten
from frugalvit.recipes.find import recipe
from frugalvit.run import train
from frugalvit.spec import decode, encode
from frugalvit.training.muon import factor, orthogonalized
from frugalvit.training.optimizer import AllParameters, Muon, hidden_matrices, parameter_groups
from frugalvit.training.recipe import Recipe
from frugalvit.training.tune import Everything, HeadsOnly
from frugalvit.zoo.cait import cait
from frugalvit.zoo.efficientnet import efficientnet
from frugalvit.zoo.pit import pit
from frugalvit.zoo.regnet import regnety
from frugalvit.zoo.resnet import resnet
from frugalvit.zoo.swin import swin

SHAPES = {"wide": (3, 7), "tall": (7, 3), "square": (5, 5), "wide too": (3, 7), "stacked": (15, 5), "kernel": (4, 2, 3, 3)}
PARTS = {"stacked": 3}


def matrices(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.randn(shape, dtype=dtype)) for name, shape in SHAPES.items()}


def built(spec: Muon, given: dict[str, nn.Parameter], *others: nn.Parameter) -> torch.optim.Optimizer:
    """The optimizer of these matrices, and of others that are none."""
    parts = [PARTS.get(name, 1) for name in given]
    groups: list[dict[str, Any]] = [{"params": list(given.values()), "names": list(given), "scale": 1.0, "kind": "muon"}]
    groups[0]["parts"] = parts
    if others:
        names = [f"other{index}" for index in range(len(others))]
        groups.append({"params": list(others), "names": names, "scale": 1.0, "weight_decay": 0.0})
    return spec.build(groups, spec.lr)


def gradients(given: dict[str, nn.Parameter], seed: int) -> dict[str, Tensor]:
    """Set on the parameters, too."""
    torch.manual_seed(seed)
    for parameter in given.values():
        parameter.grad = torch.randn_like(parameter)
    return {name: parameter.grad.clone() for name, parameter in given.items() if parameter.grad is not None}


def newton_schulz(x_RC: Tensor, iterations: int) -> Tensor:
    """From the equation, one matrix in float64."""
    x_RC = x_RC.double() / math.sqrt(sum(float(value) ** 2 for value in x_RC.flatten()))
    for _ in range(iterations):
        gram_RR = x_RC @ x_RC.T
        x_RC = 3.4445 * x_RC - 4.7750 * gram_RR @ x_RC + 2.0315 * gram_RR @ gram_RR @ x_RC
    return x_RC


# ------------------------------------------------------------------------------------------------ the equations


@pytest.mark.parametrize("iterations", [1, 5])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_matrices_are_orthogonalized_by_the_equation(iterations: int, dtype: torch.dtype, atol: float) -> None:
    x_MRC = torch.randn(4, 3, 7, dtype=dtype) * torch.tensor([1e-4, 1.0, 30.0, 1e4], dtype=dtype)[:, None, None]
    found = orthogonalized(x_MRC, iterations)
    assert found.dtype == dtype
    for x_RC, y_RC in zip(x_MRC, found, strict=True):
        torch.testing.assert_close(y_RC.double(), newton_schulz(x_RC, iterations), atol=atol, rtol=0)


def test_five_iterations_leave_singular_values_near_one_and_nothing_of_nothing() -> None:
    wide_MRC = torch.randn(3, 20, 50)
    left, _, right = torch.linalg.svd(wide_MRC, full_matrices=False)
    spread_MRC = left @ torch.diag(torch.logspace(-2, 0, 20)) @ right  # of norm 1.6
    for x_MRC in (wide_MRC, spread_MRC):
        values = torch.linalg.svdvals(orthogonalized(x_MRC, 5))
        assert values.min() > 0.68 and values.max() < 1.21
    assert torch.equal(orthogonalized(torch.zeros(2, 3, 7), 5), torch.zeros(2, 3, 7))


@pytest.mark.parametrize("units", ["adamw", "spectral"])
def test_three_steps_are_their_equations(units: Any) -> None:
    """Momentum, Nesterov's look ahead, the length of an update and the decoupled decay, matrix by matrix."""
    spec, given = Muon(0.1, weight_decay=0.3, momentum=0.9, iterations=4, units=units), matrices()
    optimizer = built(spec, given)
    weight = {name: one.detach().clone() for name, one in given.items()}
    momentum = {name: torch.zeros_like(one) for name, one in given.items()}
    for step in range(3):
        for name, gradient in gradients(given, step).items():
            momentum[name] = 0.9 * momentum[name] + gradient
            ahead = gradient + 0.9 * momentum[name]
            rows = []
            for part in ahead.flatten(1).chunk(PARTS.get(name, 1)):
                r, c = part.shape
                length = 0.2 * max(r, c) ** 0.5 if units == "adamw" else max(1, r / c) ** 0.5
                direction = newton_schulz(part, 4) if r <= c else newton_schulz(part.T, 4).T
                rows.append(length * direction)
            weight[name] = (1 - 0.1 * 0.3) * weight[name] - 0.1 * torch.cat(rows).view_as(weight[name])
        optimizer.step()
        for name, one in given.items():
            torch.testing.assert_close(one.detach(), weight[name], atol=1e-8, rtol=0, msg=name)  # a rate is in fp32


@pytest.mark.parametrize(("units", "theirs"), [("spectral", "original"), ("adamw", "match_rms_adamw")])
def test_it_is_torch_s_muon_within_the_rounding_of_bf16(units: Any, theirs: str) -> None:
    given = {name: nn.Parameter(torch.randn(shape)) for name, shape in {"wide": (12, 40), "tall": (40, 12)}.items()}
    copies = [nn.Parameter(one.detach().clone()) for one in given.values()]
    ours = built(Muon(0.02, weight_decay=0.1, units=units), given)
    other = torch.optim.Muon(copies, lr=0.02, weight_decay=0.1, adjust_lr_fn=theirs)
    for step in range(3):
        before = [one.detach().clone() for one in given.values()]
        for copy, gradient in zip(copies, gradients(given, step).values(), strict=True):
            copy.grad = gradient
        ours.step()
        other.step()
        for one, copy, start in zip(given.values(), copies, before, strict=True):
            assert (one - copy).norm() < 0.02 * (one - start).norm()
            with torch.no_grad():
                copy.copy_(one)


def test_the_length_of_an_update_is_that_of_adamw_or_its_spectral_norm() -> None:
    wide_RC, tall_RC = torch.randn(64, 256), torch.randn(256, 64)
    for x_RC in (wide_RC, tall_RC):
        o_RC = orthogonalized(x_RC[None] if len(x_RC) == 64 else x_RC.mT[None], 5)[0]
        assert (o_RC.square().mean().sqrt() * factor("adamw", *x_RC.shape)).item() == pytest.approx(0.2, rel=0.2)
    assert (factor("spectral", 64, 256), factor("spectral", 256, 64)) == (1.0, 2.0)


def test_all_else_learns_by_torch_s_adamw_to_the_bit() -> None:
    given, other = matrices(torch.float32), nn.Parameter(torch.randn(7, 3))
    copy = nn.Parameter(other.detach().clone())
    ours = built(Muon(0.1, adamw_lr=0.02, betas=(0.8, 0.99), eps=1e-6), given, other)
    theirs = torch.optim.AdamW([copy], lr=0.02, betas=(0.8, 0.99), eps=1e-6, weight_decay=0.0, fused=True)
    ours.param_groups[1]["lr"] = 0.02
    for step in range(3):
        gradients(given, step)
        other.grad, copy.grad = torch.ones(7, 3) * step, torch.ones(7, 3) * step
        ours.step()
        theirs.step()
    assert torch.equal(other, copy)
    assert ours.state[other].keys() == theirs.state[copy].keys()


def test_what_has_no_gradient_stays() -> None:
    given, other = matrices(), nn.Parameter(torch.randn(3))
    optimizer = built(Muon(0.1), given, other)
    before = {name: one.detach().clone() for name, one in given.items()}
    gradients(given, 0)
    given["square"].grad = None
    optimizer.step()
    assert [name for name, one in given.items() if torch.equal(one, before[name])] == ["square"]
    assert not optimizer.state[other]


# ------------------------------------------------------------------------------------------------ what a step asks of it


def moving(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Weights and all that is remembered of them."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    return [one.detach().clone() for p in parameters for one in (p, *optimizer.state[p].values())]


def both(dtype: torch.dtype = torch.float32) -> tuple[dict[str, nn.Parameter], torch.optim.Optimizer]:
    torch.manual_seed(7)
    given, other = matrices(dtype), nn.Parameter(torch.randn(5, dtype=dtype))
    return given | {"other": other}, built(Muon(0.1), given, other)


def test_a_step_that_is_no_number_changes_neither_weights_nor_moments() -> None:
    (given, optimizer), (plain, undisturbed) = both(), both()
    for step in range(4):
        gradients(given, step)
        gradients(plain, step)
        optimizer.found_inf = torch.zeros(())
        optimizer.step()
        undisturbed.step()
        before = moving(optimizer)
        for parameter in given.values():
            parameter.grad = torch.full_like(parameter, math.nan if step % 2 else math.inf)
        optimizer.found_inf = torch.ones(())
        optimizer.step()
        assert all(torch.equal(one, was) for one, was in zip(moving(optimizer), before, strict=True))
    assert all(torch.equal(one, was) for one, was in zip(moving(optimizer), moving(undisturbed), strict=True))


def test_a_first_step_that_is_no_number_leaves_moments_of_zero() -> None:
    given, optimizer = both()
    before = {name: one.detach().clone() for name, one in given.items()}
    for parameter in given.values():
        parameter.grad = torch.full_like(parameter, math.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert all(torch.equal(one, before[name]) for name, one in given.items())
    moments = [value for one in given.values() for value in optimizer.state[one].values()]
    assert len(moments) == len(SHAPES) + 3 and not any(value.any() for value in moments)


@pytest.mark.parametrize("bad", [False, True])
def test_a_scaler_of_losses_leaves_the_skipping_to_it(bad: bool) -> None:
    given, optimizer = both()
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    before = {name: one.detach().clone() for name, one in given.items()}
    loss = torch.stack([one.square().sum() for one in given.values()]).sum()
    scaler.scale(loss).backward()
    if bad:
        given["square"].grad = torch.full((5, 5), math.inf)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert all(torch.equal(one, before[name]) == bad for name, one in given.items())
    assert scaler.get_scale() == (2.0 if bad else 4.0)


def test_a_learning_rate_may_be_a_tensor() -> None:
    (given, optimizer), (others, tensors) = both(), both()
    rates = [torch.zeros(()) for _ in tensors.param_groups]
    for group, rate in zip(tensors.param_groups, rates, strict=True):
        group["lr"] = rate
    for step in range(3):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = 0.1 / (step + 1)
            rate.fill_(0.1 / (step + 1))
        gradients(given, step)
        gradients(others, step)
        optimizer.step()
        tensors.step()
    for one, other in zip(moving(optimizer), moving(tensors), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)
    assert all(torch.equal(given[name], others[name]) for name in SHAPES)


def test_everything_decays_where_that_is_asked_for(toy: Model) -> None:
    module = toy.build(seed=0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(2.0)
            parameter.grad = torch.zeros_like(parameter)
    spec = Muon(0.1, weight_decay=0.3, decays=AllParameters())
    spec.build(parameter_groups(module, spec, Everything()), 0.1).step()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(parameter, torch.full_like(parameter, 2 * (1 - 0.1 * 0.3)), msg=name)


# ------------------------------------------------------------------------------------------------ which parameters


def names_below(layer: int, *names: str) -> set[str]:
    return {f"layers.{layer}.{name}.weight" for name in names}


BLOCK = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
APART = ("attention.qkv.q", "attention.qkv.k", "attention.qkv.v", "attention.out", "mlp.up", "mlp.down")


def test_the_matrices_of_blocks_are_hidden_and_those_at_the_ends_are_not(toy: Model) -> None:
    """Two heads, two tokens, positions, the tokenizer and all biases and norms are left to AdamW."""
    assert set(hidden_matrices(toy.build())) == names_below(2, *BLOCK) | names_below(3, *BLOCK)


def test_mixing_of_heads_and_tables_of_biases_are_not_hidden_matrices() -> None:
    model = cait(dim=12, heads=3, depth=1, class_depth=1, layer_scale=0.1, patch=4, image=(20, 28), classes=9)
    assert set(hidden_matrices(model.build())) == names_below(1, *BLOCK) | names_below(3, *APART)
    model = swin(dim=12, heads=(3, 6), depths=(1, 1), window=5, image=40, classes=9)
    expected = names_below(1, *BLOCK) | names_below(2, "linear") | names_below(3, *BLOCK)
    assert set(hidden_matrices(model.build())) == expected


def test_kernels_that_see_one_channel_are_not_hidden_matrices() -> None:
    model = pit(dim=12, heads=(3, 6), depths=(1, 1), patch=4, stride=4, image=(20, 28), classes=9)
    expected = names_below(2, *BLOCK) | names_below(3, "summary") | names_below(4, *BLOCK)
    assert set(hidden_matrices(model.build())) == expected
    found = hidden_matrices(efficientnet(stages=((6, 3, 1, 16, 1),), width=24, image=32, classes=9).build())
    assert set(found) == names_below(0, "branch.conv1", "branch.excite.reduce", "branch.excite.expand", "branch.conv3") | {
        "layers.1.branch.conv1.weight"
    }


def test_kernels_of_convolutional_layers_are_hidden_and_the_stem_is_not() -> None:
    found = hidden_matrices(resnet(block=BasicBlock(8), depths=(1, 1), image=32, classes=9).build())
    assert set(found) == names_below(0, "branch.conv1", "branch.conv2", "shortcut.conv") | names_below(
        1, "branch.conv1", "branch.conv2", "shortcut.conv"
    )
    assert set(found.values()) == {1}


def test_q_k_and_v_and_the_groups_of_a_convolution_are_matrices_of_their_own(toy: Model) -> None:
    parts = hidden_matrices(toy.build())
    assert {name for name, count in parts.items() if count == 3} == {f"layers.{i}.attention.qkv.weight" for i in (2, 3)}
    assert set(parts.values()) == {1, 3}
    module = regnety(depth=2, start=16, slope=16.0, multiplier=2.0, group=8, image=32, classes=9).build()
    parts = hidden_matrices(module)
    assert {parts[name] for name in parts if name.endswith("branch.conv2.weight")} == {
        len(parameter) // 8 for name, parameter in module.named_parameters() if name.endswith("branch.conv2.weight")
    }


def test_groups_hold_every_parameter_once_with_its_kind_decay_and_speed(toy: Model) -> None:
    module = toy.build()
    spec = Muon(0.02, weight_decay=0.3, units="spectral", adamw_lr=3e-4, layer_decay=0.5)
    groups = spec.build(parameter_groups(module, spec, Everything()), 0.02).param_groups
    names = [name for group in groups for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in module.named_parameters())
    hidden = hidden_matrices(module)
    for group in groups:
        assert {"muon" if name in hidden else "adamw" for name in group["names"]} == {group["kind"]}
        assert len(group["names"]) == len(group.get("parts", group["params"])) == len(group["params"])
    scale = {name: group["scale"] for group in groups for name in group["names"]}
    decay = {name: group["weight_decay"] for group in groups for name in group["names"]}
    assert scale["layers.3.mlp.up.weight"] == 0.5
    assert scale["layers.3.mlp.up.bias"] == 0.5 * (3e-4 / 0.02)
    assert scale["readout.heads.class.weight"] == 3e-4 / 0.02
    assert decay["layers.3.mlp.up.weight"] == decay["readout.heads.class.weight"] == 0.3
    assert decay["layers.3.mlp.up.bias"] == decay["layers.1.positions"] == 0.0


def test_the_learning_rate_of_all_else_follows_the_units() -> None:
    assert Muon(1e-3).adamw_share == 1.0
    assert Muon(1e-3, adamw_lr=5e-4).adamw_share == 0.5
    assert 0.02 * Muon(0.02, units="spectral").adamw_share == pytest.approx(3e-4)
    objective = nn.Parameter(torch.zeros(2))
    built = Muon(0.02, units="spectral").build([{"params": [objective], "names": ["objective.a"], "scale": 1.0}], 0.02)
    assert built.param_groups[0]["kind"] == "adamw"
    assert built.param_groups[0]["scale"] == pytest.approx(0.015)


def test_where_no_hidden_matrix_learns_it_is_refused(toy: Model) -> None:
    with pytest.raises(SpecError, match=r"recipe\.optimizer: Muon finds no hidden matrix that learns"):
        parameter_groups(toy.build(), Muon(0.1), HeadsOnly())
    foreign = ForeignModel("torchvision", "resnet18", 9, Image(32, 32)).build()
    with pytest.raises(SpecError, match=r"models of other libraries do not tell\. Use AdamW"):
        parameter_groups(foreign, Muon(0.1), Everything())


# ------------------------------------------------------------------------------------------------ recipes and runs


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"lr": -1.0}, r"^lr: a learning rate of -1\.0"),
        ({"weight_decay": -5.0}, r"^weight_decay: a decay of -5\.0"),
        ({"adamw_lr": 0.0}, r"^adamw_lr: a learning rate of 0\.0\. Use a number above 0, or none"),
        ({"momentum": 1.0}, r"^momentum: a share of 1\.0\. Use 0 and more, below 1"),
        ({"momentum": -0.5}, r"^momentum: a share of -0\.5"),
        ({"betas": (0.9, 1.0)}, r"^betas\[1\]: a share of 1\.0"),
        ({"iterations": 0}, r"^iterations: 0 iterations\. Use 1 and more"),
        ({"units": "spectra"}, r"^units: 'spectra' are no units\. Did you mean 'spectral'\?"),
    ],
    ids=str,
)
def test_values_that_cannot_be_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Muon(**({"lr": 0.1} | words))


def test_a_recipe_takes_it_by_name_and_survives_being_written() -> None:
    made = tiny("optimizer=Muon(0.02, units=spectral)", "optimizer.adamw_lr=0.001", "optimizer.decays=AllParameters")
    assert made.optimizer == Muon(0.02, units="spectral", adamw_lr=0.001, decays=AllParameters())
    assert decode(json.loads(json.dumps(encode(made))), Recipe) == made
    text = flatten(made)
    assert text["optimizer"] == "Muon"
    assert (text["optimizer.units"], text["optimizer.momentum"]) == ("spectral", 0.95)
    with pytest.raises(SpecError, match=r"optimizer\.momentum: a share of 1\.5"):
        tiny("optimizer=Muon(0.02)", "optimizer.momentum=1.5")


MUON = ("optimizer=Muon(0.004)", "log_every=1")


def test_n_steps_and_n_more_are_2n_steps(tmp_path: Path) -> None:
    train(tiny(*MUON), out=tmp_path / "whole", device="cpu")
    for step in (3, 10, 17):
        with pytest.raises(Stopped):
            train(tiny(*MUON), out=tmp_path / "run", resume=True, device="cpu", display=StopAt(step))
    train(tiny(*MUON), out=tmp_path / "run", resume=True, device="cpu")
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


@pytest.mark.parametrize("spec", ["Muon(0.02)", "Muon(0.02, units=spectral, adamw_lr=0.004)"])
def test_digits_are_learned(tmp_path: Path, spec: str) -> None:
    train(tiny(f"optimizer={spec}", "log_every=1", "epochs=12", "depth=2"), out=tmp_path / "run", device="cpu")
    losses = column(tmp_path / "run", "loss")
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])


def test_a_learning_rate_out_of_the_known_is_said(tmp_path: Path) -> None:
    notes = Notes()
    train(tiny("optimizer=Muon(0.5)", "epochs=1"), out=tmp_path / "run", device="cpu", display=notes)
    assert any("outside what is known to work with Muon, 1e-06 to 0.1" in one for one in notes.said)


def test_nothing_is_said_of_the_rates_of_one_bit_models(tmp_path: Path) -> None:
    notes = Notes()
    made = recipe("binaryvit.digits", "rung=deit", "dim=8", "duration=Steps(1)", "evaluate=Steps(1)")
    train(made, out=tmp_path / "run", device="cpu", display=notes)
    assert any("peak learning rate 0.004" in one for one in notes.said)  # 0.016 per 256 pictures
    assert not any("outside what is known" in one for one in notes.said)


# ------------------------------------------------------------------------------------------------ CUDA


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
def test_a_captured_step_is_the_step_and_nothing_waits_for_the_device() -> None:
    def on_device() -> tuple[list[nn.Parameter], torch.optim.Optimizer]:
        given, optimizer = both()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data = parameter.data.cuda()
                parameter.grad = torch.zeros_like(parameter)
            group["lr"] = torch.full((), 0.1, device="cuda")
        optimizer.found_inf = torch.zeros((), device="cuda")
        return list(given.values()), optimizer

    (plain, eager), (captured, replayed) = on_device(), on_device()
    replayed.step()  # makes the state
    eager.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed.step()
    for step in range(6):
        bad = float(step == 3)
        for one, other in zip(plain, captured, strict=True):
            assert one.grad is not None and other.grad is not None
            one.grad.copy_(torch.randn(one.shape) if not bad else torch.full(one.shape, math.nan))
            other.grad.copy_(one.grad)
        for optimizer in (eager, replayed):
            optimizer.found_inf.fill_(bad)
            for group in optimizer.param_groups:
                group["lr"].fill_(0.1 / (step + 1))
        graph.replay()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            eager.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        for one, other in zip(moving(eager), moving(replayed), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_bf16_bears_the_iteration() -> None:
    x_MRC = torch.randn(4, 48, 192)
    found = orthogonalized(x_MRC.cuda(), 5).double().cpu()
    for x_RC, y_RC in zip(x_MRC, found, strict=True):
        exact_RC = newton_schulz(x_RC, 5)
        assert (y_RC - exact_RC).norm() < 0.05 * exact_RC.norm()
