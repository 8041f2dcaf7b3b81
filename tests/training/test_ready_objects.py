"""Models, data and objectives that are ready objects of the user's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.training.runs import Notes, StopAt, Stopped, column, states, tiny, trace
from torch import nn

import frugalvit
from frugalvit.cli.resuming import refuse_recipe_of_own_parts
from frugalvit.data.arrays import Arrays
from frugalvit.data.batch import Batch
from frugalvit.errors import DataError, SpecError
from frugalvit.report.record import RunFolder
from frugalvit.run import train
from frugalvit.training.step import refuse_terms


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def stripes(count: int, seed: int) -> Arrays:
    """Horizontal against vertical."""
    labels = np.arange(count) % 2
    images_NHW = np.random.default_rng(seed).integers(0, 60, (count, 8, 8)).astype(np.uint8)
    images_NHW[labels == 0, ::2] += 180
    images_NHW[labels == 1, :, ::2] += 180
    return Arrays(images_NHW, labels, ["across", "down"], "stripes")


def test_a_plain_module_that_returns_logits_is_trained_and_saved(tmp_path: Path) -> None:
    module = linear()
    before = module[1].weight.detach().clone()
    done = train(tiny("optimizer.lr=0.01"), out=tmp_path / "run", model=module, device="cpu")
    assert done.classifier is None
    assert done.summary["val_top1"] > 40
    assert not torch.equal(module[1].weight, before)
    saved = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert set(saved) == {"1.weight", "1.bias"}
    assert RunFolder(tmp_path / "run").recipe()["ready_model"] == "Sequential"


def test_an_objective_of_ones_own_may_listen_to_a_teacher_of_ones_own(tmp_path: Path) -> None:
    def follow(outputs: dict[str, torch.Tensor], batch: Batch) -> dict[str, torch.Tensor]:
        return {"follow": nn.functional.cross_entropy(outputs["class"].float(), batch.answers["logits"].softmax(-1))}

    made = tiny("precision=bf16_stream")
    tutor = train(tiny(), out=tmp_path / "tutor", device="cpu").classifier
    done = train(made, out=tmp_path / "run", objective=follow, teacher=tutor, device="cpu")
    assert column(tmp_path / "run", "follow") and done.summary["step"] == 24


def test_a_described_module_of_the_user_s_is_given_back_as_it_was(tmp_path: Path) -> None:
    module = tiny("model.classes=10").model.build(seed=0)
    train(tiny("precision=bf16_stream"), out=tmp_path / "run", model=module, device="cpu")
    assert module.eval()(torch.zeros(1, 1, 8, 8))["class"].dtype == torch.float32


def test_a_plain_module_resumes_to_the_same_bits(tmp_path: Path) -> None:
    train(tiny(), out=tmp_path / "whole", model=linear(), device="cpu")
    with pytest.raises(Stopped):
        train(tiny(), out=tmp_path / "run", model=linear(), device="cpu", display=StopAt(12))
    train(tiny(), out=tmp_path / "run", model=linear(), device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")
    with pytest.raises(DataError, match="ready_model was 'Sequential', now 'absent'"):
        train(tiny(), out=tmp_path / "run", device="cpu", resume=True)


def test_counts_in_a_module_of_ones_own_are_resumed_too(tmp_path: Path) -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(1), linear())

    train(tiny(), out=tmp_path / "whole", model=normed(), device="cpu")
    with pytest.raises(Stopped):
        train(tiny(), out=tmp_path / "run", model=normed(), device="cpu", display=StopAt(12))
    train(tiny(), out=tmp_path / "run", model=normed(), device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


def test_a_ready_vision_transformer_brings_its_own_description(tmp_path: Path) -> None:
    spec = tiny("dim=8", "model.classes=10").model
    done = train(tiny(), out=tmp_path / "run", model=spec.build(seed=5), device="cpu")
    assert done.classifier is not None
    assert done.classifier.spec.model == spec
    assert frugalvit.load(tmp_path / "run").spec.model == spec
    refuse_recipe_of_own_parts(str(tmp_path / "run"))  # its recipe describes it
    assert frugalvit.load(tmp_path / "run").spec.model == spec
    with pytest.raises(SpecError, match=r"recipe\.model\.classes: the model has 7 classes, the data 10"):
        train(tiny(), out=tmp_path / "seven", model=tiny("model.classes=7").model.build(), device="cpu")
    assert not (tmp_path / "seven").exists()


def test_ready_sources_are_trained_on_and_the_test_split_is_read_at_the_end(tmp_path: Path) -> None:
    data = {"train": stripes(96, 0), "val": stripes(20, 1), "test": stripes(30, 2)}
    made = tiny("data.subset=none", "epochs=20", "average=none", "lr=0.02", "dim=32")
    done = train(made, out=tmp_path / "run", data=data, device="cpu")
    assert (done.summary["val_pictures"], done.summary["test_pictures"]) == (20, 30)
    assert done.summary["test_top1"] > 90
    assert done.classifier is not None
    assert done.classifier.classes == ("across", "down")


def test_without_validation_only_the_losses_are_logged(tmp_path: Path) -> None:
    done = train(tiny("data.subset=none"), out=tmp_path / "run", data={"train": stripes(96, 0)}, device="cpu")
    assert "val_top1" not in done.summary
    assert column(tmp_path / "run", "val_top1") == []
    assert len(column(tmp_path / "run", "loss")) > 3


def test_the_first_classes_are_those_of_the_test_split_too(tmp_path: Path) -> None:
    made = tiny("data.subset=FirstClasses(4)", "duration=Steps(4)", "data.dataset=Digits")
    done = train(made, out=tmp_path / "run", device="cpu")
    assert done.classifier is not None
    assert done.classifier.classes == tuple("0123")
    assert done.summary["val_pictures"] < 250
    assert "test_top1" not in done.summary  # the digits' test split is their val split


def test_frozen_parts_of_a_module_stay_as_they_are_and_resume(tmp_path: Path) -> None:
    def half_frozen() -> nn.Module:
        module = nn.Sequential(linear(), nn.Linear(10, 10))
        module[0].requires_grad_(False)
        return module

    torch.manual_seed(4)
    module, again = half_frozen(), half_frozen()
    again.load_state_dict(module.state_dict())
    before, notes = [one.detach().clone() for one in module.parameters()], Notes()
    made = tiny("optimizer.lr=0.01", "clip=1.0")
    train(made, out=tmp_path / "whole", model=module, device="cpu", display=notes)
    same = [torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True)]
    assert same == [True, True, False, False]
    assert [one.requires_grad for one in module.parameters()] == [False, False, True, True]
    assert any(text.startswith("2 of 4 parameter tensors are frozen") for text in notes.said)
    moments = {name for name in safetensors.torch.load_file(states(tmp_path / "whole")[-1]) if name.startswith("optimizer.")}
    assert moments and all(name.startswith("optimizer.inner.1.") for name in moments)
    with pytest.raises(Stopped):
        train(made, out=tmp_path / "run", model=again, device="cpu", display=StopAt(12))
    train(made, out=tmp_path / "run", model=again, device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


def test_a_frozen_batch_norm_of_ones_own_keeps_its_statistics(tmp_path: Path) -> None:
    module = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10))
    for one in module[0].parameters():
        one.requires_grad_(False)
    frugalvit.train(frugalvit.recipe("vit.digits", "epochs=2"), model=module, out=tmp_path / "run", device="cpu")
    frozen, learning = module[0].running_mean, module[2].running_mean
    assert not frozen.any() and learning.any()


def test_a_module_that_is_frozen_altogether_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"model: all of its parameters are frozen"):
        train(tiny(), out=tmp_path / "run", model=linear().requires_grad_(False), device="cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("path", ["plain", "kept"])
def test_weights_that_are_tied_are_trained_saved_and_resumed(tmp_path: Path, path: str) -> None:
    def tied() -> nn.Module:
        module = nn.Sequential(linear(), nn.Linear(10, 10, bias=False), nn.Linear(10, 10))
        nn.init.eye_(module[1].weight)
        nn.init.zeros_(module[2].bias)
        module[2].weight = module[1].weight
        return module

    made = tiny(f"path={path}")
    module = tied()
    train(made, out=tmp_path / "whole", model=module, device="cpu")
    assert module[1].weight is module[2].weight
    saved = safetensors.torch.load_file(tmp_path / "whole" / "model.safetensors")
    assert torch.equal(saved["1.weight"], saved["2.weight"])
    assert not torch.equal(saved["1.weight"], torch.eye(10))
    with pytest.raises(Stopped):
        train(made, out=tmp_path / "run", model=tied(), device="cpu", display=StopAt(12))
    train(made, out=tmp_path / "run", model=tied(), device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


class Returns(nn.Module):
    """An objective that returns what it is told to make of the loss."""

    def __init__(self, made: Callable[[torch.Tensor], object]):
        super().__init__()
        self.made = made

    def forward(self, outputs: dict[str, torch.Tensor], batch: Batch) -> object:
        return self.made(nn.functional.cross_entropy(outputs["class"], batch.label_B))


@pytest.mark.parametrize("path", ["plain", "sent", "kept"])
@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda loss: {"loss": loss}, "a term is called 'loss', as another value of the log is"),
        (lambda loss: {"own": loss, "lr": loss}, "a term is called 'lr'"),
        (lambda loss: {"time_of_day": loss}, "a term is called 'time_of_day'"),
        (lambda loss: {"val_loss": loss}, "a term is called 'val_loss'"),
        (lambda loss: loss, r"it returned Tensor\. Return a dict of terms, for example {'own': loss}"),
        (lambda loss: {}, "it returned no term at all"),
    ],
    ids=["loss", "lr", "time", "val", "tensor", "empty"],
)
def test_an_objective_that_returns_what_no_record_can_hold_is_refused(
    tmp_path: Path, path: str, made: Callable[[torch.Tensor], object], said: str
) -> None:
    with pytest.raises(SpecError, match=f"^objective: {said}"):
        train(tiny(f"path={path}"), out=tmp_path / "run", objective=Returns(made), device="cpu")


def test_every_other_value_of_a_record_is_a_name_that_no_term_may_have(tmp_path: Path) -> None:
    train(tiny(), out=tmp_path / "run", objective=Returns(lambda loss: {"own": loss}), device="cpu")
    names = {name for row in RunFolder(tmp_path / "run").metrics() for name in row} - {"own"}
    assert {"loss", "step", "epoch", "val_top1"} < names
    for name in names:
        with pytest.raises(SpecError, match=f"a term is called '{name}'"):
            refuse_terms({name: torch.zeros(())})


class Margin(nn.Module):
    """An objective with a parameter of its own, which is trained and saved along."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: dict[str, torch.Tensor], batch: object) -> dict[str, torch.Tensor]:
        loss = nn.functional.cross_entropy(self.scale * outputs["class"], batch.label_B)  # type: ignore[attr-defined]
        return {"margin": loss, "cost": 0.01 * self.scale.square()}


