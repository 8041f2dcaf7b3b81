"""Training with a teacher: it answers for what the student sees, is measured first, and is no part of what is saved."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.training.runs import column
from torch import nn

import frugalvit
from frugalvit.data.augment import Augment, PadCrop, Resize
from frugalvit.data.digits import Digits
from frugalvit.data.erase import Erase
from frugalvit.data.mix import NoMix, SwitchMix
from frugalvit.data.split import Picked
from frugalvit.errors import DataError, SpecError
from frugalvit.objective.distill import Distilled, HardLabel, SoftKl
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.match import MatchedTokens
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.find import recipe
from frugalvit.recipes.teach import taught
from frugalvit.report.progress import Silent
from frugalvit.seeds import train_seeds
from frugalvit.teaching import open_teacher
from frugalvit.training import loop
from frugalvit.training.devices import place_for
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe, Stored, preprocess_of
from frugalvit.training.teacher import ReadyTeacher, RunTeacher, Teaching
from frugalvit.weights.files import write_safetensors

SIZES = ("dim=16", "depth=2", "batch=64", "schedule.warmup=Steps(4)", "log_every=10", "epochs=1")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "teacher"
    frugalvit.train(recipe("digits.resnet", "epochs=2", "batch=32"), out=out)
    return out


def student(path: Path | None, *terms: Distilled | MatchedTokens, least: float | None = None) -> Recipe:
    made = recipe("deit.digits", *SIZES)
    terms = terms or (Distilled("distill", HardLabel(), 0.5),)
    return replace(
        made,
        objective=Objective((Supervised("class", CrossEntropy(0.1), 0.5), *terms)),
        teaching=None if path is None else Teaching(RunTeacher(str(path)), least),
    )


class Notes(Silent):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize("path", ["plain", "sent", "kept"])
def test_a_student_learns_from_its_teacher_on_every_path(
    teacher: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))
    made, notes = replace(student(teacher), path=path), Notes()  # type: ignore[arg-type]
    done = frugalvit.train(made, out=tmp_path / "run", display=notes)
    assert any("the teacher" in one and "% of 500 validation pictures right" in one for one in notes.said)
    assert {"val_top1", "val_top1_class", "val_top1_distill"} <= set(done.summary)
    names = set(load_file(tmp_path / "run" / "model.safetensors"))
    assert names == {name for name, _ in done.classifier.module.state_dict().items()}  # the student's alone
    saved = load_file(next((tmp_path / "run" / "state").iterdir()))
    assert not [name for name in saved if "teacher" in name or "network" in name]


def test_the_loss_is_the_sum_of_labels_and_teacher(teacher: Path) -> None:
    records = list(islice(frugalvit.fit(replace(student(teacher), log_every=1)), 2))
    assert {"supervised_class", "distilled_distill", "loss"} <= set(records[0].values)
    total = records[0].values["supervised_class"] + records[0].values["distilled_distill"]
    assert records[0].values["loss"] == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("path", ["plain", "sent", "kept"])
def test_answers_are_for_the_very_pictures_the_student_gets(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))
    seen: list[torch.Tensor] = []
    given: list[torch.Tensor] = []

    def answer(image_BCHW: torch.Tensor) -> torch.Tensor:
        seen.append(image_BCHW.clone())
        return torch.zeros(len(image_BCHW), 10)

    made = replace(student(None), path=path)  # type: ignore[arg-type]
    made = replace(made, data=replace(made.data, augment=Augment((PadCrop(2),)), erase=Erase(1.0), mix=SwitchMix()))
    sources, place = {"train": Digits().open("train", None)}, place_for("cpu", "fp32")
    teacher = open_teacher(ReadyTeacher(answer), preprocess_of(made), sources["train"].classes, place)
    teacher.captured = True  # a function cannot be part of a CUDA graph, but there is none here
    training = prepare(made, sources, place, teacher=teacher)
    training.state.module.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].clone()))
    seen.clear()  # opening asks about a blank picture
    list(islice(loop.fit(training.step, training.batches, replace(training.cadence, log=1)), 3))
    assert len(seen) == len(given) == 3
    assert all(torch.equal(one, other) for one, other in zip(seen, given, strict=True))
    assert not torch.equal(seen[0], seen[1])


def test_a_teacher_that_says_nothing_is_refused(tmp_path: Path) -> None:
    def nothing(image_BCHW: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(image_BCHW), 10)

    with pytest.raises(SpecError, match=r"and chance is 10\.0 %"):
        frugalvit.train(student(None), out=tmp_path / "run", teacher=ReadyTeacher(nothing))


def test_projections_of_terms_are_trained_saved_and_a_function_of_the_seed(teacher: Path, tmp_path: Path) -> None:
    made = student(teacher, Distilled("distill", SoftKl(3.0, "batchmean"), 0.5), MatchedTokens("tokens[1]", "maps[2]", 0.1))
    runs = [frugalvit.train(made, out=tmp_path / name) for name in ("one", "two")]
    one, two = (load_file(next((run.path / "state").iterdir())) for run in runs)
    learned = [name for name in one if name.startswith("objective.") and "project" in name]
    assert learned and all(torch.equal(one[name], two[name]) for name in one)
    assert not [name for name in load_file(runs[0].path / "model.safetensors") if "project" in name]


def test_who_teaches_is_part_of_a_run(teacher: Path, tmp_path: Path) -> None:
    made = student(teacher)
    frugalvit.train(made, out=tmp_path / "run")
    frugalvit.train(recipe("digits.resnet", "epochs=1", "batch=64"), out=tmp_path / "other")
    with pytest.raises(DataError, match="teach"):
        frugalvit.train(student(tmp_path / "other"), out=tmp_path / "run", resume=True)
    before = (tmp_path / "run" / "recipe.json").read_bytes()
    shutil.copytree(teacher, tmp_path / "moved")
    frugalvit.train(student(tmp_path / "moved"), out=tmp_path / "run", resume=True)  # the same one, elsewhere
    assert (tmp_path / "run" / "recipe.json").read_bytes() == before
    with pytest.raises(DataError, match="teaching"):  # named by the run, and by nobody here
        frugalvit.train(replace(made, teaching=None), out=tmp_path / "run", teacher=frugalvit.load(teacher), resume=True)


def test_a_bare_module_teaches_and_is_asked_for_again(teacher: Path, tmp_path: Path) -> None:
    mine, made = frugalvit.load(teacher).module, taught(recipe("vit.digits", *SIZES))
    frugalvit.train(made, out=tmp_path / "run", teacher=mine)  # type: ignore[arg-type]
    saved = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert saved["teaching"]["teacher"] == {"part": "GivenTeacher"} and saved["teacher_fingerprint"]
    frugalvit.train(recipe(str(tmp_path / "run")), out=tmp_path / "run", teacher=mine, resume=True)  # type: ignore[arg-type]
    alone, _ = train_seeds(made, (0, 1), out=tmp_path / "both", teacher=mine)  # type: ignore[arg-type]
    assert (alone.path / "model.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(DataError, match="another teacher"):
        other = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        frugalvit.train(made, out=tmp_path / "run", teacher=other, resume=True)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match=r"recipe\.teaching\.teacher: .* none is given\. Say train\(recipe, teacher=module\)"):
        frugalvit.train(made, out=tmp_path / "run", resume=True)


def test_the_example_of_a_teacher_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "distillation.md").read_text(encoding="utf-8")
    for words, out in (("teacher=mine", "by_mine"), ("import MatchedTokens", "matched")):
        exec(next(code for code in page.split("```python\n")[1:] if words in code).split("```")[0], {})
        assert json.loads((tmp_path / "runs" / out / "summary.json").read_text())["val_top1_distill"] > 10
    assert column(tmp_path / "runs" / "matched", "matched_tokens_3_maps_2")


def test_refusals(teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"learns from a teacher, and there is none. Name one"):
        frugalvit.train(student(None), out=tmp_path / "a")
    with pytest.raises(SpecError, match=r"asked for are 99\.9 %"):
        frugalvit.train(student(teacher, least=99.9), out=tmp_path / "b")
    with pytest.raises(SpecError, match=r"asked for are 99\.9 %"):
        frugalvit.fit(student(teacher, least=99.9))
    filed = still(teacher, tmp_path / "answers.safetensors")
    assert filed.teaching is not None
    with pytest.raises(SpecError, match=r"recipe\.teaching\.least: .* asked for are 99\.9 %"):
        frugalvit.train(replace(filed, teaching=replace(filed.teaching, least=99.9)), out=tmp_path / "d")
    assert not (tmp_path / "answers.safetensors").exists()  # it was not asked about all pictures
    silent = replace(recipe("deit.digits", *SIZES), teaching=Teaching(RunTeacher(str(teacher))))
    silent = replace(silent, objective=Objective((Supervised("class"),)))
    with pytest.raises(SpecError, match="no term of the objective learns from one"):
        frugalvit.train(silent, out=tmp_path / "c")
    assert not [one for one in ("a", "b", "c") if (tmp_path / one / "recipe.json").exists()]
    assert len(Digits().open("val", None)) == 500


def still(path: Path, file: Path | None) -> Recipe:
    made = student(path)
    data = replace(made.data, augment=Augment((PadCrop(0),)), erase=None, mix=NoMix())
    teaching = Teaching(RunTeacher(str(path)), file="" if file is None else str(file))
    return replace(made, data=data, teaching=teaching, log_every=1)


@pytest.mark.parametrize("path", ["plain", "kept"])
def test_answers_in_a_file_give_the_losses_of_live_ones(
    teacher: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "answers.safetensors"
    losses = []
    for one in (None, file, file):  # live, written, read
        made = replace(still(teacher, one), path=path)  # type: ignore[arg-type]
        losses.append([record.values["loss"] for record in islice(frugalvit.fit(made), 6)])
    assert losses[1] == losses[2] == pytest.approx(losses[0], rel=1e-4)


def test_a_file_of_something_else_is_refused_and_so_are_views_that_change(teacher: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.safetensors"
    next(frugalvit.fit(still(teacher, file)))
    before = file.read_bytes()
    frugalvit.train(recipe("digits.resnet", "epochs=1", "batch=64"), out=tmp_path / "other")
    with pytest.raises(DataError, match="holds the answers of another teacher"):
        next(frugalvit.fit(still(tmp_path / "other", file)))
    moving = replace(still(teacher, file), data=replace(still(teacher, file).data, augment=Augment((PadCrop(1),))))
    with pytest.raises(SpecError, match=r"recipe\.teaching\.file: .* look the same every time"):
        next(frugalvit.fit(moving))
    assert file.read_bytes() == before


def filed(made: Recipe, answer: ReadyTeacher) -> Training:
    sources, place = {"train": Digits().open("train", None)}, place_for("cpu", "fp32")
    return prepare(made, sources, place, teacher=open_teacher(answer, preprocess_of(made), sources["train"].classes, place))


class Scaled:
    """A function whose code tells nothing of what it computes."""

    def __init__(self, factor: float, dtype: torch.dtype = torch.float32):
        generator = torch.Generator().manual_seed(0)
        self.weight_KC, self.factor, self.dtype = torch.randn(64, 10, generator=generator), factor, dtype

    def __call__(self, image_BCHW: torch.Tensor) -> torch.Tensor:
        return (image_BCHW.flatten(1).to(self.dtype) @ self.weight_KC.to(self.dtype)).float() * self.factor


def test_nobody_is_told_to_delete_a_file_that_holds_no_answers(teacher: Path, tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    write_safetensors(weights, {"weight": torch.ones(3)})
    with pytest.raises(DataError, match=r"weights\.safetensors: is no file of a teacher's answers\. Name another one"):
        filed(still(teacher, weights), ReadyTeacher(Scaled(1.0)))
    with pytest.raises(SpecError, match=r"notes\.md' is no name for answers\. Choose one that ends in \.safetensors"):
        filed(still(teacher, tmp_path / "notes.md"), ReadyTeacher(Scaled(1.0)))


def test_answers_in_a_file_are_compared_with_those_of_a_teacher_that_nothing_else_tells_apart(
    teacher: Path, tmp_path: Path
) -> None:
    file = tmp_path / "answers.safetensors"
    made = still(teacher, file)
    first = filed(made, ReadyTeacher(Scaled(1.0)))
    rounded = filed(made, ReadyTeacher(Scaled(1.0, torch.bfloat16)))  # as another device and precision would
    assert rounded.step.filed is not None and first.step.filed is not None
    assert torch.equal(rounded.step.filed.logits_NC, first.step.filed.logits_NC)
    for factor in (-1.0, 1.1, 0.0):
        with pytest.raises(DataError, match=r"answers\.safetensors: holds other answers than the teacher, Scaled, gives now"):
            filed(made, ReadyTeacher(Scaled(factor)))


def test_answers_in_a_file_are_for_pictures_as_they_are_stored(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "answers.safetensors"
    made = still(teacher, file)
    plain = replace(made, data=replace(made.data, augment=Augment((Resize(),))))
    small = replace(plain, data=replace(plain.data, store=Stored(limit=4)))
    training = filed(small, ReadyTeacher(Scaled(1.0)))
    assert training.step.teacher is not None and training.step.filed is not None
    batch = training.step.finished(training.batches[0], 0)
    live_BC, kept_BC = training.step.teacher(batch.image_BCHW)["logits"], training.step.filed(batch.index_B)["logits"]
    assert torch.allclose(live_BC, kept_BC, atol=1e-4)
    with pytest.raises(DataError, match="of other pictures"):
        filed(plain, ReadyTeacher(Scaled(1.0)))


# ------------------------------------------------------------------------------------------------ what it is worth


def test_what_a_teacher_is_worth_is_kept_with_the_run(teacher: Path, tmp_path: Path) -> None:
    notes = Notes()
    frugalvit.train(student(teacher, least=0.0), out=tmp_path / "run", device="cpu", display=notes)
    told = json.loads((tmp_path / "run" / "environment.json").read_text())["teacher"]
    own = json.loads((teacher / "summary.json").read_text())["val_top1"]
    assert told["pictures"] == 500 and told["top1"] == pytest.approx(own)
    assert told["notes"] and set(told["notes"]) <= set(notes.said)
    frugalvit.train(recipe("deit.digits", *SIZES), out=tmp_path / "alone", device="cpu")
    assert "teacher" not in json.loads((tmp_path / "alone" / "environment.json").read_text())


def test_what_is_asked_of_a_teacher_needs_pictures_to_see_it_by(teacher: Path, tmp_path: Path) -> None:
    train = {"train": Digits().open("train", None)}
    with pytest.raises(SpecError, match=r"teaching\.least: 50 % are asked for, and there is no validation split"):
        frugalvit.train(student(teacher, least=50.0), out=tmp_path / "run", data=train, device="cpu")
    assert not (tmp_path / "run").exists()
    notes = Notes()
    frugalvit.train(student(teacher, least=0.0), out=tmp_path / "run", data=train, device="cpu", display=notes)
    assert any("is not measured: there is no validation split" in text for text in notes.said)


def test_a_teacher_that_may_know_the_pictures_it_is_measured_on_is_told(teacher: Path, tmp_path: Path) -> None:
    train, val = (Digits().open(split, None) for split in ("train", "val"))
    for name, other, told in (("same", val, False), ("other", Picked(val, np.arange(100)), True)):
        notes = Notes()
        data = {"train": train, "val": other}
        frugalvit.train(student(teacher, least=0.0), out=tmp_path / name, data=data, device="cpu", display=notes)
        assert any("held out other pictures; if it learned from some" in text for text in notes.said) == told


def test_a_loop_of_ones_own_takes_a_teacher_of_ones_own() -> None:
    def answer(image_BCHW: torch.Tensor) -> torch.Tensor:
        return 2.0 * torch.eye(10)[torch.arange(len(image_BCHW)) % 10]

    made = taught(recipe("vit.digits", *SIZES), Teaching(least=0.0))
    (record,) = islice(frugalvit.fit(made, device="cpu", teacher=answer), 1)
    assert {"supervised_class", "distilled_distill"} <= set(record.values)
    with pytest.raises(SpecError, match="leaves its teacher to the training, and none is given"):
        next(frugalvit.fit(made, device="cpu"))


def test_answers_that_cannot_be_written_are_told(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"file/answers\.safetensors: the teacher's answers cannot be written there \("):
        filed(still(teacher, tmp_path / "file" / "answers.safetensors"), ReadyTeacher(Scaled(1.0)))
