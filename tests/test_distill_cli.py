"""`frugalvit distill`: from nothing to a student, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.runs import column
from typer.testing import CliRunner

from frugalvit.assign import override
from frugalvit.cli import app
from frugalvit.cli.trained_first import of_our_training
from frugalvit.errors import DataError, FrugalError, SpecError
from frugalvit.recipes.find import recipe
from frugalvit.recipes.teach import taught
from frugalvit.report.record import RunFolder
from frugalvit.spec import encode
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import RunTeacher, Teaching
from frugalvit.training.teacher_check import WeakTeacher

KNOWN = ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", "x"]
SIZES = ["dim=16", "depth=2", "batch=64", "schedule.warmup=Steps(4)", "epochs=1"]


def called(*words: str) -> str:
    done = CliRunner().invoke(app, ["distill", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_teacher_is_trained_and_then_a_student(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {"epochs": 2, "batch": 32, "lr": 2e-3, "channels": 16}
    monkeypatch.setattr("frugalvit.recipes.digits.resnet.__kwdefaults__", quick)
    out = tmp_path / "taught"
    words = ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", str(out), "--quiet", *SIZES]
    said = called(*words)
    assert "val: teacher" in said and "student, distill" in said and "student, both" in said
    assert (out / "teacher" / "model.safetensors").exists() and (out / "student" / "model.safetensors").exists()
    again = json.loads(called("--teacher", str(out / "teacher"), "--student", "vit.digits", "--way", "hard",
                              "--out", str(tmp_path / "hard"), "--quiet", "--json", *SIZES))  # fmt: skip
    assert "val_top1_distill" not in again["student"] and "teacher" not in again
    found = json.loads(CliRunner().invoke(app, ["bench", str(out / "student"), "--steps", "1", "--json"]).stdout)
    assert [row["what"] for row in found["rows"]] == ["synthetic", "with data", "inference"]
    assert any("The teacher answers in every step" in note for note in found["notes"])


def test_words_for_the_teachers_recipe_and_the_data_set_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher is a recipe of one's own; the second call is one of a saved recipe."""
    (tmp_path / "mine.py").write_text(
        "import frugalvit\n"
        "from frugalvit.training.recipe import Recipe\n\n\n"
        "def small(*, channels: int = 8) -> Recipe:\n"
        "    return frugalvit.recipe('digits.resnet', f'channels={channels}', 'epochs=1', 'batch=64')\n"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    np.save(tmp_path / "pictures" / "train_images.npy", np.random.default_rng(0).integers(0, 256, (300, 8, 8), dtype=np.uint8))
    np.save(tmp_path / "pictures" / "train_labels.npy", np.arange(300) % 3)
    few = ["dim=16", "depth=1", "duration=Steps(3)", "schedule.warmup=Steps(1)", "--least", "0", "--quiet", "--device", "cpu"]
    few += ["data.dataset=ArrayFolder(holdout=0.3)", "--data", "pictures"]
    own = ["teacher.channels=4", "teacher.schedule.warmup=Steps(5)"]
    called("--teacher", "mine:small", "--student", "vit.digits", "--out", "taught", *few, *own)
    read = {who: json.loads((tmp_path / "taught" / who / "recipe.json").read_text()) for who in ("teacher", "student")}
    assert {who: one["data"]["dataset"]["holdout"] for who, one in read.items()} == {"teacher": 0.3, "student": 0.3}
    assert read["teacher"]["model"]["stem"]["channels"] == 4 and read["teacher"]["schedule"]["warmup"]["count"] == 5
    assert read["student"]["schedule"]["warmup"]["count"] == 1
    (tmp_path / "saved.json").write_text(json.dumps(read["teacher"]))
    called("--teacher", "saved.json", "--student", "vit.digits", "--out", "again", *few, "teacher.duration=Steps(2)")
    assert json.loads((tmp_path / "again" / "teacher" / "summary.json").read_text())["step"] == 2
    other = ["--teacher", "taught/teacher", "--student", "vit.digits", "--out", "never", *few]
    with pytest.raises(SpecError, match=r"teacher\.channels=4: taught/teacher is no recipe: it is trained already"):
        called(*other, "teacher.channels=4")
    with pytest.raises(SpecError, match=r"--teacher\.digits\.resnet: there is no parameter 'chanels'.*channels"):
        called("--teacher", "digits.resnet", *other[2:], "teacher.chanels=4")
    assert not (tmp_path / "never").exists()


def test_a_student_may_learn_logits_alone(tmp_path: Path) -> None:
    """Of an exported file too, which a recipe with a teacher of its own takes by its name."""
    few = ["duration=Steps(3)", "schedule.warmup=Steps(1)", "--quiet", "--device", "cpu"]
    run = CliRunner()
    run.invoke(app, ["train", "digits.resnet", "--out", str(tmp_path / "res"), *few], catch_exceptions=False)
    file = str(tmp_path / "res.onnx")
    run.invoke(app, ["export", str(tmp_path / "res"), "--origin", "onnx", "--out", file], catch_exceptions=False)
    student = ["--student", "binaryvit.digits", "dim=8", *few, "--least", "0"]
    for name, teacher, words in (("a", str(tmp_path / "res"), []), ("b", file, [f"teacher={file}"])):
        out = tmp_path / name
        called("--teacher", teacher, *student, *words, "--way", "logits", "--out", str(out))
        made = json.loads((out / "student" / "recipe.json").read_text())
        assert [one["how"]["part"] for one in made["objective"]["terms"]] == ["LogitCrossEntropy"]
    losses = [column(tmp_path / name / "student", "loss") for name in "ab"]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    with pytest.raises(SpecError, match=r"no class token.*hard, soft or logits \(--way hard\)"):
        called("--teacher", str(tmp_path / "res"), *student, "--out", str(tmp_path / "c"))


def test_several_teachers_answer_together(tmp_path: Path) -> None:
    few = ["dim=16", "depth=1", "duration=Steps(3)", "schedule.warmup=Steps(1)", "--quiet"]
    runs = [str(tmp_path / name) for name in "ab"]
    for seed, out in enumerate(runs):
        CliRunner().invoke(app, ["train", "vit.digits", f"seed={seed}", "--out", out, *few], catch_exceptions=False)
    both = ["--teacher", runs[0], "--teacher", runs[1]]
    words = ["--student", "vit.digits", "--out", str(tmp_path / "taught"), "--least", "0", *few]
    called(*both, *words, "teaching.teacher.rule=mean_probabilities")
    teacher = json.loads((tmp_path / "taught" / "student" / "recipe.json").read_text())["teaching"]["teacher"]
    assert [one["path"] for one in teacher["members"]] == runs and teacher["rule"] == "mean_probabilities"
    with pytest.raises(SpecError, match=r"--teacher digits\.resnet: a recipe is not trained for several teachers"):
        called(*both, "--teacher", "digits.resnet", *words)


@pytest.mark.parametrize(
    "twice", [["--seeds", "0", "--seeds", "1"], ["--out", "a", "--out=b"], ["--way", "hard", "--way", "soft"]]
)
def test_an_option_that_takes_one_value_is_refused_twice(twice: list[str]) -> None:
    with pytest.raises(SpecError, match=rf"{twice[0]}: is given more than once\. Say which one is meant"):
        called("--teacher", "digits.resnet", "--student", "vit.digits", *twice, "--quiet", "--quiet")


def test_several_students_of_one_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.recipes.digits.resnet.__kwdefaults__", dict(epochs=1, batch=64, lr=2e-3, channels=16))
    few = ["dim=16", "depth=1", "duration=Steps(3)", "schedule.warmup=Steps(1)", "--least", "0", "--quiet", "--device", "cpu"]
    out = tmp_path / "taught"
    words = ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", str(out), *few]
    said = called(*words, "--seeds", "0,2")
    assert "val: teacher" in said
    runs = [out / "student" / f"seed-{seed}" for seed in (0, 2)]
    found = [json.loads((run / "summary.json").read_text())["val_loss"] for run in runs]
    assert f"val_loss                {sum(found) / 2:.4f} ±" in said and "(n = 2)" in said
    assert found[0] != found[1]
    recipes = [json.loads((run / "recipe.json").read_text()) for run in runs]
    assert [one["seed"] for one in recipes] == [0, 2]
    assert {one["teaching"]["teacher"]["path"] for one in recipes} == {str(out / "teacher")}
    assert recipes[0]["teacher_fingerprint"] == recipes[1]["teacher_fingerprint"]
    more = json.loads(called(*words, "--seeds", "0,2,3", "--resume", "--json"))
    assert more["seeds"] == [0, 2, 3] and more["val_loss"]["values"][:2] == found
    longer = [word.replace("Steps(3)", "Steps(4)") for word in words]
    with pytest.raises(DataError, match=r"was 3, now 4\..*or extend each by itself: frugalvit train") as error:
        called(*longer, "--seeds", "0", "--resume")
    alone = shlex.split(str(error.value).partition("by itself: frugalvit ")[2].replace("...", "Steps(4)"))
    assert CliRunner().invoke(app, [*alone, "--quiet", "--device", "cpu"], catch_exceptions=False).exit_code == 0
    assert json.loads((runs[0] / "summary.json").read_text())["step"] == 4
    called(*longer, "--seeds", "0", "--resume")


def test_a_student_is_extended_as_any_run_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.recipes.digits.resnet.__kwdefaults__", dict(epochs=1, batch=64, lr=2e-3, channels=16))
    few = ["dim=16", "depth=1", "schedule.warmup=Steps(1)", "--least", "0", "--device", "cpu"]
    out = tmp_path / "taught"
    words = ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", str(out), *few]
    called(*words, "duration=Steps(3)")
    teacher = (out / "teacher" / "model.safetensors").read_bytes()
    with pytest.raises(DataError, match=r"duration\.count was 3, now 5\. Resume with the length it has, say --extend"):
        called(*words, "duration=Steps(5)", "--resume")
    said = called(*words, "duration=Steps(5)", "--resume", "--extend")
    assert "extended from 3 to 5 steps: the learning rate at step 3 goes from" in said
    assert json.loads((out / "student" / "summary.json").read_text())["step"] == 5
    assert (out / "teacher" / "model.safetensors").read_bytes() == teacher


@pytest.mark.parametrize("flags", [["--resume"], ["--resume", "--extend"]])
def test_a_teacher_keeps_its_length_and_says_which(flags: list[str], tmp_path: Path) -> None:
    few = ["dim=16", "depth=1", "schedule.warmup=Steps(1)", "--least", "0", "--quiet", "--device", "cpu"]
    words = ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", str(tmp_path / "taught"), *few]
    called(*words, "duration=Steps(2)", "teacher.duration=Steps(3)")
    for other in ([], ["teacher.epochs=1"]):  # forgotten, and asked for
        with pytest.raises(DataError) as error:
            called(*words, "duration=Steps(2)", *other, *flags)
        assert str(error.value).endswith(
            "A teacher keeps its length; --extend changes the student's alone. Say 'teacher.duration=Steps(3)', or use another "
            "--out."
        )
    called(*words, "duration=Steps(2)", "teacher.duration=Steps(3)", *flags)


def test_a_weak_teacher_that_was_trained_here_is_told_to_learn_more(tmp_path: Path) -> None:
    """One that is given may have its classes in another order; this one learned from the very data."""
    few = ["--student", "vit.digits", "dim=16", "depth=1", "duration=Steps(2)", "schedule.warmup=Steps(1)", "--quiet"]
    few += ["--device", "cpu"]
    own = ["--teacher", "digits.resnet", "teacher.duration=Steps(1)", *few, "--out", str(tmp_path / "own")]
    for least in ([], ["--least", "99"]):
        with pytest.raises(SpecError, match=r"least: the teacher, .*teacher, gets \d.* of 500") as error:
            called(*own, *least, "--resume")
        assert "too little: train it longer, teacher.epochs=..., with another --out" in str(error.value)
        assert "order" not in str(error.value) and "better teacher" not in str(error.value)
    foreign = ["--teacher", str(tmp_path / "own" / "teacher"), *few, "--out", str(tmp_path / "foreign")]
    with pytest.raises(SpecError, match=r"chance is 10\.0 %\. Are its classes in the order"):
        called(*foreign)
    allowed = re.search(r"or (--resume --least \d+) lets it teach as it is\.$", str(error.value))
    assert allowed is not None
    called(*own, *allowed[1].split())


@pytest.mark.parametrize(
    ("teacher", "learned", "words"),
    [
        ("convnet.cifar10", False, "trained it, and it has learned too little: train it longer, teacher.passes=..., with"),
        ("saved.json", False, "trained it, and it has learned too little: train it longer, teacher.duration=..., with"),
        ("convnet.cifar10", True, "trained it, but not on pictures framed for the student: let both take"),
    ],
)
def test_what_a_weak_teacher_is_told_is_in_the_words_of_its_recipe(
    teacher: str, learned: bool, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved.json").write_text(json.dumps(encode(recipe("convnet.cifar10"))))
    tutor, folder = recipe(teacher), Path("taught/teacher")
    student = taught(recipe("deit.tiny_cifar10", "data.dataset=Cifar10(holdout=0.2)"), Teaching(RunTeacher(str(folder))))

    def told(tutor: Recipe | None, student: Recipe) -> str:
        with pytest.raises(WeakTeacher) as error, of_our_training(teacher, tutor, student, folder):
            raise WeakTeacher("It gets 23.2 %.", "Are its classes in order?", top1=23.2, learned=learned)
        return str(error.value)

    assert words in told(tutor, student)
    assert told(tutor, student).endswith("; or --resume --least 23 lets it teach as it is.")
    kept = "least: It gets 23.2 %. Are its classes in order?"
    assert told(None, student) == told(recipe("digits.resnet"), student) == kept
    assert told(tutor, override(student, "teaching.teacher.size=64")) == kept


def test_settings_of_terms_are_those_of_the_recipe_with_its_teacher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.recipes.digits.resnet.__kwdefaults__", dict(epochs=1, batch=64, lr=2e-3, channels=16))
    few = ["dim=16", "depth=1", "duration=Steps(1)", "schedule.warmup=Steps(1)", "--least", "0", "--quiet", "--device", "cpu"]
    terms = [
        "objective.terms[1].how.reduction=released",
        "objective.terms[0].loss.smoothing=0.2",
        "objective.terms[0].weight=0.7",
    ]
    out, words = tmp_path / "taught", ["--student", "vit.digits", *few]
    called("--teacher", "digits.resnet", *words, "--out", str(out), "--way", "soft", *terms)
    labels, learned = json.loads((out / "student" / "recipe.json").read_text())["objective"]["terms"]
    assert learned["how"]["reduction"] == "released"
    assert labels["loss"]["smoothing"] == 0.2 and labels["weight"] == 0.7
    whole = ["objective.terms[0]=Supervised(loss=CrossEntropy(0.3))", "objective.terms[1]=Distilled(class,weight=0.4)"]
    called("--teacher", str(out / "teacher"), *words, "--out", str(tmp_path / "whole"), "--way", "hard", *whole)
    labels, learned = json.loads((tmp_path / "whole" / "student" / "recipe.json").read_text())["objective"]["terms"]
    assert (labels["loss"]["smoothing"], labels["weight"], learned["weight"]) == (0.3, 1.0, 0.4)  # as they are written


def terms_of(student: Path) -> list[dict[str, Any]]:
    return json.loads((student / "recipe.json").read_text())["objective"]["terms"]


def test_the_objective_that_is_given_is_the_one_that_is_minimized(tmp_path: Path) -> None:
    teach, sizes = str(tmp_path / "res"), ["dim=16", "depth=2"]
    few = ["duration=Steps(1)", "schedule.warmup=Steps(1)", "--device", "cpu"]
    CliRunner().invoke(app, ["train", "digits.resnet", "--out", teach, *few], catch_exceptions=False)
    words = ["--teacher", teach, *few, "--least", "0"]
    labels, learned, matched = (
        {"part": "Supervised", "head": "class", "weight": 0.2},
        {"part": "Distilled", "head": "distill", "how": {"part": "SoftKl", "temperature": 2.0, "reduction": "released"}},
        {"part": "MatchedTokens", "student": "tokens[0]", "teacher": "maps[2]", "weight": 0.1},
    )
    whole, fresh = f"objective.terms={json.dumps([labels, learned, matched])}", ["--student", "vit.digits", *sizes]
    called(*words, *fresh, whole, "--out", str(tmp_path / "whole"))
    first = terms_of(tmp_path / "whole" / "student")
    assert [one["part"] for one in first] == ["Supervised", "Distilled", "MatchedTokens"]
    assert (first[0]["weight"], first[1]["how"]["temperature"], first[1]["how"]["reduction"]) == (0.2, 2.0, "released")
    called(*words, *fresh, f"objective.terms[+]={json.dumps(matched)}", "--way", "soft", "--out", str(tmp_path / "added"))
    added = terms_of(tmp_path / "added" / "student")
    assert [one["part"] for one in added] == ["Supervised", "Distilled", "MatchedTokens"]
    assert added[:2] == encode(taught(recipe("vit.digits"), way="soft"))["objective"]["terms"]
    student = ["--student", str(tmp_path / "whole" / "student")]
    called(*words, *student, "--out", str(tmp_path / "kept"))
    assert terms_of(tmp_path / "kept" / "student") == first
    said = called(*words, *student, "--way", "hard", "--out", str(tmp_path / "hard"))
    assert f"--way hard replaces the terms of the student's recipe: {', '.join(recipe(student[1]).objective.names)}" in said
    assert [one["part"] for one in terms_of(tmp_path / "hard" / "student")] == ["Supervised", "Distilled"]


def test_a_folder_of_several_students_says_how_it_goes_on(tmp_path: Path) -> None:
    run = tmp_path / "taught" / "student" / "seed-1"
    run.mkdir(parents=True)
    (run / "recipe.json").write_text("{}")
    words = ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", str(tmp_path / "taught"), "epochs=2", "--resume"]
    words += ["--least", "0"]
    again = "frugalvit distill epochs=2 --teacher digits.resnet --student vit.digits --least 0.0 --out"
    with pytest.raises(DataError) as error:
        called(*words)
    assert str(error.value) == (
        f"{run.parent}: was made by --seeds: it holds a run folder a seed (1), and no single run to --resume. Use another "
        f"--out, or go on with all: {again} {tmp_path / 'taught'} --resume --seeds 1"
    )
    with pytest.raises(
        DataError, match=r"go on with all, without --extend and --log, which go with one seed: .* --resume --seeds 1$"
    ):
        called(*words, "--extend")
    assert not (tmp_path / "taught" / "teacher").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--student", "vit.digits", "--out", "x"], "--teacher: is needed"),
        (["--teacher", "digits.resnet", "--out", "x"], "--student: is needed"),
        (
            ["--teacher", "digits.resnt", "--student", "vit.digits", "--out", "x"],
            "'digits.resnt'. Did you mean 'digits.resnet'",
        ),
        (["--teacher", "digits.resnet", "--student", "digits.resnet", "--out", "x"], "has no tokens"),
        (
            ["--teacher", "digits.resnet", "--student", "vit.digits", "--way", "kind", "--out", "x"],
            "Use token, soft_token, hard",
        ),
        (["--teacher", "digits.resnet", "--student", "vit.digits", "--out", "x", "--seeds", "0,a"], "each once, as in 0,1,2"),
        (
            ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", "x", "--seeds", "0,1", "seed=3"],
            "exclude each other",
        ),
        (["--teacher", "digits.resnet", "--student", "vit.digits", "--out", "x", "--extend"], "Say --resume too"),
        (
            ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", "x", "--seeds", "0,1", "--resume", "--extend"],
            "go with one seed",
        ),
        (
            ["--teacher", "digits.resnet", "--student", "vit.digits", "--out", "x", "teaching.teacher.size=no"],
            "size: 'no' does not fit",
        ),
        ([*KNOWN, "precision=fp16", "--device", "cpu"], "fp16"),
        ([*KNOWN, "model.classes=7"], "7"),
        ([*KNOWN, "path=decoded"], "must be cropped first"),
        ([*KNOWN, "teaching.file=answers.safetensors"], "look the same every time"),
        ([*KNOWN, "--init", "nothere"], "no model of that name|no released weights"),
        (["--teacher", "none.json", *KNOWN[2:]], "--teacher none.json: there is no such file"),
        ([*KNOWN, "objective.terms[1].head=dist"], r"terms\[1\]\.head: the model has no head 'dist'\. Did you mean 'distill'"),
        (
            [*KNOWN, 'teaching={"part": "Teaching", "least": 99.9}'],
            r"teaching: is what --teacher says.*teaching\.teacher\.size",
        ),
        ([*KNOWN, 'teaching.teacher={"part": "RunTeacher", "path": "b"}'], r"teaching\.teacher: is what --teacher says"),
        ([*KNOWN, "--least", "7", "teaching.least=5"], r"teaching\.least: is what --least says"),
        (["--teacher", "hf-hub:ada/vit", *KNOWN[2:]], "Import it first: frugalvit import MODEL --init hf-hub:ada/vit"),
    ],
)
def test_refusals_come_before_any_training(
    words: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FrugalError, match=problem):
        CliRunner().invoke(app, ["distill", *words], catch_exceptions=False)
    assert not (tmp_path / "x").exists()