def test_an_objective_of_ones_own_is_minimized_and_resumed(tmp_path: Path) -> None:
    whole, first, second = Margin(), Margin(), Margin()
    train(tiny(), out=tmp_path / "whole", objective=whole, device="cpu")
    with pytest.raises(Stopped):
        train(tiny(), out=tmp_path / "run", objective=first, device="cpu", display=StopAt(12))
    train(tiny(), out=tmp_path / "run", objective=second, device="cpu", resume=True)
    assert whole.scale != 1
    assert torch.equal(whole.scale, second.scale)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")
    row = RunFolder(tmp_path / "run").metrics()[-1]
    assert row["loss"] == pytest.approx(row["margin"] + row["cost"], rel=1e-5)


class Says(nn.Module):
    """A linear map whose logits are made into something else."""

    def __init__(self, made: Callable[[torch.Tensor], object], inputs: int = 64, classes: int = 10):
        super().__init__()
        self.linear, self.made = nn.Linear(inputs, classes), made

    def forward(self, image_BCHW: torch.Tensor) -> object:
        return self.made(self.linear(image_BCHW.flatten(1)))


def test_heads_that_the_objective_does_not_read_do_not_answer(tmp_path: Path) -> None:
    torch.manual_seed(3)
    two = Says(lambda logits: {"class": logits, "aux": -100 * logits.detach()})
    torch.manual_seed(3)
    one = Says(lambda logits: {"class": logits})
    done = train(tiny("optimizer.lr=0.01"), out=tmp_path / "two", model=two, device="cpu")
    alone = train(tiny("optimizer.lr=0.01"), out=tmp_path / "one", model=one, device="cpu")
    assert done.summary == alone.summary
    assert done.summary["val_top1"] > 40


