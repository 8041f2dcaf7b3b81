"""The ladder to BinaryViT at toy size: which rungs are trained how often, what is gained, and what stands beside."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks import binary_ladder

import frugalvit
from frugalvit.errors import DataError, SpecError
from frugalvit.recipes.find import recipe
from frugalvit.report.files import read_json
from frugalvit.report.progress import Silent
from frugalvit.studies.binary import PAPER, ROWS, TABLE_1, TOP1, ladder
from frugalvit.studies.study import Study
from frugalvit.studies.trainings import Setup
from frugalvit.training.recipe import Recipe

SMALL = ("dim=8", "epochs=1", "data.subset=SeededFraction(0.15)", "schedule.warmup=Steps(1)", "log_every=1")
NAMES = ("pyramid", "mean", "deit")  # in no order


class Started(Silent):
    """Counts the trainings that begin."""

    def __init__(self) -> None:
        self.count = 0

    def start(self, total: int, done: int) -> None:
        self.count += 1


def toy(*words: str) -> Recipe:
    return recipe("binaryvit.digits", *SMALL, *words)


@pytest.fixture(scope="module")
def watch() -> Started:
    return Started()


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory, watch: Started) -> Setup:
    return Setup((3, 5), tmp_path_factory.mktemp("ladder"), commit="abc1234", display=watch)


@pytest.fixture(scope="module")
def rungs() -> dict[str, Recipe]:
    return {name: toy(f"rung={name}") for name in NAMES}


@pytest.fixture(scope="module")
def twin() -> dict[str, Recipe]:
    return {"twin": toy("bits=none")}


@pytest.fixture(scope="module")
def table(rungs: dict[str, Recipe], twin: dict[str, Recipe], setup: Setup) -> Study:
    return ladder(rungs, twin, setup)


def test_rungs_are_trained_with_every_seed_and_others_with_the_first(table: Study, setup: Setup, watch: Started) -> None:
    assert watch.count == 3 * 2 + 1
    assert table.rows == ("binary DeiT", "+ average pooling", "+ pyramid: BinaryViT", "twin")
    for name, row in {"deit": ROWS["deit"], "pyramid": ROWS["pyramid"], "twin": "twin"}.items():
        runs = {int(one.name[5:]): read_json(one / "summary.json")["val_top1"] for one in (setup.out / name).glob("seed-*")}
        assert table.values[row, TOP1] == runs and list(runs) == ([3] if name == "twin" else list(runs))


def test_gains_are_over_the_rung_before_with_their_standard_error_and_the_papers(table: Study) -> None:
    first, second, third, twin = table.table()
    before, after = (table.values[ROWS[name], TOP1] for name in ("deit", "mean"))
    gains = [after[seed] - before[seed] for seed in (3, 5)]
    error = abs(gains[0] - gains[1]) / 2  # sd of two is their distance over √2, and is divided by √2 again
    assert second["gain"] == f"{sum(gains) / 2:+.2f} ± {error:.2f}"
    assert (first["gain"], twin["gain"], twin[PAPER]) == ("", "", "")
    assert (first[PAPER], second[PAPER], third[PAPER]) == ("48.5", "56.4", "67.7")
    assert (second["its gain"], third["its gain"]) == ("+7.9", "+11.3")
    assert [one.claim.paper for one in table.verdicts()] == ["+7.9", "+11.3"]
    assert list(TABLE_1) == list(ROWS) and list(TABLE_1.values()) == sorted(TABLE_1.values())


def test_costs_stand_beside(table: Study, rungs: dict[str, Recipe]) -> None:
    counted = frugalvit.cost(replace(rungs["pyramid"].model, classes=10))
    row, twin = table.table()[2:]
    assert row["parameters"] == twin["parameters"] == f"{counted.parameters:,}"
    assert row["OPs, M"] == f"{counted.ops / 1e6:.1f}" and twin["OPs, M"] == f"{(counted.flops + counted.bops) / 1e6:.1f}"
    assert twin["of 1 bit"] == "0.0%" and row["of 1 bit"] == f"{counted.bits / counted.parameters:.1%}"


def test_pieces_are_trained_one_by_one_and_not_again(
    table: Study, rungs: dict[str, Recipe], twin: dict[str, Recipe], setup: Setup, watch: Started, tmp_path: Path
) -> None:
    watch.count = 0
    assert ladder(rungs, twin, setup).values == table.values and watch.count == 0
    other = ladder(rungs, twin, replace(setup, seeds=(3, 5, 7), only=("deit",)))
    assert watch.count == 1 and list(other.values[ROWS["deit"], TOP1]) == [3, 5, 7]
    assert other.table()[1]["gain"] == table.table()[1]["gain"]  # by the seeds that both have
    empty = ladder(rungs, twin, replace(setup, file=tmp_path / "none.json", only=()))
    assert empty.n is None and empty.table()[1]["gain"] == "" and watch.count == 1


def test_who_taught_is_told(table: Study, rungs: dict[str, Recipe], setup: Setup) -> None:
    assert table.notes == ("Nobody teaches: all learn the labels. The paper's models learn from a DeiT-S alone.",)
    words = (f"teacher={setup.out / 'deit' / 'seed-3'}",)
    taught = {name: toy(f"rung={name}", *words) for name in ("deit", "mean")}
    own = read_json(setup.out / "deit" / "seed-3" / "summary.json")["val_top1"]
    line = f"The teacher of deit, mean: {setup.out / 'deit' / 'seed-3'}, top-1 {own:.2f}."
    assert ladder(taught, {"alone": rungs["mean"]}, replace(setup, only=())).notes == (line,)


def test_refusals_come_before_any_training(rungs: dict[str, Recipe], twin: dict[str, Recipe], tmp_path: Path) -> None:
    setup = Setup((0,), tmp_path / "out")
    with pytest.raises(SpecError, match=r"^rungs: no rung is called 'piramid'\. Did you mean 'pyramid'"):
        ladder({"piramid": rungs["pyramid"], **rungs}, twin, setup)
    with pytest.raises(SpecError, match=r"^rungs: deit\. Give two and more of deit, mean"):
        ladder({"deit": rungs["deit"]}, twin, setup)
    with pytest.raises(SpecError, match=r"^others: 'star' is a rung"):
        ladder(rungs, {"star": twin["twin"]}, setup)
    with pytest.raises(SpecError, match=r"^only: no training is called 'twins'\. Did you mean 'twin'"):
        ladder(rungs, twin, replace(setup, only=("twins",)))
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ the script


def test_the_pieces_of_the_script_are_recipes_that_differ() -> None:
    words = {name: ("binaryvit.cifar10", f"rung={name}") for name in ROWS} | binary_ladder.OTHERS
    assert len({recipe(*one) for one in words.values()}) == len(words) == len(binary_ladder.PIECES)


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """Ten classes that differ in their color; 40 pictures to train on, 20 to test."""
    root, draw = tmp_path / "cifar", np.random.default_rng(0)
    root.mkdir()
    colors_KC = draw.integers(0, 256, (10, 3))
    for split, count in (("train", 40), ("test", 20)):
        labels_N = np.arange(count) % 10
        noise_NHWC = draw.integers(-20, 21, (count, 32, 32, 3))
        np.save(root / f"{split}_images.npy", (colors_KC[labels_N, None, None] + noise_NHWC).clip(0, 255).astype(np.uint8))
        np.save(root / f"{split}_labels.npy", labels_N)
    return root


@pytest.mark.parametrize(
    ("words", "count"), [((), "40"), (("--val",), "30"), (("--override", "data.subset=SeededFraction(0.5)"), "20")]
)
def test_the_page_says_how_many_pictures_the_data_holds(
    words: tuple[str, ...], count: str, cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = ("--data", cifar, "--out", tmp_path / "results", "--runs", tmp_path / "runs", "--device", "cpu", "--only")
    monkeypatch.setattr(sys, "argv", ["script.py", *map(str, fixed), *words])
    binary_ladder.main()
    page = next((tmp_path / "results").glob("*.md")).read_text()
    assert f"60 passes over {count} training pictures, labels as the target" in page


def test_the_script_leaves_the_test_pictures_alone_and_keeps_to_one_teacher(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results"
    teacher = ("width=4", "stages=2", "depth=1", "batch=16", "lr=1.0", "augment=none", "cutout=0.0", "average=none")

    def called(*words: str) -> None:
        fixed = ("--data", cifar, "--out", out, "--runs", tmp_path / "runs", "--passes", 1, "--seeds", "0", "--device", "cpu")
        small = (
            "--commit",
            "abc1234",
            "--override",
            "dim=8",
            "--override",
            "batch=16",
            "--override",
            "teaching.least=0",
            "--val",
        )
        told = [one for word in teacher for one in ("--teacher-override", word)]
        monkeypatch.setattr(sys, "argv", ["script.py", *map(str, fixed), *small, "--teacher", "convnet.cifar10", *told, *words])
        binary_ladder.main()

    called("--only", "mean", "--teacher-override", "passes=6")
    entries = read_json(out / "binary_ladder_taught_val.json")["entries"]
    assert [one["name"] for one in entries] == ["teacher", "mean"]
    assert not [name for one in entries for name in one["results"] if name.startswith("test")]
    page = (out / "binary_ladder_taught_val.md").read_text()
    assert "`convnet.cifar10 width=4" in page and "passes=6`" in page
    assert "Nothing was chosen" not in page and "the figures may flatter them" in page
    with pytest.raises(DataError, match=r"holds a run of another recipe: duration\.count is 6, asked for is 5"):
        called("--only", "mean", "--teacher-override", "passes=5")
    shutil.rmtree(tmp_path / "runs")
    called("--only", "mean", "--teacher-override", "passes=6")  # only the results came back
    again = (out / "binary_ladder_taught_val.md").read_text()
    row = f"| + average pooling | {entries[1]['results']['val_top1']:.2f} |"
    assert row in page and row in again and read_json(out / "binary_ladder_taught_val.json")["entries"] == entries


def test_seeds_that_are_none_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["script.py", "--data", str(tmp_path), "--runs", str(tmp_path / "runs"), "--seeds", "0,x"])
    with pytest.raises(SystemExit) as end:
        binary_ladder.main()
    assert end.value.code == 2 and "argument --seeds: invalid seeds value: '0,x'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_the_script_measures_piece_by_piece_with_a_teacher_or_without(
    cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, runs = tmp_path / "results", tmp_path / "runs"

    def called(*words: str) -> str:
        fixed = ("--data", cifar, "--out", out, "--runs", runs, "--passes", 1, "--seeds", "0", "--device", "cpu")
        small = ("--commit", "abc1234", "--override", "dim=8", "--override", "batch=16")
        monkeypatch.setattr(sys, "argv", ["script.py", *map(str, fixed), *small, *words])
        binary_ladder.main()
        return capsys.readouterr().out

    called("--only", "deit", "mean")
    before = read_json(out / "binary_ladder.json")["entries"]
    assert [one["name"] for one in before] == ["deit", "mean"]
    said = called("--only", "pyramid twin", "star", "--seconds", "0.001")
    assert "star is left for another call" in said
    after = read_json(out / "binary_ladder.json")["entries"]
    assert after[:2] == before and {one["name"] for one in after[2:]} <= {"pyramid twin"}
    page = (out / "binary_ladder.md").read_text()
    assert page in said and f"| binary DeiT | {before[0]['results']['test_top1']:.2f} |" in page
    assert "+ average pooling above binary DeiT: undecided" in page and "labels as the target" in page
    teacher = ("width=4", "stages=2", "depth=1", "batch=16", "lr=1.0", "augment=none", "cutout=0.0", "average=none", "passes=6")
    told = [one for word in teacher for one in ("--teacher-override", word)]
    called("--only", "mean", "--teacher", "convnet.cifar10", *told)
    taught = read_json(out / "binary_ladder_taught.json")["entries"]
    assert [one["name"] for one in taught] == ["teacher", "mean"] and taught[1]["teacher"]
    folder = runs / "binary_ladder_taught"
    made = read_json(folder / "mean" / "seed-0" / "recipe.json")
    assert made["teaching"]["teacher"]["path"] == str(folder / "teacher" / "seed-0")
    assert {one.name for one in (out / "binary_ladder_taught_logs").iterdir()} == {"teacher-seed-0.jsonl", "mean-seed-0.jsonl"}