def test_a_file_of_others_is_told_what_it_needs_and_teaches_with_it(tmp_path: Path) -> None:
    from torch import nn

    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).eval()
    file = tmp_path / "mine.onnx"
    torch.onnx.export(module, (torch.zeros(1, 1, 8, 8),), file, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), verbose=False)
    words = ["--teacher", str(file), "--student", "vit.digits", "--least", "0", "--quiet", "--device", "cpu", *SIZES]
    with pytest.raises(SpecError, match=r"Say mean and std, as in teaching\.teacher\.mean=0\.5"):
        called(*words, "--out", str(tmp_path / "refused"))
    called(*words, "teaching.teacher.mean=0.3", "teaching.teacher.std=0.4", "--out", str(tmp_path / "taught"))
    assert recipe(str(tmp_path / "taught" / "student")).teaching.teacher.mean == (0.3,)


def test_what_flows_between_blocks_may_be_rounded_beside_a_teacher(tmp_path: Path) -> None:
    out = tmp_path / "taught"
    called(
        *KNOWN[:4], "--out", str(out), *SIZES, "teacher.epochs=1", "--least", "0", "precision=bf16_stream", "--device", "cpu"
    )
    assert (out / "student" / "summary.json").exists()


def test_a_head_that_nobody_teaches_is_left_aside(tmp_path: Path) -> None:
    sizes = ["dim=12", "depth=2", "batch=64", "epochs=2", "teacher.epochs=2", "--least", "0", "--device", "cpu"]
    words = ["--teacher", "digits.resnet", "--student", "deit.digits", "--way", "hard", "--out", str(tmp_path / "taught")]
    said = called(*words, *sizes)
    assert "no term of the objective teaches the head distill; validation and the saved model answer by class" in said
    run = tmp_path / "taught" / "student"
    assert not {name for row in RunFolder(run).metrics() for name in row if name.startswith("val_top1_")}
    done = CliRunner().invoke(app, ["evaluate", str(run), "--device", "cpu", "--json"], catch_exceptions=False)
    found, summary = json.loads(done.stdout), RunFolder(run).results()
    assert found["head"] == "class" and found["top1"] == found["top1_class"] == summary["val_top1"]


def test_a_folder_with_a_student_gets_no_other_teacher(tmp_path: Path) -> None:
    run = tmp_path / "x" / "student"
    run.mkdir(parents=True)
    (run / "recipe.json").write_text("{}")
    (run / "summary.json").write_text("{}")
    with pytest.raises(DataError, match=r"student: holds a run already\. Use --resume"):
        called("--teacher", "digits.resnet", "--student", "vit.digits", "--out", str(tmp_path / "x"), "--quiet")
    assert not (tmp_path / "x" / "teacher").exists()
