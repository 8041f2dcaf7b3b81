"""`frugalvit analyze` on tiny runs of digits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.test_cli import bad, good, run

from frugalvit.data.digits import Digits
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, load
from frugalvit.deploy.export import export_onnx
from frugalvit.recipes.find import recipe
from frugalvit.recipes.teach import taught
from frugalvit.run import train
from frugalvit.training.teacher import RunTeacher, TeacherSpec, Teaching, ZooTeacher
from frugalvit.weights.files import write_safetensors

FEW = ("dim=16", "depth=2", "epochs=1", "batch=64", "lr=0.004", "evaluate=Epochs(1)", "save=Epochs(1)")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


TURNED = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]  # another order of the ten classes


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student with two heads and a teacher with one."""
    folder = tmp_path_factory.mktemp("runs")
    train(recipe("deit.digits", *FEW), out=folder / "student", device="cpu")
    train(recipe("vit.digits", *FEW), out=folder / "teacher", device="cpu")
    return folder


@pytest.fixture(scope="module")
def pupil(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that the teacher has taught."""
    return pupil_of(RunTeacher(str(runs / "teacher")), tmp_path_factory.mktemp("pupils") / "pupil")


def pupil_of(teacher: TeacherSpec, out: Path, *words: str) -> Path:
    made = taught(recipe("vit.digits", *FEW, "duration=Steps(4)", "schedule.warmup=Steps(1)", *words), Teaching(teacher, 0.0))
    return train(made, out=out, device="cpu").path


def compared(*words: str) -> dict[tuple[str, str], float]:
    """The disagreement by both names."""
    found = json.loads(good("analyze", "agreement", *words, "--json", "--device", "cpu"))
    rows = zip(found["names"], found["disagreement"], strict=True)
    return {(row, name): share for row, shares in rows for name, share in zip(found["names"], shares, strict=True)}


def digits_for(preprocess: Preprocess) -> tuple[torch.Tensor, np.ndarray]:
    """The held-out pictures, one by one, and their labels."""
    source = Digits().open("val", None)
    images = [preprocess(source.picture(index)) for index in range(len(source))]
    return torch.stack(images), np.asarray(source.labels)


def reordered(classifier: Classifier, order: list[int], names: tuple[str, ...]) -> Classifier:
    """The same classifier with its classes in another order, under these names."""
    with torch.no_grad():
        for head in classifier.module.readout.heads.values():
            for parameter in head.parameters():
                parameter.copy_(parameter[order].clone())
    return Classifier(replace(classifier.spec, classes=names), classifier.module)


def test_heads_teacher_and_truth_are_compared(runs: Path, tmp_path: Path) -> None:
    words = ("analyze", "agreement", "teacher", "student", "--device", "cpu")
    found = json.loads(good(*words, "--json", "--out", str(tmp_path / "a.json"), cwd=runs))
    names = ["ground truth", "teacher", "student class", "student distill", "student both"]
    assert (found["names"], found["pictures"], found["split"]) == (names, 500, "val")
    assert found["disagreement"] == json.loads((tmp_path / "a.json").read_text())["disagreement"]
    for name, place in (("teacher", 1), ("student", 4)):
        measured = json.loads(good("evaluate", name, "--json", "--device", "cpu", cwd=runs))
        assert 100 * (1 - found["disagreement"][0][place]) == pytest.approx(measured["top1"])
    assert found["environment"]["device"] == "cpu"
    text = good(*words, "--out", str(tmp_path / "a.md"), cwd=runs)
    assert all(name in text for name in names) and "n = 500 pictures" in text
    page = (tmp_path / "a.md").read_text()
    assert page.startswith("`frugalvit analyze agreement teacher student") and "split val" in page
    assert "| student both | " in page and page.endswith("\n")


def test_another_order_of_classes_changes_nothing(runs: Path, tmp_path: Path) -> None:
    reordered(load(runs / "student"), TURNED, tuple(map(str, TURNED))).save(tmp_path / "turned")
    words = ("analyze", "agreement", str(runs / "student"), str(tmp_path / "turned"), "--json", "--device", "cpu")
    found = json.loads(good(*words))
    place = {name: index for index, name in enumerate(found["names"])}
    for head in ("class", "distill", "both"):
        assert found["disagreement"][place[f"student {head}"]][place[f"turned {head}"]] == 0
    assert found["disagreement"][0][1:4] == found["disagreement"][0][4:]


def test_other_classes_are_refused(runs: Path, tmp_path: Path) -> None:
    found = load(runs / "teacher")
    smaller = replace(found.spec, model=replace(found.spec.model, classes=3), classes=("0", "1", "2"))
    Classifier(smaller, smaller.model.build(seed=0)).save(tmp_path / "three")
    text = bad("analyze", "agreement", str(runs / "student"), str(tmp_path / "three"), "--device", "cpu")
    assert "DataError: three: 3 classes against 10" in text


def test_a_run_that_held_out_other_pictures_is_named(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "teacher", tmp_path / "teacher")
    described = json.loads((tmp_path / "teacher" / "recipe.json").read_text())
    described["data_fingerprint"]["val"] = "0" * 16
    (tmp_path / "teacher" / "recipe.json").write_text(json.dumps(described))
    done = run("analyze", "agreement", str(runs / "teacher"), str(tmp_path / "teacher"), "--json", "--device", "cpu")
    assert f"caution: {tmp_path / 'teacher'} had another val split" in done.stderr
    names = json.loads(done.stdout)["names"][1:]
    assert len(set(names)) == 2 and all(name.endswith("/teacher") for name in names)


def test_the_cosines_of_a_run_are_told_by_layer(runs: Path, tmp_path: Path) -> None:
    words = ("analyze", "tokens", "student", "--device", "cpu")
    found = json.loads(good(*words, "--json", cwd=runs))
    assert [one["place"] for one in found["places"]] == ["learned", "tokens[0]", "tokens[1]", "readout"]
    assert (found["tokens"], found["pictures"]) == (["class", "distill"], 500)
    lines = good(*words, "--split", "val", "--out", str(tmp_path / "t.md"), cwd=runs).splitlines()
    assert [line.split()[0] for line in lines] == ["place", "learned", "tokens[0]", "tokens[1]", "readout", "Mean"]
    assert "| tokens[1] | " in (tmp_path / "t.md").read_text()


def test_what_cannot_be_analyzed_is_said(runs: Path, tmp_path: Path) -> None:
    assert "teacher.model: its summary tokens are class" in bad("analyze", "tokens", "teacher", "--device", "cpu", cwd=runs)
    assert "given twice" in bad("analyze", "agreement", "teacher", "./teacher", cwd=runs)
    assert "'.txt' is no ending of a report" in bad("analyze", "agreement", "teacher", "--out", "a.txt", cwd=runs)
    load(runs / "student").save(tmp_path / "alone")
    assert "which pictures?" in bad("analyze", "agreement", str(tmp_path / "alone"), "--device", "cpu")
    assert "there is no split 'vall'" in bad("analyze", "tokens", "student", "--split", "vall", cwd=runs)


# ------------------------------------------------------------------------------------------------ teachers beside


def test_a_run_brings_its_own_teacher(runs: Path, pupil: Path) -> None:
    found = json.loads(good("analyze", "agreement", str(pupil), "--teacher", "own", "--json", "--device", "cpu"))
    assert found["names"] == ["ground truth", "teacher", "pupil class", "pupil distill", "pupil both"]
    assert found["teachers"]["teacher"]["path"] == str(runs / "teacher")
    plain = json.loads(good("analyze", "agreement", str(runs / "teacher"), str(pupil), "--json", "--device", "cpu"))
    assert plain["teachers"] == {} and plain["names"] == found["names"]
    assert plain["disagreement"] == found["disagreement"]  # as a classifier like any other


def test_students_of_one_teacher_share_it_and_those_of_two_bring_both(runs: Path, pupil: Path, tmp_path: Path) -> None:
    again = pupil_of(RunTeacher(str(runs / "teacher")), tmp_path / "again", "seed=1")
    shared = dict.fromkeys(row for row, _ in compared(str(pupil), str(again), "--teacher", "own"))
    assert list(shared)[:3] == ["ground truth", "teacher", "pupil class"] and len(shared) == 8
    other = pupil_of(RunTeacher(str(runs / "student")), tmp_path / "other")
    found = compared(str(runs / "student"), str(pupil), "--teacher", str(runs / "teacher"))
    shares = compared(str(pupil), str(other), "--teacher", "own")
    assert shares["teacher of pupil", "pupil both"] == found["teacher", "pupil both"]
    assert shares["teacher of other", "pupil both"] == found["student both", "pupil both"]


def test_a_teacher_has_its_classes_in_an_order_of_its_own(runs: Path, pupil: Path, tmp_path: Path) -> None:
    reordered(load(runs / "teacher"), TURNED, tuple(map(str, TURNED))).save(tmp_path / "turned")
    words = ("analyze", "agreement", str(pupil), "--json", "--device", "cpu", "--teacher")
    done = run(*words, str(tmp_path / "turned"))
    assert "teacher: the teacher has the student's classes in another order" in done.stderr
    assert json.loads(done.stdout)["disagreement"] == json.loads(good(*words, "own"))["disagreement"]


@pytest.mark.parametrize("crop", [1.0, 0.6])
def test_an_exported_teacher_answers_as_what_it_was_made_of(runs: Path, pupil: Path, tmp_path: Path, crop: float) -> None:
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(needed)
    made = load(runs / "teacher")
    made = Classifier(replace(made.spec, preprocess=replace(made.preprocess, crop=crop)), made.module)
    made.save(tmp_path / "runs" / "teacher")
    export_onnx(made, tmp_path / "teacher.onnx")
    found = compared(str(tmp_path / "runs" / "teacher"), str(pupil), "--teacher", str(tmp_path / "teacher.onnx"))
    assert found["teacher", "runs/teacher"] == 0 < found["ground truth", "teacher"]
    assert "which can be a teacher: --teacher" in bad("analyze", "agreement", str(tmp_path / "teacher.onnx"), str(pupil))


def test_a_model_of_timm_stands_beside_the_student_it_taught(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs = timm.create_model("test_resnet", num_classes=10).eval()
    write_safetensors(tmp_path / "resnet.safetensors", theirs.state_dict())
    names = tuple(map(str, TURNED))
    spec = ZooTeacher("timm:test_resnet", str(tmp_path / "resnet.safetensors"), "timm", names, size=48)
    found = compared(str(pupil_of(spec, tmp_path / "pupil")), "--teacher", "own")
    images, labels = digits_for(Preprocess(48, 48, (0.5,) * 3, (0.5,) * 3, 0.95, "bilinear"))  # in three colors
    with torch.no_grad():
        guesses = np.array(TURNED)[theirs(images).argmax(-1).numpy()]
    assert found["ground truth", "teacher"] == pytest.approx((guesses != labels).mean(), abs=1e-9)


def test_several_teachers_answer_together(runs: Path, pupil: Path) -> None:
    members = [load(runs / name) for name in ("student", "teacher")]
    images, labels = digits_for(members[0].preprocess)
    with torch.inference_mode():
        guesses = (sum(one(images) for one in members) / 2).argmax(-1).numpy()  # type: ignore[attr-defined]
    found = compared(str(pupil), "--teacher", str(runs / "student"), "--teacher", str(runs / "teacher"))
    assert found["ground truth", "teacher"] == pytest.approx((guesses != labels).mean())


def test_a_teacher_that_held_out_other_pictures_is_named(runs: Path, pupil: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(runs / "teacher", tmp_path / "teacher")
    described = json.loads((moved / "recipe.json").read_text())
    described["data_fingerprint"]["val"] = "0" * 16
    (moved / "recipe.json").write_text(json.dumps(described))
    for words in ([str(moved)], [str(runs / "student"), "--teacher", str(moved)]):
        done = run("analyze", "agreement", str(pupil), "--teacher", *words, "--device", "cpu")
        assert f"caution: {moved} had another val split" in done.stderr and done.returncode == 0


def test_a_teacher_that_is_not_the_one_that_taught_is_refused_as_own(runs: Path, tmp_path: Path) -> None:
    teacher = shutil.copytree(runs / "teacher", tmp_path / "teacher")
    words = ("analyze", "agreement", str(pupil_of(RunTeacher(str(teacher)), tmp_path / "pupil")), "--device", "cpu")
    for name in ("model.safetensors", "config.json"):
        shutil.copy(runs / "student" / name, teacher)
    text = bad(*words, "--teacher", "own")
    assert f"{tmp_path / 'pupil'}.teaching.{teacher}: is another network than the one that taught" in text
    good(*words, "--teacher", str(teacher))  # by name, it is whatever lies there
    shutil.rmtree(teacher)
    text = bad(*words, "--teacher", "own")
    assert "there is no such file or folder. Or name whom to compare, wherever it lies: --teacher PATH" in text


def test_teachers_that_cannot_stand_beside_are_refused(
    runs: Path, pupil: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timm = pytest.importorskip("timm")
    words = ("analyze", "agreement", str(pupil), "--device", "cpu", "--teacher")
    assert "is a recipe, and nothing is trained here. Train it first" in bad(*words, "digits.resnet")
    assert "no recipe is called 'digits.resnt'" in bad(*words, "digits.resnt")
    assert "--teacher own: goes alone" in bad(*words, "own", "--teacher", str(runs / "teacher"))
    assert "nobody taught these runs" in bad("analyze", "agreement", str(runs / "student"), "--teacher", "own")
    twice = bad("analyze", "agreement", str(runs / "teacher"), str(pupil), "--teacher", "own", "--device", "cpu")
    assert f"{runs / 'teacher'}: is given as a classifier and as the teacher" in twice
    assert "there is no such file or folder. If it is a model by its name, say --teacher timm:test_resnet" in bad(
        "analyze", "agreement", "timm:test_resnet", str(pupil)
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "timm has no model 'test_resnt'. Did you mean 'test_resnet'?" in bad(*words, "timm:test_resnt")
    assert "cannot be downloaded" in bad(*words, "timm:test_resnet")
    place = tmp_path / "models--timm--test_resnet.r160_in1k" / "snapshots" / "placed"
    write_safetensors(place / "model.safetensors", timm.create_model("test_resnet").state_dict())
    (place / "config.json").write_text(json.dumps({"architecture": "test_resnet", "num_classes": 1000}))
    assert "the teacher has 1000 classes, the student 10, and they are not the same" in bad(*words, "timm:test_resnet")
    three = load(runs / "teacher")
    smaller = replace(three.spec, model=replace(three.spec.model, classes=3), classes=("0", "1", "2"))
    Classifier(smaller, smaller.model.build(seed=0)).save(tmp_path / "three")
    assert "teacher.classes: the teacher has 3 classes, the student 10" in bad(*words, str(tmp_path / "three"))


def test_a_teacher_that_was_given_as_a_module_lies_in_no_file(runs: Path, tmp_path: Path) -> None:
    made = taught(recipe("vit.digits", *FEW, "duration=Steps(1)", "schedule.warmup=Steps(1)"), Teaching(least=0.0))
    train(made, out=tmp_path / "pupil", teacher=load(runs / "teacher"), device="cpu")
    assert "train(..., teacher=module), which lies in no file" in bad(
        "analyze", "agreement", str(tmp_path / "pupil"), "--teacher", "own"
    )
    assert compared(str(tmp_path / "pupil"), "--teacher", str(runs / "teacher"))["teacher", "teacher"] == 0
