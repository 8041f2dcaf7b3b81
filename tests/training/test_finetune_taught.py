"""Distilled models go on: at another size with and without a teacher, with other classes, and without a trace of who taught."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.test_cli import bad, good
from tests.training.runs import Notes
from torch.nn.functional import interpolate

import frugalvit
from frugalvit.data.digits import Digits
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.source import Source
from frugalvit.data.split import Picked
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import WeightsError
from frugalvit.objective.distill import Distilled, HardLabel
from frugalvit.objective.match import MatchedTokens
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.find import recipe
from frugalvit.recipes.teach import taught
from frugalvit.teaching import open_teacher
from frugalvit.training.devices import place_for
from frugalvit.training.recipe import Recipe, preprocess_of
from frugalvit.training.teacher import RunTeacher, Teaching, ZooTeacher
from frugalvit.weights.files import write_safetensors
from frugalvit.zoo.find import model

FEW = ("batch=32", "schedule.warmup=Steps(1)", "duration=Steps(3)", "log_every=1", "data.subset=SeededFraction(0.1)")
SIZES = ("dim=16", "depth=2", "model.tokenizer.patch=4", *FEW)
HEADS = ("class", "distill")
POSITIONS = "layers.1.positions"
CPU = place_for("cpu", "fp32")
STILL = ("lr=1e-60", "schedule.warmup=Steps(0)")  # zero in fp32: the result is the beginning
DIGITS = tuple(map(str, range(10)))


def distilled(image: int, *more: str) -> Recipe:
    """Patches of 4 pixels; both heads learn the labels."""
    return recipe("deit.digits", *SIZES, f"model.image={image}", *more)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A convnet of 8 pixels that has hardly learned anything."""
    out = tmp_path_factory.mktemp("runs") / "teacher"
    frugalvit.train(recipe("digits.resnet", *FEW), out=out)
    return out