def test_with_an_objective_of_ones_own_all_logits_answer_and_it_is_said(tmp_path: Path) -> None:
    module, notes = Says(lambda logits: {"a": logits, "b": 3 * logits, "more": logits.mean(1)}), Notes()

    def both(outputs: dict[str, torch.Tensor], batch: Batch) -> dict[str, torch.Tensor]:
        return {name: nn.functional.cross_entropy(outputs[name], batch.label_B) for name in "ab"}

    done = train(tiny("optimizer.lr=0.01"), out=tmp_path / "run", model=module, objective=both, device="cpu", display=notes)
    assert {"val_top1_a", "val_top1_b"} < set(done.summary) and "val_top1_more" not in done.summary
    assert "validation takes the mean of the heads a, b" in notes.said
    assert {"a", "b"} < set(RunFolder(tmp_path / "run").metrics()[0])
    assert RunFolder(tmp_path / "run").recipe()["ready_objective"] == "function"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("vit.digits", r"'vit\.digits' is no module\. Give an nn\.Module"),
        (nn.Linear, "Linear.* is no module"),
        (lambda image: image, "is no module"),
        (nn.Flatten(), "Flatten has no parameters"),
        (Says(lambda logits: logits, classes=7), r"of two pictures it returned 'class' of shape \(2, 7\)\. Return .*\(2, 10\)"),
        (Says(lambda logits: {}), "of two pictures it returned nothing"),
        (Says(lambda logits: (logits,)), r"it returned tuple\. Return logits_BC, or a dict"),
        (Says(lambda logits: {"class": None}), "it returned NoneType"),
        (Says(lambda logits: logits, inputs=192), r"it fails \(RuntimeError: .*mat1 .* pictures of shape \(batch, 1, 8, 8\)"),
        (Says(lambda logits: logits).double(), r"it fails \(RuntimeError: .* It is given float32 pictures"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path, model: object, said: str) -> None:
    with pytest.raises(SpecError, match=f"^model: .*{said}"):
        train(tiny(), out=tmp_path / "run", model=model, device="cpu")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


