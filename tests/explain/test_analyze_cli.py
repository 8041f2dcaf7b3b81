"""`frugalvit analyze` on tiny runs of digits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.test_cli import bad, good, run

from frugalvit.deploy.classifier import Classifier, load
from frugalvit.recipes.find import recipe
from frugalvit.run import train

FEW = ("dim=16", "depth=2", "epochs=1", "batch=64", "lr=0.004", "evaluate=Epochs(1)", "save=Epochs(1)")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student with two heads and a teacher with one."""
    folder = tmp_path_factory.mktemp("runs")
    train(recipe("deit.digits", *FEW), out=folder / "student", device="cpu")
    train(recipe("vit.digits", *FEW), out=folder / "teacher", device="cpu")
    return folder


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
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    reordered(load(runs / "student"), order, tuple(map(str, order))).save(tmp_path / "turned")
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
