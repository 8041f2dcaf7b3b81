"""Gradients, clipping, speeds and weights of a step, and that every objective can be learned."""

from __future__ import annotations

import typing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.runs import column, tiny

from frugalvit.cautions import cautions
from frugalvit.data.augment import Augment, Resize
from frugalvit.data.dataset import opened_splits
from frugalvit.data.digits import Digits
from frugalvit.data.split import Picked
from frugalvit.objective.loss import CrossEntropy, Loss, SigmoidCrossEntropy, WeightedCrossEntropy
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.find import recipe
from frugalvit.run import train
from frugalvit.training.devices import place_for
from frugalvit.training.loop import fit
from frugalvit.training.optimizer import AdamW, Sgd, parameter_groups
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.tune import Everything
from frugalvit.zoo.vit import vit


def plain(*overrides: str) -> Recipe:
    """Without augmentation, averaging and stochastic depth."""
    made = tiny("average=none", *overrides)
    made = replace(made, data=replace(made.data, augment=Augment((Resize(),))))
    return replace(made, optimizer=Sgd(1.0, momentum=0.0), schedule=tiny("schedule=Constant").schedule)


def prepared(made: Recipe) -> Training:
    return prepare(made, opened_splits(made.data.dataset, None, made.data.subset), place_for("cpu", "fp32"))


def weights(training: Training) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in training.state.module.named_parameters()}


def taken(training: Training) -> dict[str, torch.Tensor]:
    """How the first step changes the weights."""
    before = weights(training)
    training.step.take([training.batches[part] for part in range(training.recipe.accumulate)])
    return {name: value - before[name] for name, value in weights(training).items()}


def norm(changes: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([one.flatten() for one in changes.values()]).norm())


def test_two_batches_accumulated_have_the_gradients_of_one_of_twice_the_size() -> None:
    one, two = prepared(plain("batch=64")), prepared(plain("batch=32", "accumulate=2"))
    whole, halves = one.batches[0].index_B, [two.batches[part].index_B for part in (0, 1)]
    assert torch.equal(whole, torch.cat(halves))
    for training in (one, two):
        training.state.module.eval()  # no stochastic depth, whose draws are those of a batch
        for part in range(training.recipe.accumulate):
            training.step.gradients(training.batches[part], part)
    for (name, left), right in zip(one.state.module.named_parameters(), two.state.module.parameters(), strict=True):
        torch.testing.assert_close(left.grad, right.grad, atol=1e-7, rtol=1e-4, msg=name)
    assert one.clock == two.clock


@pytest.mark.parametrize(
    ("duration", "batch", "accumulate", "steps"),
    [
        ("Epochs(3)", 32, 1, 24),
        ("Epochs(3)", 32, 3, 8),  # 8 batches an epoch: two steps and two thirds
        ("Epochs(10)", 32, 5, 16),
        ("Epochs(2.5)", 32, 2, 10),
        ("Epochs(1)", 32, 64, 1),  # a step is more than an epoch
        ("Epochs(24)", 32, 64, 3),
        ("Steps(7)", 32, 3, 7),
    ],
)
def test_epochs_are_that_many_passes_also_where_gradients_are_accumulated(
    duration: str, batch: int, accumulate: int, steps: int
) -> None:
    training = prepared(tiny(f"duration={duration}", f"batch={batch}", f"accumulate={accumulate}"))
    assert training.clock.total == steps
    records = list(fit(training.step, training.batches, replace(training.cadence, log=1)))
    assert len(records) == steps
    for record in records:
        assert record.values["epoch"] == record.step * accumulate / 8
        assert type(record.values["epoch"]) is float


@pytest.mark.parametrize(
    ("pictures", "batch", "said"),
    [
        (
            127,
            64,
            "caution: 63 of the 127 pictures of an epoch fill no batch of 64 and are left out, others each time; batch=63 "
            "leaves out 1",
        ),
        (128, 64, ""),
        (141, 64, ""),  # a tenth is not missed much
        (
            143,
            64,
            "caution: 15 of the 143 pictures of an epoch fill no batch of 64 and are left out, others each time; batch=47 "
            "leaves out 2",
        ),
        (50, 64, ""),  # all are there, some twice
    ],
)
def test_pictures_that_fill_no_batch_are_told_where_they_are_many(pictures: int, batch: int, said: str) -> None:
    source = Picked(Digits().open("train", None), np.arange(pictures))
    training = prepare(tiny(f"batch={batch}"), {"train": source}, place_for("cpu", "fp32"))
    assert [text for text in cautions(training) if "left out" in text] == ([said] if said else [])


def test_the_loss_of_accumulated_batches_is_their_mean() -> None:
    training = prepared(plain("accumulate=2"))
    shares = [training.step.gradients(training.batches[part], part).item() for part in (0, 1)]
    again = prepared(plain("accumulate=2"))
    again.step.take([again.batches[0], again.batches[1]])
    assert again.step.taken()["loss"] == pytest.approx(sum(shares), rel=1e-6)


