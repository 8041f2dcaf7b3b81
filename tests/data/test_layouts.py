"""Which folder is taken for which split, and what is said of those that are taken for none."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.data.test_check import found
from tests.data.trees import class_folders, write

from frugalvit.beginning import opened
from frugalvit.data.check import check
from frugalvit.data.folder import ImageFolder
from frugalvit.data.own import own_pictures
from frugalvit.data.split import NoSplit
from frugalvit.data.table import LabelTable
from frugalvit.errors import DataError
from frugalvit.recipes import transfer

CLASSES = {"ant": 12, "bee": 13}


def pictures(folder: Path, first: int = 500) -> None:
    for number in range(3):
        write(folder / f"{number}.png", first + number)


@pytest.mark.parametrize("name", ["val", "Val", "valid", "validation", "dev", "eval"])
def test_validation_pictures_without_class_folders_are_refused(tmp_path: Path, name: str) -> None:
    class_folders(tmp_path / "train", CLASSES)
    pictures(tmp_path / name)
    for split in ("train", "val"):
        with pytest.raises(
            DataError, match=rf"/{name}: pictures in one folder have no labels. Put them into {name}/<class>/\*"
        ):
            ImageFolder().open(split, tmp_path)
    with pytest.raises(DataError, match="pictures in one folder have no labels"):
        opened(transfer.folder(), tmp_path)
    report = check(tmp_path)
    assert found(report, f"{name}: pictures in one folder have no labels").severity == "error"
    assert "no val folder" not in str(report)


@pytest.mark.parametrize("name", ["test", "Test", "testing"])
def test_test_pictures_without_labels_are_in_nobody_s_way_until_they_are_asked_for(tmp_path: Path, name: str) -> None:
    class_folders(tmp_path / "train", CLASSES)
    pictures(tmp_path / name)
    assert set(opened(transfer.folder(), tmp_path)) == {"train", "val"}
    with pytest.raises(NoSplit, match=rf"/{name}: pictures in one folder have no labels. Put them into {name}/<class>/\*"):
        ImageFolder().open("test", tmp_path)
    report = check(tmp_path)
    assert report.usable
    assert found(report, f"{name}: pictures in one folder have no labels and are left out").severity == "note"


@pytest.mark.parametrize(
    ("train", "val", "test"),
    [
        ("training", "validation", "testing"),
        ("Train", "Val", "Test"),
        ("TRAIN", "Dev", "Testing"),
        ("train", "eval", "TEST"),
    ],
)
def test_splits_have_several_names_in_capitals_or_not(tmp_path: Path, train: str, val: str, test: str) -> None:
    for first, (usual, name) in enumerate({"train": train, "val": val, "test": test}.items()):
        class_folders(tmp_path / "named" / name, CLASSES, 100 * first)
        class_folders(tmp_path / "usual" / usual, CLASSES, 100 * first)
    for split in ("train", "val", "test"):
        source = ImageFolder().open(split, tmp_path / "named")
        assert source.fingerprint() == ImageFolder().open(split, tmp_path / "usual").fingerprint()
    assert [counts.line() for counts in check(tmp_path / "named").counts] == [
        f"{split}: 25 pictures of 2 classes, 12 to 13 in each" for split in ("train", "val", "test")
    ]


def test_folders_that_are_read_as_ever_keep_their_fingerprints(tmp_path: Path) -> None:
    class_folders(tmp_path / "plain", CLASSES)
    class_folders(tmp_path / "splits" / "train", CLASSES)
    class_folders(tmp_path / "splits" / "val", CLASSES, 100)
    for place, train, val in (
        ("plain", "498a2ac3b17f6679", "408330a08751410d"),
        ("splits", "14a42fbad5772444", "3c098ffb241c7b3b"),
    ):
        assert [ImageFolder().open(split, tmp_path / place).fingerprint() for split in ("train", "val")] == [train, val]


@pytest.mark.parametrize("names", [("Test", "test"), ("testing", "test"), ("train", "training"), ("dev", "val")])
def test_two_folders_for_one_split_are_an_error_that_names_both(tmp_path: Path, names: tuple[str, str]) -> None:
    class_folders(tmp_path / "train", CLASSES)
    class_folders(tmp_path / names[0], CLASSES)
    pictures(tmp_path / names[1])
    message = f"{' and '.join(sorted(names))} are both here"
    with pytest.raises(DataError, match=message):
        ImageFolder().open("train", tmp_path)
    assert found(check(tmp_path), message).severity == "error"


def test_without_train_a_check_fails_as_a_training_does(tmp_path: Path) -> None:
    class_folders(tmp_path / "val", CLASSES)
    with pytest.raises(DataError, match=r"there is val, but no train. Add train/<class>"):
        ImageFolder().open("train", tmp_path)
    assert len(ImageFolder().open("val", tmp_path)) == 25  # to be measured on
    report = check(tmp_path)
    assert found(report, "there is val, but no train").severity == "error"
    class_folders(tmp_path, CLASSES)
    for split in ("train", "val"):
        (tmp_path / "val").rename(tmp_path / "Test") if split == "val" else None
        name = "val" if split == "train" else "Test"
        with pytest.raises(DataError, match=f"there is {name} beside ant, bee, but no train. Put the folders of the classes"):
            ImageFolder().open(split, tmp_path)


def test_folders_without_any_class_folders_are_splits_without_labels(tmp_path: Path) -> None:
    pictures(tmp_path / "train")
    pictures(tmp_path / "test", 600)
    with pytest.raises(DataError, match=r"train: pictures in one folder have no labels. Put them into train/<class>"):
        ImageFolder().open("train", tmp_path)
    assert found(check(tmp_path), "train: pictures in one folder have no labels").severity == "error"


def test_what_lies_beside_the_splits_is_warned_of(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", CLASSES)
    class_folders(tmp_path, {"cat": 2}, 300)
    (tmp_path / "logs").mkdir()
    pictures(tmp_path / "train")
    report = check(tmp_path)
    assert found(report, "folders beside train are left out").places == ("cat",)
    assert found(report, "folders beside train are left out").severity == "warning"
    stray = found(report, "pictures of train lie beside the folders and are left out")
    assert (stray.severity, len(stray.places)) == ("warning", 3)
    assert ImageFolder(holdout=0).open("train", tmp_path).classes == ("ant", "bee")


def test_a_folder_that_must_not_be_seen_is_in_nobody_s_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path / "train", CLASSES)
    (tmp_path / "lost+found").mkdir()
    scandir = os.scandir

    def refused(path: Path) -> Any:
        if Path(path).name == "lost+found":
            raise PermissionError(path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", refused)
    assert set(opened(transfer.folder(), tmp_path)) == {"train", "val"}
    assert own_pictures(tmp_path) is not None
    (tmp_path / "train" / "lost+found").mkdir()
    assert ImageFolder().open("train", tmp_path / "train").classes == tuple(CLASSES)  # beside the classes, too


def test_a_folder_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class_folders(tmp_path, dict.fromkeys(CLASSES, 3))
    scandir = os.scandir

    def refused(path: Path) -> Any:
        if Path(path).name == "bee":
            raise PermissionError(path)
        return scandir(path)

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(DataError, match=r"bee: may not be read\. Give yourself the right to"):
        ImageFolder().open("train", tmp_path)


def test_pictures_behind_links_are_somebody_s_own_and_any_csv_is_not(tmp_path: Path) -> None:
    class_folders(tmp_path / "elsewhere", dict.fromkeys(CLASSES, 3))
    (tmp_path / "linked" / "train").mkdir(parents=True)
    for name in CLASSES:
        (tmp_path / "linked" / "train" / name).symlink_to(tmp_path / "elsewhere" / name)
    assert own_pictures(tmp_path / "linked") is not None
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "metrics.csv").write_text("step,loss\n1,2\n")
    assert own_pictures(tmp_path / "log") is None
    (tmp_path / "log" / "mine.csv").write_text("path,label\na.png,b\n")
    assert own_pictures(tmp_path / "log") is not None


def test_a_class_may_be_called_like_a_split_and_a_check_says_so(tmp_path: Path) -> None:
    class_folders(tmp_path, {"car": 10, "test": 11, "Val": 12})
    source = ImageFolder(holdout=0).open("train", tmp_path)
    assert (source.classes, len(source)) == (("Val", "car", "test"), 33)
    report = check(tmp_path)
    assert report.usable
    assert found(report, "Val and test are classes here, and no split, like the folders beside").severity == "warning"
    with pytest.raises(NoSplit, match=r"there is no split 'test', since the folder test is read as a class. Add test/<class>"):
        ImageFolder().open("test", tmp_path)


def test_a_check_counts_pictures_in_folders_inside_classes_that_have_pictures(tmp_path: Path) -> None:
    class_folders(tmp_path, {"ant": 3, "bee": 4})
    pictures(tmp_path / "bee" / "more" / "deep", 20)
    report = check(tmp_path)
    (missed,) = (one for one in report.findings if "in folders inside class folders are left out" in one.problem)
    assert (missed.severity, missed.places, missed.problem.split()[0]) == ("warning", ("bee",), "train:")


def test_a_check_points_to_the_table_beside_a_folder_of_pictures(tmp_path: Path) -> None:
    class_folders(tmp_path, {"images": 4})
    (tmp_path / "labels.csv").write_text("path,label\nimages/000.jpg,ant\n")
    report = check(tmp_path)
    assert (
        found(report, "train has 1 class with pictures").cure == f"There is a table of labels: give {tmp_path / 'labels.csv'}."
    )
    (tmp_path / "labels.csv").write_text("path;label\nimages/000.jpg;ant\n")
    with pytest.raises(DataError, match=r"labels\.csv:1: its columns are separated by ';'\. Use commas"):
        LabelTable().open("train", tmp_path / "labels.csv")


def test_a_check_says_that_pictures_lie_too_deep(tmp_path: Path) -> None:
    for first, name in enumerate(CLASSES):
        pictures(tmp_path / "train" / name / "images", 10 * first)
    (tmp_path / "train" / "cat").mkdir()
    report = check(tmp_path)
    deep = found(report, "train: no pictures directly in class folders")
    assert (deep.severity, deep.places, deep.cure) == ("error", ("ant", "bee"), "They must lie there, not in folders inside.")
    assert found(report, "train: class folders without pictures").places == ("cat",)


def test_a_table_knows_the_names_of_the_splits_too(tmp_path: Path) -> None:
    class_folders(tmp_path, {"ant": 4})
    rows = [f"ant/{number:03d}.jpg,{'ab'[number % 2]},{'Training' if number < 2 else 'dev'}" for number in range(4)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,split", *rows]))
    assert [len(LabelTable().open(split, tmp_path / "table.csv")) for split in ("train", "val")] == [2, 2]
