"""The scripts that measure distillation on CIFAR-10, at toy size on the CPU: what they write, and which pictures they read."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from benchmarks import distill_table, headline, search_teacher

import frugalvit
from frugalvit.errors import DataError, SpecError
from frugalvit.report.files import read_json
from frugalvit.report.statistics import summarize

TEACHER = ("width=4", "stages=2", "depth=1", "batch=16", "lr=1.0", "augment=none", "cutout=0.0", "average=none")
FLAT = ("early=0", "late=0", "depth=1")
STUDENT = (*FLAT, "dim=8", "heads=2", "batch=32", "add=none")
DEEP = (*FLAT, "dim=16", "heads=2", "batch=16", "add=none", "mixed=0.0", "average=none", "passes=2")


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes that differ in their color; 60 pictures to train on, 30 to test."""
    root, draw = tmp_path_factory.mktemp("cifar"), np.random.default_rng(0)
    colors_KC = draw.integers(0, 256, (10, 3))
    for split, count in (("train", 60), ("test", 30)):
        labels_N = np.arange(count) % 10
        noise_NHWC = draw.integers(-20, 21, (count, 32, 32, 3))
        np.save(root / f"{split}_images.npy", (colors_KC[labels_N, None, None] + noise_NHWC).clip(0, 255).astype(np.uint8))
        np.save(root / f"{split}_labels.npy", labels_N)
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the headline sets for the whole process is put back."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "FRUGALVIT_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))