@pytest.fixture(scope="module")
def student(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distilled model of 16 pixels, a grid of 4 x 4."""
    out = tmp_path_factory.mktemp("runs") / "student"
    frugalvit.train(taught(distilled(16), Teaching(RunTeacher(str(teacher)), 0.0)), out=out)
    return out


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def terms(run: Path) -> set[str]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {name for name in rows[0] if name.startswith(("supervised_", "distilled_"))}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, value in after.items() if before[name].shape != value.shape or not torch.equal(before[name], value)}


# ------------------------------------------------------------------------------------------------ another size


@pytest.mark.parametrize("image", [24, 32])
@pytest.mark.parametrize("who", ["teacher", "nobody"])
def test_a_larger_size_begins_with_all_weights_and_resampled_positions(
    student: Path, teacher: Path, tmp_path: Path, image: int, who: str
) -> None:
    sizes = [*SIZES, f"model.image={image}", *STILL, "--init", str(student), "--quiet", "--device", "cpu"]
    if who == "teacher":
        good("distill", *sizes, "--teacher", str(teacher), "--student", "deit.digits", "--least", "0", "--out", str(tmp_path))
        run = tmp_path / "student"
    else:
        run = tmp_path / "run"
        good("train", "deit.digits", *sizes, "--out", str(run))
    before, after = weights(student), weights(run)
    assert changed(before, after) == {POSITIONS}
    assert torch.equal(after[POSITIONS][:, :2], before[POSITIONS][:, :2])  # class, distill
    side = image // 4
    grid_1DHW = before[POSITIONS][:, 2:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    expected = interpolate(grid_1DHW, (side, side), mode="bicubic").flatten(2).transpose(1, 2)
    torch.testing.assert_close(after[POSITIONS][:, 2:], expected)
    assert terms(run) == {"supervised_class", "distilled_distill" if who == "teacher" else "supervised_distill"}
    assert json.loads((run / "recipe.json").read_text())["init"] == str(student)


def test_both_heads_go_on_learning_with_and_without_a_teacher(student: Path, teacher: Path, tmp_path: Path) -> None:
    made = distilled(24)
    for name, one in {"alone": made, "taught": taught(made, Teaching(RunTeacher(str(teacher)), 0.0))}.items():
        done = frugalvit.train(one, out=tmp_path / name, init=str(student))
        heads = {f"readout.heads.{head}.weight" for head in HEADS}
        assert heads <= changed(weights(student), weights(done.path))
        assert {"val_top1_class", "val_top1_distill"} <= set(done.summary)
        assert frugalvit.load(done.path).spec.model.heads == HEADS


def test_a_model_without_the_token_cannot_begin_a_distilled_one(teacher: Path, tmp_path: Path) -> None:
    plain = frugalvit.train(recipe("vit.digits", *SIZES, "model.image=16"), out=tmp_path / "plain")
    words = ["--teacher", str(teacher), "--student", "vit.digits", *SIZES, "model.image=24", "--least", "0"]
    text = bad("distill", *words, "--init", str(plain.path), "--out", str(tmp_path / "out"), "--quiet", "--device", "cpu")
    assert "The file is of a model without distillation token" in text
    assert not (tmp_path / "out" / "student").exists()


# ------------------------------------------------------------------------------------------------ other classes


@pytest.mark.parametrize("image", [16, 24])
def test_other_classes_get_two_fresh_heads_that_learn_the_labels(student: Path, tmp_path: Path, image: int) -> None:
    few = "data.subset=FirstClasses(4)"
    still = frugalvit.train(distilled(image, few, *STILL), out=tmp_path / "still", init=str(student))
    moved = frugalvit.train(distilled(image, few), out=tmp_path / "moved", init=str(student))
    before, fresh, after = weights(student), weights(still.path), weights(moved.path)
    heads = {f"readout.heads.{head}.{part}" for head in HEADS for part in ("weight", "bias")}
    assert changed(before, fresh) == heads | ({POSITIONS} if image != 16 else set())
    assert {fresh[name].shape[0] for name in heads} == {4}
    assert not any(fresh[name].any() for name in heads)  # as this recipe builds them
    assert heads <= changed(fresh, after)
    assert not torch.equal(after["readout.heads.class.weight"], after["readout.heads.distill.weight"])
    assert terms(moved.path) == {"supervised_class", "supervised_distill"}
    assert frugalvit.load(moved.path).classes == DIGITS[:4]


def test_other_classes_can_be_taught_by_who_knows_them(student: Path, tmp_path: Path) -> None:
    few = "data.subset=FirstClasses(4)"
    other = frugalvit.train(recipe("digits.resnet", *FEW, few), out=tmp_path / "other")
    made = taught(distilled(24, few), Teaching(RunTeacher(str(other.path)), 0.0))
    done = frugalvit.train(made, out=tmp_path / "run", init=str(student))
    assert terms(done.path) == {"supervised_class", "distilled_distill"}
    assert weights(done.path)["readout.heads.distill.weight"].shape[0] == 4


# ------------------------------------------------------------------------------------------------ the teacher's size


def test_a_convnet_sees_its_own_size_or_the_students(teacher: Path) -> None:
    pictures = preprocess_of(recipe("digits.resnet", "model.image=24"))
    own, large = (open_teacher(RunTeacher(str(teacher), size), pictures, DIGITS, CPU) for size in (None, 24))
    assert (own.size, large.size) == ((8, 8), (24, 24))
    image_BCHW = torch.randn(2, 1, 24, 24)
    assert large.seen(image_BCHW) is image_BCHW and own.seen(image_BCHW).shape == (2, 1, 8, 8)
    module = replace(large.network.spec).build(seed=3).eval()
    module.load_state_dict(weights(teacher))
    torch.testing.assert_close(large(image_BCHW)["logits"], module(image_BCHW)["class"])
    assert not torch.allclose(large(image_BCHW)["logits"], own(image_BCHW)["logits"])


def test_the_size_of_the_teacher_is_part_of_the_command_and_of_the_run(student: Path, teacher: Path, tmp_path: Path) -> None:
    words = ["--teacher", str(teacher), "--student", str(student), "model.image=24", "--init", str(student), "--quiet"]
    words += ["--device", "cpu", "teaching.teacher.size=24", "teaching.least=0", "--out", str(tmp_path / "out")]
    good("distill", *words)
    saved = json.loads((tmp_path / "out" / "student" / "recipe.json").read_text())
    assert saved["teaching"]["teacher"] == {"part": "RunTeacher", "path": str(teacher), "size": 24, "classes": []}
    assert saved["model"]["image"]["height"] == 24 and saved["teaching"]["least"] == 0
    text = bad("distill", *words[:-1], str(tmp_path / "other"), "teaching.teacher.sice=24")
    assert "RunTeacher has no field 'sice'. Did you mean 'size'?" in text


def test_a_transformer_of_ours_is_resampled_and_one_of_others_is_refused(student: Path, tmp_path: Path) -> None:
    pictures = preprocess_of(distilled(24))
    assert (
        "positions resampled from 4 x 4 to 6 x 6" in open_teacher(RunTeacher(str(student), 24), pictures, DIGITS, CPU).notes[0]
    )
    color = Preprocess(64, 64, (0.5,) * 3, (0.5,) * 3)
    spec = model("timm:test_vit", image=32, classes=10)
    made = Classifier(ClassifierSpec(spec, replace(color, height=32, width=32), DIGITS), spec.build(seed=0))
    folder, file = made.save(tmp_path / "vit"), tmp_path / "vit.safetensors"
    write_safetensors(file, {name.removeprefix("network."): one for name, one in made.module.state_dict().items()})
    assert open_teacher(RunTeacher(str(folder)), color, DIGITS, CPU).size == (32, 32)
    for who in (RunTeacher(str(folder), 64), ZooTeacher("timm:test_vit", str(file), size=64)):
        with pytest.raises(WeightsError, match=r"pos_embed: the file has \(1, 5, 64\), the model \(1, 17, 64\)"):
            open_teacher(who, color, DIGITS, CPU)


# ------------------------------------------------------------------------------------------------ what is saved


def test_nothing_of_the_teacher_or_the_terms_is_in_what_is_saved(teacher: Path, tmp_path: Path) -> None:
    shutil.copytree(teacher, tmp_path / "teacher")
    made = taught(distilled(16), Teaching(RunTeacher(str(tmp_path / "teacher")), 0.0))
    project = MatchedTokens("tokens[1]", "maps[2]", 0.1)
    made = replace(
        made, objective=Objective((Supervised("class", weight=0.5), Distilled("distill", HardLabel(), 0.5), project))
    )
    run = frugalvit.train(made, out=tmp_path / "run").path
    learned = [name for name in load_file(next((run / "state").iterdir())) if name.startswith("objective.")]
    assert learned  # the term has parameters, which belong to the state
    names = set(replace(made.model, classes=10).build().state_dict())
    theirs = [one for one in weights(tmp_path / "teacher").values() if one.numel() > 1 and one.std() > 0]
    for file in ("model.safetensors", "best.safetensors"):
        found = load_file(run / file)
        assert set(found) == names
        assert not [
            name for name, one in found.items() for other in theirs if one.shape == other.shape and torch.equal(one, other)
        ]
        with safe_open(run / file, "pt") as opened:
            told = opened.metadata()["frugalvit"]
        assert json.loads(told) == json.loads((run / "config.json").read_text())
    assert set(json.loads(told)) == {"format", "part", "model", "preprocess", "classes", "fusion"}
    assert not [word for word in ("teach", "Distilled", "Matched", str(tmp_path)) if word in told]
    shutil.rmtree(tmp_path / "teacher")
    shutil.move(run, tmp_path / "elsewhere")
    assert frugalvit.load(tmp_path / "elsewhere")(torch.zeros(1, 1, 16, 16)).shape == (1, 10)


class Renamed(Picked):
    """The digits under other names, in the order of these."""

    def __init__(self, source: Source, classes: tuple[str, ...], order: list[int]):
        super().__init__(source, np.arange(len(source)), classes)
        self.labels = np.argsort(order)[source.labels]


@pytest.fixture(scope="module")
def named_student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of classes with names."""
    out = tmp_path_factory.mktemp("runs") / "named"
    frugalvit.train(distilled(16), out=out, data=of_names(NAMES))
    return out


NAMES = tuple(f"digit {one}" for one in range(10))


def of_names(names: tuple[str, ...], order: list[int] | None = None) -> dict[str, Source]:
    order = order or list(range(10))
    return {split: Renamed(Digits().open(split, None), names, order) for split in ("train", "val")}


def test_heads_that_know_the_classes_in_another_order_are_put_into_the_datas(named_student: Path, tmp_path: Path) -> None:
    order, notes = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7], Notes()
    data = of_names(tuple(NAMES[one] for one in order), order)
    run = frugalvit.train(distilled(16, *STILL), out=tmp_path / "run", init=str(named_student), data=data, display=notes)
    before, after = weights(named_student), weights(run.path)
    heads = {f"readout.heads.{head}.{part}" for head in HEADS for part in ("weight", "bias")}
    assert changed(before, after) == heads and all(torch.equal(after[name], before[name][order]) for name in heads)
    assert "the weights know the data's classes in another order; their heads are put into the data's" in notes.said
    assert run.summary["val_top1"] == frugalvit.train(
        distilled(16, *STILL), out=tmp_path / "same", init=str(named_student), data=of_names(NAMES)
    ).summary["val_top1"]  # fmt: skip


def test_heads_of_other_classes_that_are_as_many_are_told(named_student: Path, tmp_path: Path) -> None:
    notes = Notes()
    data = of_names(tuple(f"letter {one}" for one in range(10)))
    run = frugalvit.train(distilled(16, *STILL), out=tmp_path / "run", init=str(named_student), data=data, display=notes)
    assert changed(weights(named_student), weights(run.path)) == set()
    said = "caution: the heads begin with what they learned for other classes, as many as the data's"
    assert f"{said}: digit 0, digit 1, digit 2, ..." in notes.said


def test_a_teacher_that_knows_less_of_another_size_is_told(teacher: Path, tmp_path: Path) -> None:
    seeing = tmp_path / "seeing"
    frugalvit.train(recipe("digits.resnet", "epochs=3", "batch=32"), out=seeing)
    for size, told in ((40, True), (None, False)):
        notes = Notes()
        made = taught(distilled(16), Teaching(RunTeacher(str(seeing), size), 0.0))
        frugalvit.train(made, out=tmp_path / f"run-{size}", display=notes)
        assert any(f"caution: at its own size {seeing} had" in text for text in notes.said) == told