def test_clipping_limits_the_norm_of_a_step_and_shows_the_one_before() -> None:
    free, clipped = prepared(plain()), prepared(plain("clip=0.01"))
    length = norm(taken(free))
    rate = free.recipe.schedule.lr(0, 1.0, free.clock)
    shown = [training.step for training in (free, clipped)]
    assert norm(taken(clipped)) == pytest.approx(0.01 * rate, rel=1e-3)
    assert length > 0.02 * rate
    assert [one.taken()["gradient_norm"] for one in shown] == pytest.approx([length / rate] * 2, rel=1e-3)


LADDER = {"layers.2.": 0.25, "layers.3.": 0.5, "readout.": 1.0}  # of two blocks behind tokens and positions


def test_each_block_learns_slower_than_the_one_above_it() -> None:
    made = plain("depth=2")
    decayed = replace(made, optimizer=replace(made.optimizer, layer_decay=0.5))
    full, slow = taken(prepared(made)), taken(prepared(decayed))
    first, second, third = ({name: scale for name in full if name.startswith(part)} for part, scale in LADDER.items())
    scales = dict.fromkeys(full, 0.125) | first | second | third
    for name, change in full.items():
        torch.testing.assert_close(slow[name], scales[name] * change, atol=1e-7, rtol=1e-3)


def test_layers_slow_down_as_timm_has_it_but_for_the_last_norm() -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("deit_tiny_patch16_224", depth=3)
    groups = pytest.importorskip("timm.optim").param_groups_layer_decay(theirs, layer_decay=0.75)
    names = {id(parameter): name for name, parameter in theirs.named_parameters()}
    wanted = {names[id(parameter)]: group["lr_scale"] for group in groups for parameter in group["params"]}
    module = vit(dim=192, heads=3, depth=3, patch=16, classes=1000).build()
    groups = parameter_groups(module, AdamW(1e-3, layer_decay=0.75), Everything())
    ours = {name: group["scale"] for group in groups for name in group["names"]}
    counterparts = {"tokenizer.": "patch_embed.proj.weight", "layers.0.tokens.class": "cls_token", "layers.1.": "pos_embed"}
    counterparts |= {f"layers.{i + 2}.": f"blocks.{i}.mlp.fc1.weight" for i in range(3)} | {"readout.heads": "head.weight"}
    for start, name in counterparts.items():
        found = {scale for own, scale in ours.items() if own.startswith(start)}
        assert list(found) == [pytest.approx(wanted[name])], (start, name)
    assert {scale for name, scale in ours.items() if name.startswith("readout.norm")} == {1.0}


def test_a_linear_probe_leaves_the_backbone_as_it_was(tmp_path: Path) -> None:
    made = tiny("tune=HeadsOnly")
    before = weights(prepared(made))
    done = train(made, out=tmp_path / "run", device="cpu")
    assert done.classifier is not None
    for name, value in done.classifier.module.named_parameters():
        assert torch.equal(value, before[name]) != name.startswith("readout.heads."), name


def test_classes_are_weighed_by_how_rare_they_are_in_training() -> None:
    digits = Digits().open("train", None)
    uneven = Picked(digits, np.flatnonzero((digits.labels > 0) | (np.arange(len(digits)) % 5 == 0)))
    made = replace(tiny(), objective=Objective((Supervised(loss=WeightedCrossEntropy()),)))
    training = prepare(made, {"train": uneven}, place_for("cpu", "fp32"))
    counts = np.bincount(uneven.labels, minlength=10)
    found = training.state.objective.terms["supervised_class"].loss.weight_C
    np.testing.assert_allclose(found, len(uneven) / (10 * counts), rtol=1e-6)
    assert found[0] > 3 * found[1]


@pytest.mark.parametrize("name", ["vit.digits", "deit.digits"])
@pytest.mark.parametrize("loss", [*typing.get_args(Loss), lambda: CrossEntropy(0.1)], ids=lambda one: one.__name__)
def test_every_objective_overfits_one_batch(name: str, loss: typing.Callable[[], Loss]) -> None:
    steps = 300 if loss is SigmoidCrossEntropy else 80  # from a bias of 0, it first unlearns saying yes to half of the classes
    made = recipe(name, "dim=32", "depth=2", "batch=16", f"duration=Steps({steps})", "lr=0.003")
    terms = tuple(replace(term, loss=loss()) for term in made.objective.terms)
    made = replace(made, objective=Objective(terms), data=replace(made.data, augment=Augment((Resize(),))))
    made = replace(made, schedule=tiny("schedule.warmup=Steps(5)").schedule)
    digits = Digits().open("train", None)
    training = prepare(made, {"train": Picked(digits, np.arange(16))}, place_for("cpu", "fp32"))
    for number in range(steps):
        training.step.take([training.batches[number]])
    training.state.module.eval()
    batch = training.step.finished(training.batches[0], 0)
    outputs = training.state.module(batch.image_BCHW)
    for head, logits_BC in outputs.items():
        assert torch.equal(logits_BC.argmax(-1), batch.label_B), head


def test_the_log_shows_each_term_and_the_loss_is_their_sum(tmp_path: Path) -> None:
    made = recipe("deit.digits", "dim=16", "depth=1", "batch=32", "duration=Steps(4)", "log_every=2")
    train(made, out=tmp_path / "run", device="cpu")
    terms = [column(tmp_path / "run", f"supervised_{head}") for head in ("class", "distill")]
    np.testing.assert_allclose(np.sum(terms, 0), column(tmp_path / "run", "loss"), rtol=1e-6)