def called(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", *map(str, words), "--device", "cpu", "--commit", "abc1234"])
    script.main()


def given(flag: str, words: tuple[str, ...]) -> list[str]:
    return [one for word in words for one in (flag, word)]


def rows(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["rows"]


def test_the_table_is_measured_piece_by_piece(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, runs = tmp_path / "results", tmp_path / "runs"
    words = ["--data", cifar, "--student", "small.best_cifar10", *given("--override", STUDENT), "--passes", "1", "--seeds", "0"]
    words += ["--out", out, "--runs", runs, *given("--convnet-override", (*TEACHER, "passes=6"))]
    words += given("--transformer-override", DEEP)
    called(distill_table, monkeypatch, *words, "--only", "none", "token")
    assert sorted(one.name for one in runs.iterdir() if one.is_dir()) == ["none", "teacher-convnet", "token"]
    before = {one["name"]: one for one in read_json(out / "distill_table.json")["entries"]}
    assert list(before) == ["teacher-convnet", "none", "token"]
    called(distill_table, monkeypatch, *words, "--only", "other", "matrix")
    after = {one["name"]: one for one in read_json(out / "distill_table.json")["entries"]}
    assert list(after) == [*before, "teacher-transformer", "transformer", "disagreement"]
    assert all(after[name] == one for name, one in before.items())
    page = (out / "distill_table.md").read_text()
    assert page in capsys.readouterr().out
    assert f"| token, both heads | {after['token']['results']['test_top1']:.2f} | 74.5 |" in page
    assert f"| transformer | {after['transformer']['results']['test_top1']:.2f} |" in page
    assert "hard above soft: not measured" in page and "convnet above transformer: undecided" in page
    assert {one.name for one in (out / "distill_table_logs").iterdir()} >= {
        "token-seed-0.jsonl",
        "teacher-convnet-seed-0.jsonl",
    }
    taught = read_json(runs / "transformer" / "seed-0" / "recipe.json")
    assert taught["teaching"]["teacher"]["path"] == str(runs / "teacher-transformer" / "seed-0")
    assert "val" not in taught["data_fingerprint"] and taught["data"]["dataset"]["holdout"] == 0
    assert f"teachers `convnet.cifar10 {' '.join(TEACHER)} passes=6` and `small.best_cifar10 {' '.join(DEEP)}`" in page
    assert "Nothing was chosen on the pictures that are measured." in page
    shutil.rmtree(runs)  # only the results came back
    called(distill_table, monkeypatch, *words, "--only", "none", "token", "other", "matrix")
    assert (out / "distill_table.md").read_text() == page
    assert not [one for one in runs.iterdir() if one.is_dir()]


def test_a_second_training_of_the_teacher_teaches_what_is_missing_when_the_first_is_gone(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, runs = tmp_path / "results", tmp_path / "runs"
    words = ["--data", cifar, "--student", "small.best_cifar10", *given("--override", STUDENT), "--passes", "1", "--seeds", "0"]
    words += ["--out", out, "--runs", runs, *given("--convnet-override", (*TEACHER, "passes=6"))]
    called(distill_table, monkeypatch, *words, "--only", "hard")
    shutil.rmtree(runs)
    called(distill_table, monkeypatch, *words, "--only", "soft", "--convnet-seed", "1")
    assert sorted(one.name for one in runs.iterdir() if one.is_dir()) == ["soft", "teacher-convnet"]
    assert [one.name for one in (runs / "teacher-convnet").iterdir() if one.is_dir()] == ["seed-1"]
    entries = {(one["name"], one["seed"]): one["results"] for one in read_json(out / "distill_table.json")["entries"]}
    assert list(entries) == [("teacher-convnet", 0), ("hard", 0), ("teacher-convnet", 1), ("soft", 0)]
    page = (out / "distill_table.md").read_text()
    assert f"| hard | {entries['hard', 0]['test_top1']:.2f} |" in page
    assert f"| soft | {entries['soft', 0]['test_top1']:.2f} |" in page
    who = {seed: f"{runs / 'teacher-convnet'}/seed-{seed} taught" for seed in (0, 1)}
    own = {seed: f"(its own top-1: {entries['teacher-convnet', seed]['test_top1']:.2f})" for seed in (0, 1)}
    assert f"Not all had the same teacher: {who[1]} soft {own[1]}; {who[0]} hard, token {own[0]}." in page
    shutil.rmtree(runs)
    called(distill_table, monkeypatch, *words, "--only", "hard", "soft")  # with seed 0, who taught but one of them
    assert sorted(one.name for one in runs.iterdir() if one.is_dir()) == ["soft", "teacher-convnet"]
    assert [one.name for one in (runs / "teacher-convnet").iterdir() if one.is_dir()] == ["seed-0"]


def test_another_teacher_than_the_one_that_is_there_is_refused(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, small = tmp_path / "runs", given("--override", STUDENT)
    words = ["--data", cifar, "--out", tmp_path / "results", "--runs", runs, "--passes", "1", "--seeds", "0"]
    words += ["--student", "small.best_cifar10", *small]
    first = [*words, *given("--convnet-override", (*TEACHER, "passes=6"))]
    other = [*words, *given("--convnet-override", (*TEACHER, "passes=5"))]
    called(distill_table, monkeypatch, *first, "--only", "hard")
    called(distill_table, monkeypatch, *first, "--only", "hard")  # the one that is there
    with pytest.raises(DataError, match=r"holds a run of another recipe: duration\.count is 6, asked for is 5\. Ask for"):
        called(distill_table, monkeypatch, *other, "--only", "hard")
    (runs / "teacher-convnet").rename(tmp_path / "away")
    with pytest.raises(DataError, match=r"distill_table\.json: its students learned from a run of another recipe"):
        called(distill_table, monkeypatch, *other, "--only", "none")
    with pytest.raises(
        DataError, match=r"hard/seed-0: holds a run with another teacher, which has changed since: teacher_fingerprint was"
    ):
        called(distill_table, monkeypatch, *other, "--only", "hard")
    with pytest.raises(SystemExit, match=r"--convnet-override is for a teacher that is trained here"):
        called(distill_table, monkeypatch, *first, "--only", "hard", "--convnet", tmp_path / "away" / "seed-0")
    called(distill_table, monkeypatch, *words, "--only", "hard", "--convnet", tmp_path / "away" / "seed-0")
    page = (tmp_path / "results" / "distill_table.md").read_text()
    (hard,) = [one for one in read_json(tmp_path / "results" / "distill_table.json")["entries"] if one["name"] == "hard"]
    assert f"| hard | {hard['results']['test_top1']:.2f} |" in page  # the same weights elsewhere
    assert f"teachers the run `{tmp_path / 'away' / 'seed-0'}` and" in page


def test_held_out_pictures_are_measured_without_the_test_pictures(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--data", cifar, "--out", tmp_path, "--runs", tmp_path / "runs", "--passes", "1", "--seeds", "0", "--val"]
    words += ["--student", "small.best_cifar10", *given("--override", STUDENT)]
    called(distill_table, monkeypatch, *words, *given("--convnet-override", (*TEACHER, "passes=6")), "--only", "hard")
    entries = read_json(tmp_path / "distill_table_val.json")["entries"]
    assert [one["name"] for one in entries] == ["teacher-convnet", "hard"]
    assert not [name for one in entries for name in one["results"] if name.startswith("test")]
    for name in ("teacher-convnet", "hard"):
        assert list(read_json(tmp_path / "runs" / name / "seed-0" / "recipe.json")["data_fingerprint"]) == ["train", "val"]
    page = (tmp_path / "distill_table_val.md").read_text()
    assert "Nothing was chosen" not in page and "the figures may flatter them" in page


def test_the_headline_reads_the_test_pictures_once_and_only_without_val(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", cifar, "--out", tmp_path, *given("--override", STUDENT), "--passes", "1", "--teacher-passes", "6"]
    words += ["--way", "token", *given("--teacher-override", TEACHER)]
    called(headline, monkeypatch, *words, "--val", "--seconds", "1e6")
    words += ["--override", "objective.terms[1].weight=0.3"]
    called(headline, monkeypatch, *words, "--seconds", "1", "--together", "2", "--runs", tmp_path / "runs")
    terms = frugalvit.recipe(str(tmp_path / "runs" / "student")).objective.terms
    assert [term.weight for term in terms] == [0.5, 0.3]
    assert frugalvit.load(tmp_path / "runs" / "student").spec.model.heads == ("class", "distill")
    log = [json.loads(line) for line in next((tmp_path / "headline_logs").glob("test-*-seed-0.jsonl")).read_text().splitlines()]
    assert {one["run"] for one in log} == {"teacher", "student"} and "distilled_distill" in log[-1]
    val, test = rows(tmp_path / "headline.json")
    assert val["pictures"] == {"teacher": {"train": 50, "val": 10}, "student": {"train": 50, "val": 10}}
    assert test["pictures"] == {"teacher": {"train": 60}, "student": {"train": 60, "test": 30}}
    assert (val["split"], val["within"], test["split"], test["within"]) == ("val", True, "test", False)
    assert val["teacher_top1"] > 10 and test["teacher_top1"] > 10
    assert any("pictures" in note for note in test["notes"]["student"])
    assert set(test["results"]) == {"test_top1", "test_top1_class", "test_top1_distill"}
    assert sum(test["seconds"].values()) == pytest.approx(test["total"], abs=0.6)
    assert min(test["seconds"].values()) >= 0 and test["images_per_second"]["student"] > 0
    plain = frugalvit.recipe("small.best_cifar10", *STUDENT, "model.classes=10").model
    assert test["parameters"] == frugalvit.cost(plain).parameters + 2 * 8 + 90  # a token, its position and its head
    page = (tmp_path / "headline.md").read_text()
    assert "of 1: too long | 2 |" in page and page in capsys.readouterr().out


def test_ways_may_be_chosen_by_one_teacher_that_was_trained_before(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", cifar, "--out", tmp_path, *given("--override", STUDENT), "--passes", "1", "--teacher-passes", "3"]
    words += ["--way", "hard", *given("--teacher-override", TEACHER), "--seconds", "1e6"]
    called(headline, monkeypatch, *words, "--val", "--runs", tmp_path / "runs")
    again = [*words, "--teacher-run", tmp_path / "runs" / "teacher"]
    with pytest.raises(SystemExit):
        called(headline, monkeypatch, *again)
    assert "--teacher-run is for choosing" in capsys.readouterr().err
    for word, name in {"lr=0.5": "optimizer", "clip=0.5": "clip", "precision=fp32": "precision", "batch=15": "batch"}.items():
        with pytest.raises(SpecError, match=f"has another {name} than"):
            called(headline, monkeypatch, *again, "--val", "--teacher-override", word)
    called(headline, monkeypatch, *again, "--val")
    here, before = rows(tmp_path / "headline.json")
    assert (here["teacher_trained"], before["teacher_trained"]) == ("here", "before")
    assert before["teacher_run"]["seed"] == 0 and before["teacher_run"]["device"]
    logs = [one.read_text().splitlines() for one in (tmp_path / "headline_logs").iterdir()]
    assert len(logs) == 2 and all("distilled_class" in json.loads(log[-1]) for log in logs)
    assert before["teacher_top1"] == here["teacher_top1"] and set(before["pictures"]) == {"student"}
    assert not [name for name in before["seconds"] if name.startswith("teacher")]
    assert "3 passes, trained before, hard" in (tmp_path / "headline.md").read_text()


def test_a_headline_without_a_teacher_is_averaged_over_seeds(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--data", cifar, "--out", tmp_path, *given("--override", STUDENT), "--passes", "1", "--way", "none"]
    for seed in ("0", "1"):
        called(headline, monkeypatch, *words, "--seconds", "1e6", "--seed", seed)
    first, second = rows(tmp_path / "headline.json")
    assert first["teacher"] == "none" and "teacher_top1" not in first and first["within"]
    assert first["pictures"] == {"student": {"train": 60, "test": 30}}
    assert set(first["seconds"]) == {"before", "student, steps", "student, compiling", "student, rest", "between"}
    both = summarize([one["results"]["test_top1"] for one in (first, second)])
    page = (tmp_path / "headline.md").read_text()
    assert f"| none | {both.text(2)} | 0, 1 |" in page and "(n = 2)" in page
    assert {one.name.partition("-seed-")[2] for one in (tmp_path / "headline_logs").iterdir()} == {"0.jsonl", "1.jsonl"}


def test_a_headline_with_many_words_is_kept_and_logged_by_a_name_that_a_disk_takes(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = ['{"part": "PadCrop"}', *['{"part": "Flip", "probability": 0.5}'] * 12]
    long = [f"data.augment.steps=[{', '.join(steps)}]"]
    words = ["--data", cifar, "--out", tmp_path, *given("--override", [*STUDENT, *long]), "--passes", "1", "--way", "none"]
    called(headline, monkeypatch, *words, "--seconds", "1e6", "--seed", "3")
    assert len(rows(tmp_path / "headline.json")) == 1
    (log,) = (tmp_path / "headline_logs").iterdir()
    assert len(log.name) < 255 and log.name.endswith("-seed-3.jsonl") and log.stat().st_size


def test_a_headline_keeps_its_runs_apart_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "teacher").mkdir()
    with pytest.raises(SystemExit):
        called(headline, monkeypatch, "--data", tmp_path, "--out", tmp_path, "--runs", tmp_path / "mine")
    assert "there is something in it" in capsys.readouterr().err


def test_a_student_that_is_too_large_is_refused_before_its_teacher_trains(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"the student has \d\d,\d{3},\d{3} parameters, more than 10,000,000"):
        called(headline, monkeypatch, "--data", cifar, "--out", tmp_path, "--override", "dim=384")
    assert not (tmp_path / "headline.json").exists()


def test_a_headline_on_held_out_pictures_needs_some(cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit, match=r"small\.cifar10 holds out no training pictures"):
        called(
            headline, monkeypatch, "--data", cifar, "--out", tmp_path, "--val", "--way", "none", "--student", "small.cifar10"
        )
    assert not (tmp_path / "headline.json").exists()


def test_candidates_are_measured_on_held_out_pictures_and_earlier_rows_stay(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--data", cifar, "--passes", "1", "--out", tmp_path)
    candidates = [f"{name}={','.join((*TEACHER, *more))}" for name, more in (("tiny", ()), ("smaller", ("width=2",)))]
    called(search_teacher, monkeypatch, *words, "--candidate", candidates[0])
    called(search_teacher, monkeypatch, *words, "--candidate", candidates[1])
    tiny, smaller = rows(tmp_path / "convnet_search.json")
    assert (tiny["name"], smaller["name"]) == ("tiny", "smaller") and smaller["parameters"] < tiny["parameters"]
    assert not [name for row in (tiny, smaller) for name in row if "test" in name]
    assert (tmp_path / "convnet_search.md").read_text().count("| abc1234 |") == 2


def test_a_candidate_that_fails_does_not_lose_the_others(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--data", cifar, "--passes", "1", "--out", tmp_path, "--candidate", "wild=width=0"]
    with pytest.raises(SystemExit, match=r"wild failed; their messages stand above\. The rows of the others are kept\."):
        called(search_teacher, monkeypatch, *words, "--candidate", f"tiny={','.join(TEACHER)}")
    assert "wild: " in capsys.readouterr().err
    (tiny,) = rows(tmp_path / "convnet_search.json")
    assert tiny["name"] == "tiny" and any("pictures" in note for note in tiny["notes"])


def test_a_given_teacher_that_is_no_finished_run_is_refused(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--data", cifar, "--out", tmp_path, "--runs", tmp_path / "runs", "--convnet", tmp_path / "nothing"]
    with pytest.raises(SystemExit, match=r"no finished run, for it has no summary\.json"):
        called(distill_table, monkeypatch, *words, "--only", "token")
    assert not (tmp_path / "runs" / "teacher-convnet").exists()


@pytest.mark.slow
def test_candidates_in_processes_of_their_own_are_those_of_one(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--data", cifar, "--passes", "1")
    both = [word for name in ("one", "two") for word in ("--candidate", f"{name}={','.join(TEACHER)}")]
    called(search_teacher, monkeypatch, *words, *both, "--out", tmp_path / "alone")
    called(search_teacher, monkeypatch, *words, *both, "--together", "2", "--out", tmp_path / "together")
    alone, together = (rows(tmp_path / way / "convnet_search.json") for way in ("alone", "together"))
    losses = {row["name"]: row["val_loss"] for row in alone}
    assert losses == {row["name"]: row["val_loss"] for row in together} and {row["together"] for row in together} == {2}


def test_a_candidate_that_is_not_there_is_named(
    cifar: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        called(search_teacher, monkeypatch, "nonsense", "--data", cifar)
    assert "there is no candidate 'nonsense'. There are: 'start', 'muon', 'muon, lr" in capsys.readouterr().err


def test_every_candidate_is_a_recipe_that_differs_from_the_first() -> None:
    made = {name: frugalvit.recipe("convnet.cifar10", *words) for name, words in search_teacher.CANDIDATES.items()}
    assert len(set(made.values())) == len(made)
