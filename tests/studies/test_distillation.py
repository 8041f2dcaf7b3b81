"""DeiT's studies at toy size: what is trained, what is trained once only, and where each number comes from."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import frugalvit
from frugalvit.errors import DataError, SpecError, WeightsError
from frugalvit.recipes.find import recipe
from frugalvit.report.files import read_json, write_json
from frugalvit.report.progress import Silent
from frugalvit.studies.disagreement import disagreements
from frugalvit.studies.distillation import BOTH, CLASS, DISTILL, HARD, NONE, SOFT, ablation, epochs, teachers
from frugalvit.studies.study import Study
from frugalvit.studies.trainings import Setup, trained
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import RunTeacher

SMALL = ("data.subset=SeededFraction(0.15)", "schedule.warmup=Steps(2)", "log_every=2")
QUICK = ("batch=16", "lr=0.01", *SMALL)  # to be better than chance


@pytest.fixture(scope="module")
def student() -> Recipe:
    return recipe("vit.digits", "dim=8", "depth=1", "epochs=1", "batch=64", *SMALL)


class Started(Silent):
    """Counts the trainings that begin."""

    def __init__(self) -> None:
        self.count = 0

    def start(self, total: int, done: int) -> None:
        self.count += 1


class Toy:
    """Teachers, and students that share a folder."""

    def __init__(self, folder: Path):
        self.convnet, self.transformer = RunTeacher(str(folder / "convnet")), RunTeacher(str(folder / "transformer"))
        frugalvit.train(recipe("digits.resnet", "epochs=4", "channels=4", *QUICK), out=self.convnet.path)
        frugalvit.train(recipe("digits.vit", "epochs=5", "dim=16", "depth=1", *QUICK), out=self.transformer.path)
        self.watch = Started()
        self.setup = Setup((0, 1), folder / "study", commit="abc1234", display=self.watch)

    def started(self) -> int:
        count, self.watch.count = self.watch.count, 0
        return count


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toy]:
    yield Toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def table(toy: Toy, student: Recipe) -> Study:
    return ablation(student, toy.convnet, toy.setup)


def test_the_ablation_reads_four_trainings_in_six_rows(table: Study, toy: Toy) -> None:
    assert toy.started() == 8  # four trainings, two seeds
    runs = {name: read_json(toy.setup.out / name / "seed-1" / "summary.json") for name in ("none", "soft", "hard", "token")}
    wanted = {NONE: "none", SOFT: "soft", HARD: "hard", BOTH: "token"}
    found = {row: table.values[row, "top-1"][1] for row in table.rows}
    assert {row: runs[name]["val_top1"] for row, name in wanted.items()} == {row: found[row] for row in wanted}
    assert (found[CLASS], found[DISTILL]) == (runs["token"]["val_top1_class"], runs["token"]["val_top1_distill"])
    losses = {name: read_json(toy.setup.out / name / "seed-1" / "recipe.json")["objective"]["terms"] for name in runs}
    assert [len(losses[name]) for name in ("none", "soft", "hard", "token")] == [1, 2, 2, 2]


def test_the_papers_figures_and_orderings_stand_beside(table: Study) -> None:
    row = table.table()[table.rows.index(BOTH)]
    assert (row["DeiT-Ti, ImageNet"], row["DeiT-S, ImageNet"], row["DeiT-B, ImageNet"]) == ("74.5", "81.2", "83.4")
    said = {one.claim.text: one for one in table.verdicts()}
    assert said["hard above soft"].claim.paper == "+2.1, +1.1, +1.2 (Ti, S, B)"
    assert said["soft above no distillation"].claim.paper.startswith("+0.0")
    difference = said["token, both heads above hard"].difference
    both, hard = (table.values[name, "top-1"] for name in (BOTH, HARD))
    assert difference.mean == pytest.approx(((both[0] - hard[0]) + (both[1] - hard[1])) / 2)


def test_what_was_measured_is_not_trained_again(table: Study, toy: Toy, student: Recipe) -> None:
    toy.started()
    assert ablation(student, toy.convnet, toy.setup).values == table.values
    assert toy.started() == 0
    other = replace(toy.setup, seeds=(1, 2), only=("soft",))
    found = ablation(student, toy.convnet, other)
    assert toy.started() == 1  # soft with seed 2
    assert list(found.values[SOFT, "top-1"]) == [1, 2] and list(found.values[HARD, "top-1"]) == [1]
    slower = replace(student, optimizer=replace(student.optimizer, lr=1e-4))
    assert trained({"none": slower}, replace(toy.setup, only=())) == {"none": {}}


def test_students_without_tokens_are_compared_by_the_other_ways(toy: Toy) -> None:
    convnet, toy.watch.count = recipe("digits.resnet", "channels=4", "duration=Steps(2)", "schedule.warmup=Steps(1)"), 0
    setup = replace(toy.setup, out=toy.setup.out / "convnet", seeds=(0,), file=None)
    found = ablation(convnet, toy.convnet, setup, methods=("none", "hard"))
    assert found.rows == (NONE, HARD) and [one.claim.text for one in found.verdicts()] == [f"{HARD} above {NONE}"]
    assert set(found.values) == {(NONE, "top-1"), (HARD, "top-1")} and found.table()


def test_students_of_two_kinds_of_teachers_share_trainings_with_the_ablation(table: Study, toy: Toy, student: Recipe) -> None:
    toy.started()
    found = teachers(student, {"resnet": toy.convnet}, {"deit": toy.transformer}, toy.setup)
    assert toy.started() == 2  # the transformer's students
    assert found.values["resnet", "student"] == table.values[BOTH, "top-1"]
    assert found.values["no teacher", "student"] == table.values[NONE, "top-1"]
    own = read_json(Path(toy.convnet.path) / "summary.json")["val_top1"]
    assert found.table()[1]["teacher itself"] == f"{own:.2f}"
    assert found.verdicts()[0].claim.text == "resnet above deit"
    assert found.notes == ()


def test_disagreements_are_of_the_finished_runs(table: Study, toy: Toy, student: Recipe) -> None:
    toy.started()
    found = disagreements(student, toy.convnet, toy.setup)
    assert toy.started() == 0
    for seed in toy.setup.seeds:
        error = {
            name: 100 * found.values["ground truth", name][seed] for name in ("no distillation", "class", "distill", "both")
        }
        right = [table.values[row, "top-1"][seed] for row in (NONE, CLASS, DISTILL, BOTH)]
        assert [100 - one for one in error.values()] == pytest.approx(right)
    matrix = np.array([[found.values[row, column][0] for column in found.columns] for row in found.rows])
    assert np.array_equal(matrix, matrix.T) and not matrix.diagonal().any()
    assert found.paper[1]["distill"] == "0.100"


def test_a_run_that_is_gone_cannot_be_compared_unless_it_was(table: Study, toy: Toy, student: Recipe, tmp_path: Path) -> None:
    disagreements(student, toy.convnet, toy.setup)
    data = read_json(toy.setup.out / "study.json")
    gone = [entry | {"folder": "nowhere" if entry["folder"] else ""} for entry in data["entries"]]
    setup = replace(toy.setup, file=tmp_path / "study.json")
    write_json(tmp_path / "study.json", {"entries": gone})
    assert disagreements(student, toy.convnet, setup).n == 2
    write_json(tmp_path / "study.json", {"entries": [entry for entry in gone if entry["name"] != "disagreement"]})
    assert disagreements(student, toy.convnet, replace(setup, only=())).n is None
    with pytest.raises(DataError, match=r"^nowhere: the run is gone"):
        disagreements(student, toy.convnet, setup)


def test_more_passes_are_trainings_of_their_own(toy: Toy, student: Recipe) -> None:
    toy.started()
    setup = replace(toy.setup, seeds=(0,))
    found = epochs(student, toy.convnet, (1, 2), setup, ("none", "token"))
    assert toy.started() == 2  # those of one pass are the ablation's
    assert read_json(toy.setup.out / "token-2" / "seed-0" / "recipe.json")["duration"]["count"] == 2
    assert [one.claim.text for one in found.verdicts()] == [
        "token above none after 1 passes",
        "token above none after 2 passes",
        "token gains from 1 to 2 passes",
    ]
    assert found.table()[1]["1000 epochs"] == "84.2"
    with pytest.raises(SpecError, match="two different numbers"):
        epochs(student, toy.convnet, (2,), setup)


def test_a_teacher_that_may_know_the_pictures_is_told(table: Study, toy: Toy, student: Recipe) -> None:
    more = replace(student, data=replace(student.data, subset=None))
    found = ablation(more, toy.convnet, replace(toy.setup, only=()))
    assert len(found.notes) == 1 and "learned from other pictures than its students" in found.notes[0]


def test_a_teacher_that_changed_between_trainings_is_told(table: Study, toy: Toy, student: Recipe, tmp_path: Path) -> None:
    data = read_json(toy.setup.out / "study.json")
    for entry in data["entries"]:
        entry["teacher"] = "another" if (entry["name"], entry["seed"]) == ("soft", 1) else entry["teacher"]
    write_json(tmp_path / "study.json", data)
    found = ablation(student, toy.convnet, replace(toy.setup, file=tmp_path / "study.json", only=()))
    assert found.notes == (f"Caution: {toy.convnet.path} changed between some of these trainings.",)


@pytest.fixture
def moved(table: Study, toy: Toy, student: Recipe, tmp_path: Path) -> tuple[RunTeacher, Setup]:
    """The teacher in another folder, and what is known of its students."""
    path = shutil.copytree(toy.convnet.path, tmp_path / "convnet")
    disagreements(student, toy.convnet, toy.setup)
    rows = [one for one in read_json(toy.setup.out / "study.json")["entries"] if one["name"] != "deit"]
    write_json(tmp_path / "study.json", {"entries": rows})
    toy.started()
    setup = replace(toy.setup, seeds=(0,), out=tmp_path / "out", file=tmp_path / "study.json", only=("hard",))
    return RunTeacher(str(path)), setup


def test_rows_are_found_wherever_the_teacher_lies_and_not_by_another_at_its_path(
    table: Study, toy: Toy, student: Recipe, moved: tuple[RunTeacher, Setup]
) -> None:
    teacher, setup = moved
    found = ablation(student, teacher, setup)
    assert toy.started() == 0 and found.values[HARD, "top-1"] == {0: table.values[HARD, "top-1"][0]} and found.notes == ()
    assert disagreements(student, teacher, replace(setup, only=())).n == 1
    for entry in ("hard", "token"):  # taught from here
        data = read_json(setup.ledger.path)
        data["entries"] = [one for one in data["entries"] if one["name"] != entry]
        write_json(setup.ledger.path, data)
        ablation(student, teacher, replace(setup, only=(entry,)))
    assert toy.started() == 2
    for name in ("model.safetensors", "config.json"):
        shutil.copy(Path(toy.transformer.path) / name, teacher.path)
    changed = ablation(student, teacher, replace(setup, only=()))
    assert changed.values[HARD, "top-1"] == changed.values[BOTH, "top-1"] == {} and changed.values[NONE, "top-1"]
    assert changed.notes == (
        f"Caution: {teacher.path} is another network than taught hard, token; what that gave is left out.",
    )
    assert disagreements(student, teacher, replace(setup, only=())).n is None
    with pytest.raises(
        DataError, match=r"hard/seed-0: holds a run with another teacher, which has changed since: teacher_fingerprint was"
    ):
        ablation(student, teacher, setup)


def test_rows_are_shown_where_only_the_results_came_back(
    table: Study, toy: Toy, student: Recipe, moved: tuple[RunTeacher, Setup]
) -> None:
    teacher, setup = moved
    write_json(setup.ledger.path, {"entries": []})
    alone = ablation(student, teacher, setup)
    shutil.rmtree(teacher.path)
    assert toy.started() == 1 and list(alone.values[HARD, "top-1"]) == [0]
    assert ablation(student, teacher, setup).values == alone.values and toy.started() == 0
    with pytest.raises(WeightsError, match="there is no such file or folder"):
        ablation(student, teacher, replace(setup, seeds=(0, 1)))


def test_refusals_come_before_any_training(toy: Toy, student: Recipe, tmp_path: Path) -> None:
    setup = replace(toy.setup, out=tmp_path / "out")
    with pytest.raises(SpecError, match=r"^student: has the heads class, distill\. Give one that learns"):
        ablation(recipe("deit.digits"), toy.convnet, setup)
    with pytest.raises(SpecError, match=r"^only: no training is called 'tokens'\. Did you mean 'token'"):
        ablation(student, toy.convnet, replace(setup, only=("tokens",)))
    with pytest.raises(DataError, match=r"^none\.split: there is no split 'test' to measure on\. There is: val\."):
        ablation(student, toy.convnet, replace(setup, split="test"))
    with pytest.raises(SpecError, match="Give each a name of its own"):
        teachers(student, {"a": toy.convnet}, {"a": toy.transformer}, setup)
    with pytest.raises(SpecError, match="each once"):
        Setup((0, 0), tmp_path)
    assert not (tmp_path / "out").exists()
