"""DeiT's table 4 with teachers of every kind, at toy size: what is said of a teacher is what it says itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import frugalvit
from frugalvit.data.digits import Digits
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.export import export_onnx
from frugalvit.errors import WeightsError
from frugalvit.recipes.find import recipe
from frugalvit.recipes.teach import taught
from frugalvit.report.files import read_json, write_json
from frugalvit.studies.disagreement import disagreements
from frugalvit.studies.study import Study
from frugalvit.studies.trainings import Setup, trained
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import Ensemble, OnnxTeacher, RunTeacher, TeacherSpec, Teaching, ZooTeacher
from frugalvit.weights.files import write_safetensors

SMALL = ("data.subset=SeededFraction(0.15)", "schedule.warmup=Steps(2)", "log_every=2")
OWN = Preprocess(48, 48, (0.5,) * 3, (0.5,) * 3, 0.95, "bilinear")  # of timm's test_resnet, at that size


@pytest.fixture(scope="module")
def student() -> Recipe:
    return recipe("vit.digits", "dim=8", "depth=1", "epochs=1", "batch=64", *SMALL)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teachers") / "convnet"
    return frugalvit.train(recipe("digits.resnet", "epochs=4", "channels=4", "batch=16", "lr=0.01", *SMALL), out=out).path


def compared(student: Recipe, teacher: TeacherSpec, setup: Setup) -> Study:
    trained({"none": student, "token": taught(student, Teaching(teacher), "token")}, setup)
    return disagreements(student, teacher, setup)


def digits(split: str, preprocess: Preprocess) -> tuple[torch.Tensor, np.ndarray]:
    source = Digits().open(split, None)
    return torch.stack([preprocess(source.picture(index)) for index in range(len(source))]), np.asarray(source.labels)


def errors(found: Study) -> float:
    return found.values["ground truth", "teacher"][0]


def test_a_saved_run_and_the_file_exported_from_it_are_one_teacher(run: Path, student: Recipe, tmp_path: Path) -> None:
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(needed)
    setup, file = Setup((0,), tmp_path / "study", device="cpu"), tmp_path / "convnet.onnx"
    saved = compared(student, RunTeacher(str(run)), setup)
    assert 100 * errors(saved) == pytest.approx(100 - read_json(run / "summary.json")["val_top1"])
    classifier = frugalvit.load(run)
    assert classifier.preprocess.crop == 1.0  # which the file tells, and the teacher's description does not
    export_onnx(classifier, file)
    exported = OnnxTeacher(str(file), (0.0,), (1.0,), classifier.classes)
    other = compared(student, exported, replace(setup, out=tmp_path / "other"))
    assert errors(other) == errors(saved)
    several = compared(student, Ensemble((RunTeacher(str(run)), exported)), replace(setup, out=tmp_path / "several"))
    assert errors(several) == errors(saved)


def test_a_model_of_timm_is_shown_its_own_pictures(student: Recipe, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    theirs, order = timm.create_model("test_resnet", num_classes=10).eval(), [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    (seen, known), (images, labels) = digits("train", OWN), digits("val", OWN)
    with torch.no_grad():  # a head by least squares, which is better than chance
        features = theirs.forward_head(theirs.forward_features(seen), pre_logits=True)
        target = torch.nn.functional.one_hot(torch.from_numpy(known), 10)[:, order].float()
        solution = torch.linalg.lstsq(torch.cat([features, torch.ones(len(features), 1)], 1).double(), target.double()).solution
        theirs.fc.weight.copy_(solution[:-1].T)
        theirs.fc.bias.copy_(solution[-1])
        guesses = np.array(order)[theirs(images).argmax(-1).numpy()]
    write_safetensors(tmp_path / "resnet.safetensors", theirs.state_dict())
    spec = ZooTeacher("timm:test_resnet", str(tmp_path / "resnet.safetensors"), "timm", tuple(map(str, order)), size=48)
    assert errors(compared(student, spec, Setup((0,), tmp_path / "study", device="cpu"))) == (guesses != labels).mean() < 0.8


def test_another_network_than_taught_is_refused(run: Path, student: Recipe, tmp_path: Path) -> None:
    setup, teacher = Setup((0,), tmp_path / "study", device="cpu"), RunTeacher(str(run))
    trained({"none": student, "token": taught(student, Teaching(teacher), "token")}, setup)
    data = read_json(tmp_path / "study" / "study.json")
    for entry in data["entries"]:
        entry["teacher"] = entry["teacher"] and "0123456789abcdef"  # as if a model of that name had had other weights
    write_json(tmp_path / "study" / "study.json", data)
    with pytest.raises(WeightsError, match=r"convnet: is another network than the one that taught .*token.seed-0: teacher_fin"):
        disagreements(student, teacher, setup)