def test_a_head_that_the_objective_reads_and_the_module_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"objective\.terms\[0\]\.head: the model has no head 'class'\. There is: aux"):
        train(tiny(), out=tmp_path / "run", model=Says(lambda logits: {"aux": logits}), device="cpu")


def test_a_module_that_finds_its_sizes_by_itself_is_trained(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
    train(tiny("optimizer.lr=0.01"), out=tmp_path / "run", model=module, device="cpu")
    assert isinstance(module[1].weight, nn.Parameter) and module[1].weight.shape == (10, 64)


def no_gradient(outputs: dict[str, torch.Tensor], batch: Batch) -> dict[str, torch.Tensor]:
    return {"own": outputs["class"].detach().mean()}


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("CrossEntropy", r"'CrossEntropy' is no objective\. Give a module or a function"),
        (nn.CrossEntropyLoss, "is no objective"),
        (nn.CrossEntropyLoss(), r"it fails \(.*It is called with \(outputs, batch\)"),
        (lambda outputs, batch: {"own": 1.0}, r"the term 'own' is a float\. Return scalar tensors"),
        (lambda outputs, batch: {"own": outputs["class"][:, 0]}, r"the term 'own' is of shape \(2,\)"),
        (lambda outputs, batch: {"own": outputs["clas"].mean()}, r"it fails \(KeyError: 'clas'\)"),
        (no_gradient, r"none of its terms has a gradient"),
    ],
)
def test_an_objective_that_does_not_fit_is_refused_before_anything_is_written(
    tmp_path: Path, objective: object, said: str
) -> None:
    for model in (None, linear()):
        with pytest.raises(SpecError, match=f"^objective: .*{said}"):
            train(tiny(), out=tmp_path / "run", model=model, objective=objective, device="cpu")  # type: ignore[arg-type]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (5, "5 is neither a path nor a dict"),
        ({"train": [1, 2]}, r"data\['train'\]: \[1, 2\] is no source of pictures\. Give arrays"),
    ],
)
def test_data_of_no_kind_is_refused(tmp_path: Path, data: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        train(tiny(), out=tmp_path / "run", data=data, device="cpu")  # type: ignore[arg-type]


def test_the_best_weights_of_a_module_are_kept_under_its_own_names(tmp_path: Path) -> None:
    train(tiny("optimizer.lr=0.01", "evaluate=Steps(8)"), out=tmp_path / "run", model=linear(), device="cpu")
    best = safetensors.torch.load_file(tmp_path / "run" / "best.safetensors")
    assert set(best) == {"1.weight", "1.bias"}
    linear().load_state_dict(best)


def test_the_examples_of_ones_own_parts_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "own.md").read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for code in page.split("```python\n")[1:]:
        exec(code.split("```")[0], names)
    assert {one.name for one in (tmp_path / "runs").iterdir()} == {"module", "objective", "arrays"}


def test_a_run_of_a_module_of_ones_own_is_not_trained_as_another_model(tmp_path: Path) -> None:
    from tests.test_cli import run

    train(tiny(), out=tmp_path / "run", model=linear(), device="cpu")
    for words in (
        ["train", str(tmp_path / "run")],
        ["distill", "--teacher", "digits.resnet", "--student", str(tmp_path / "run")],
    ):
        done = run(*words, "--out", str(tmp_path / "again"))
        assert done.returncode == 1 and "it trained the model Sequential, a ready object" in done.stderr, done.stderr
    assert not (tmp_path / "again").exists()
