from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from tests.data.trees import arrays, class_folders, inaturalist, picture, tiny_imagenet, write
from tests.test_cli import run

from frugalvit.data.check import check
from frugalvit.data.findings import Finding, Report
from frugalvit.data.recognize import recognized
from frugalvit.errors import DataError


def found(report: Report, words: str) -> Finding:
    """The one finding whose problem holds the words."""
    (one,) = [finding for finding in report.findings if words in finding.problem]
    return one


def healthy(root: Path) -> None:
    after = class_folders(root / "train", {"ant": 12, "bee": 15})
    class_folders(root / "val", {"ant": 3, "bee": 2}, after)


# ------------------------------------------------------------------------------------------------ recognizing


def test_layouts_are_recognized(tmp_path: Path) -> None:
    arrays(tmp_path / "arrays", "train", 6, 2)
    tiny_imagenet(tmp_path / "tiny")
    inaturalist(tmp_path / "inat", 2019)
    healthy(tmp_path / "splits")
    class_folders(tmp_path / "plain", {"a": 2, "b": 3})
    (tmp_path / "cifar" / "cifar-100-python").mkdir(parents=True)
    (tmp_path / "cifar" / "cifar-100-python" / "train").touch()
    write(tmp_path / "imagenet" / "train" / "n01440764" / "a.JPEG", 1)
    write(tmp_path / "imagenet" / "val" / "a.JPEG", 2)
    (tmp_path / "table.csv").write_text("path,label\n")
    for name, expected in {
        "arrays": "ArrayFolder(holdout=0.1, seed=0)",
        "tiny": "TinyImageNet()",
        "inat": "INaturalist(year=2019)",
        "splits": "ImageFolder(holdout=0.1, seed=0)",
        "plain": "ImageFolder(holdout=0.1, seed=0)",
        "cifar": "Cifar100(holdout=0.1, seed=0)",
        "imagenet": "ImageNet()",
        "table.csv": "LabelTable(holdout=0.1, seed=0)",
    }.items():
        assert repr(recognized(tmp_path / name)) == expected


def test_an_empty_folder_makes_no_public_data_set_of_ones_own_pictures(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "flowers-102").mkdir()  # what a download that failed has left
    assert repr(recognized(tmp_path)) == "ImageFolder(holdout=0.1, seed=0)"
    assert check(tmp_path).findings == ()


def test_a_thousand_numbered_folders_are_imagenet_v2(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / str(number)).mkdir()
    assert repr(recognized(tmp_path)) == "ImageNetV2()"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        ("notes.txt", r"a single file, and no table \(\.csv\) of pictures and labels\. Expected train/<class>"),
        ("folder/1.jpg", "no data set that is known. Pictures without class folders have no labels"),
        ("folder/labels.csv", r"no data set that is known. Give the table itself: .*labels.csv"),
    ],
)
def test_what_is_not_recognized_is_told_what_would_be(tmp_path: Path, make: str, message: str) -> None:
    (tmp_path / make).parent.mkdir(exist_ok=True)
    (tmp_path / make).write_text("nothing")
    with pytest.raises(DataError, match=message):
        recognized(tmp_path / Path(make).parts[0])


def test_a_check_of_what_is_not_there_is_a_report_too(tmp_path: Path) -> None:
    report = check(tmp_path / "nowhere")
    assert not report.usable
    assert "nowhere: not recognized" in report.lines()[0]
    assert found(report, "there is no such file or folder").severity == "error"


# ------------------------------------------------------------------------------------------------ what is there


def test_a_healthy_data_set_has_nothing_to_find(tmp_path: Path) -> None:
    healthy(tmp_path)
    calls: list[tuple[int, int]] = []
    report = check(tmp_path, lambda done, total: calls.append((done, total)))
    assert report.usable
    assert report.findings == ()
    assert calls == [(number, 32) for number in range(1, 33)]
    assert report.lines() == [
        f"{tmp_path}: read as ImageFolder(holdout=0.1, seed=0)",
        "train: 27 pictures of 2 classes, 12 to 15 in each",
        "val: 5 pictures of 2 classes, 2 to 3 in each",
        "width: 7 pixels; height: 5 pixels",
        "stored as: color 32",
        "0 errors, 0 warnings, 0 notes",
    ]


def test_a_report_is_plain_data(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "train" / "ant" / "bad.jpg").write_text("no picture")
    data = json.loads(json.dumps(check(tmp_path).plain()))
    assert data["usable"] is False
    assert data["counts"][1] == {"split": "val", "pictures": 5, "classes": [["ant", 3], ["bee", 2]]}
    assert data["width"] == {"least": 7, "median": 7.0, "most": 7}
    assert data["findings"][0]["places"] == [str(tmp_path / "train" / "ant" / "bad.jpg")]


# ------------------------------------------------------------------------------------------------ pictures


def test_pictures_that_cannot_be_read_are_named_by_what_ails_them(tmp_path: Path) -> None:
    healthy(tmp_path)
    folder = tmp_path / "train" / "bee"
    (folder / "text.jpg").write_text("this is no picture")
    (folder / "zero.png").touch()
    picture(1, 90, 70).save(folder / "cut.jpg")
    (folder / "cut.jpg").write_bytes((folder / "cut.jpg").read_bytes()[:700])
    (folder / "dangling.jpg").symlink_to(tmp_path / "nothing.jpg")
    report = check(tmp_path)
    for words, name in {
        "1 picture is of no format that is known, whatever the ending says": "text.jpg",
        "1 picture is empty": "zero.png",
        "1 picture is broken or cut short": "cut.jpg",
        "1 picture is missing": "dangling.jpg",
    }.items():
        finding = found(report, words)
        assert finding.severity == "error"
        assert [Path(place).name for place in finding.places] == [name]
        assert finding.cure
    assert any(line.startswith("error: 1 picture is broken or cut short (") for line in report.lines())


def test_pictures_that_open_and_yet_cannot_be_shown_to_a_model_are_named(tmp_path: Path) -> None:
    healthy(tmp_path)
    Pillow.new("LAB", (7, 5)).save(tmp_path / "train" / "bee" / "lab.tif")
    Pillow.new("RGB", (1, 200_000)).save(tmp_path / "val" / "ant" / "thin.png")
    report = check(tmp_path)
    assert not report.usable
    for words, name in {
        "1 picture is in colors that do not become both gray and RGB": "lab.tif",
        "1 picture is too thin to be resized to 224 x 224 pixels": "thin.png",
    }.items():
        finding = found(report, words)
        assert finding.severity == "error" and finding.cure
        assert [Path(place).name for place in finding.places] == [name]


def test_unusual_pictures_are_noted(tmp_path: Path) -> None:
    healthy(tmp_path)
    folder = tmp_path / "train" / "ant"
    exif = Pillow.Exif()
    exif[0x0112] = 8
    picture(1, 31, 19).save(folder / "turned.jpg", exif=exif)
    picture(2).convert("CMYK").save(folder / "print.jpg")
    picture(3).convert("P").save(folder / "colors.png")
    picture(4).convert("RGBA").save(folder / "glass.png")
    picture(5).convert("L").save(folder / "gray.png")
    picture(6).convert("1").save(folder / "ink.png")
    Pillow.fromarray(np.full((5, 7), 40_000, np.uint16)).save(folder / "deep.png")
    picture(7).save(folder / "moving.gif", save_all=True, append_images=[picture(8)])
    (folder / "phone.heic").write_text("left out")
    report = check(tmp_path)
    assert report.usable
    for words, name in {
        "1 picture is rotated by EXIF": "turned.jpg",
        "stored as CMYK": "print.jpg",
        "stored as alpha": "glass.png",
        "stored as 16-bit": "deep.png",
        "stored as black and white": "ink.png",
        "1 file holds several pictures": "moving.gif",
    }.items():
        assert found(report, words).severity == "note"
        assert Path(found(report, words).places[0]).name == name
    assert len(found(report, "2 pictures are stored as palette").places) == 2
    assert found(report, "files with other endings are left out: .heic 1").cure == "Convert those that are pictures."
    assert dict(report.kinds) == {"color": 33} | dict.fromkeys(("CMYK", "alpha", "gray", "black and white", "16-bit"), 1) | {
        "palette": 2
    }
    assert report.height is not None
    assert (report.height.least, report.height.most) == (5, 31)  # of the turned one


def test_large_pictures_are_better_shrunk_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Pillow.new("L", (1100, 1030), ord(name)).save(tmp_path / name / "1.png")
    assert "Shrink them once" in found(check(tmp_path), "half of the pictures are larger than 1024 pixels").cure


# ------------------------------------------------------------------------------------------------ classes and splits


def test_classes_that_differ_between_splits_are_named(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "val" / "bee").rename(tmp_path / "val" / "bees")
    (tmp_path / "train" / "cat").mkdir()
    report = check(tmp_path)
    absent = [finding for finding in report.findings if "classes of other splits have no folder here" in finding.problem]
    assert [(one.severity, one.problem.split(":")[0], one.places) for one in absent] == [
        ("error", "train", ("bees",)),
        ("error", "val", ("bee", "cat")),
    ]
    assert found(report, "train: class folders without pictures").places == ("cat",)
    assert sum(counts.pictures for counts in report.counts) == 32


def test_copies_between_splits_and_labels_are_warned_of(tmp_path: Path) -> None:
    healthy(tmp_path)
    train, val = tmp_path / "train", tmp_path / "val"
    shutil.copy(train / "ant" / "003.jpg", val / "ant" / "leak.jpg")
    shutil.copy(train / "bee" / "004.jpg", train / "ant" / "torn.jpg")
    shutil.copy(train / "bee" / "005.jpg", train / "bee" / "twice.jpg")
    report = check(tmp_path)
    leak = found(report, "1 picture is in more than one split")
    assert (leak.severity, leak.places) == ("warning", (f"{train / 'ant' / '003.jpg'} = {val / 'ant' / 'leak.jpg'}",))
    assert "torn.jpg" in found(report, "1 picture is there under two labels").places[0]
    assert "twice.jpg" in found(report, "1 picture is there twice in one split").places[0]
    for number in range(40):
        shutil.copy(train / "bee" / "005.jpg", train / "bee" / f"again{number}.jpg")
    (told,) = found(check(tmp_path), "1 picture is there twice in one split").places
    assert told.endswith(" = 39 more") and told.count(".jpg") == 3  # a line, not all of them
    assert report.usable


def test_a_copy_with_several_ills_is_told_of_once_by_the_worst(tmp_path: Path) -> None:
    healthy(tmp_path)
    for number, place in enumerate(("train/ant", "val/ant")):  # of a bee, so in two classes; the second time in two splits too
        shutil.copy(tmp_path / "train" / "bee" / f"00{number}.jpg", tmp_path / place / "torn.jpg")
    report = check(tmp_path)
    assert [finding.problem for finding in report.findings] == ["2 pictures are there under two labels"]


def test_counts_have_their_number(tmp_path: Path) -> None:
    class_folders(tmp_path / "two", {"ant": 10, "bee": 10})
    assert "train: 20 pictures of 2 classes, 10 in each" in check(tmp_path / "two").lines()
    class_folders(tmp_path / "one", {"ant": 1})
    assert "train: 1 picture of 1 class" in check(tmp_path / "one").lines()


def test_what_to_do_with_one_picture_and_with_several_is_said_rightly(tmp_path: Path) -> None:
    healthy(tmp_path)
    (tmp_path / "train" / "bee" / "a.png").touch()
    assert found(check(tmp_path), "1 picture is empty").cure == "Copy it again, or delete it."
    (tmp_path / "train" / "bee" / "b.png").touch()
    assert found(check(tmp_path), "2 pictures are empty").cure == "Copy them again, or delete them."


def test_small_and_uneven_classes_are_warned_of(tmp_path: Path) -> None:
    class_folders(tmp_path, {"rare": 3, "common": 30})
    report = check(tmp_path)
    assert found(report, "classes with fewer than 10 pictures in train").places == ("rare 3",)
    assert found(report, "train is uneven: 30 pictures of common, 3 of rare").severity == "warning"
    assert found(report, "there is no val folder").severity == "note"


def test_classes_alike_in_all_but_capitals_and_classes_that_val_lacks_are_warned_of(tmp_path: Path) -> None:
    after = class_folders(tmp_path / "train", {"Dog": 20, "dog": 20, "bee": 1})
    class_folders(tmp_path / "val", {"Dog": 2, "dog": 2, "bee": 0}, after)
    (tmp_path / "val" / "bee").mkdir(exist_ok=True)
    report = check(tmp_path)
    assert found(report, "differ in capitals or spaces alone").places == ("'Dog' = 'dog'",)
    assert found(report, "without a picture in val").places == ("bee",)


def test_twelve_bits_in_sixteen_and_what_pillow_finds_too_large_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_folders(tmp_path, {"ant": 12, "bee": 15})
    draw = np.random.default_rng(0)
    Pillow.fromarray(draw.integers(0, 4096, (12, 12)).astype(np.uint16)).save(tmp_path / "ant" / "dark.png")
    Pillow.fromarray(draw.integers(0, 65536, (12, 12)).astype(np.uint16)).save(tmp_path / "ant" / "deep.png")
    Pillow.new("RGB", (200, 100)).save(tmp_path / "bee" / "huge.png")
    monkeypatch.setattr(Pillow, "MAX_IMAGE_PIXELS", 8_000)  # twice as many are refused
    report = check(tmp_path)
    assert [Path(one).name for one in found(report, "of which at most 12 are used").places] == ["dark.png"]
    (deep,) = (one.places for one in report.findings if one.problem.endswith("stored as 16-bit"))
    assert [Path(one).name for one in deep] == ["deep.png"]
    assert [Path(one).name for one in found(report, "larger than what Pillow opens").places] == ["huge.png"]


def test_one_class_is_nothing_to_tell_apart(tmp_path: Path) -> None:
    class_folders(tmp_path, {"only": 4})
    assert found(check(tmp_path), "train has 1 class with pictures").severity == "error"


# ------------------------------------------------------------------------------------------------ other layouts


def test_arrays_are_checked_for_leaks_too(tmp_path: Path) -> None:
    arrays(tmp_path, "train", 40, 2)
    arrays(tmp_path, "val", 6, 2)
    images = np.load(tmp_path / "val_images.npy")
    images[3] = np.load(tmp_path / "train_images.npy")[7]
    np.save(tmp_path / "val_images.npy", images)
    report = check(tmp_path)
    place = f"{tmp_path / 'train_images.npy'}[07] = {tmp_path / 'val_images.npy'}[3]"
    assert found(report, "in more than one split").places == (place,)
    assert found(report, "there is no split 'test'").severity == "note"
    assert report.dataset.startswith("ArrayFolder")


def test_labels_that_are_counted_from_one_are_warned_of(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("val", 6)):
        arrays(tmp_path, split, count, 2)
        np.save(tmp_path / f"{split}_labels.npy", np.load(tmp_path / f"{split}_labels.npy") + 1)
    empty = found(check(tmp_path), "1 class without a picture in train")
    assert (empty.severity, empty.places) == ("warning", ("0",)) and "Number labels from 0 on" in empty.cure
    words = ["train", "small.best_cifar10", "data.dataset=ArrayFolder", "dim=16", "heads=2", "depth=1", "early=1", "late=1"]
    words += ["passes=1", "batch=8", "--data", str(tmp_path), "--device", "cpu", "--out", str(tmp_path / "run")]
    said = run(*words).stderr
    assert "caution: no training picture is of 0. Are labels counted from 1?" in said


def test_a_broken_split_leaves_the_others_checked(tmp_path: Path) -> None:
    arrays(tmp_path, "train", 40, 2)
    arrays(tmp_path, "val", 6, 2)
    (tmp_path / "val_labels.npy").unlink()
    report = check(tmp_path)
    assert found(report, "val_labels.npy: there is no such file").severity == "error"
    assert [counts.split for counts in report.counts] == ["train"]


def test_a_test_split_that_is_the_val_split_is_counted_once(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path)
    report = check(tmp_path)
    assert [(counts.split, counts.pictures) for counts in report.counts] == [("train", 12), ("val", 3)]
    assert report.usable


def test_a_table_with_a_mistake_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\nnothing.jpg,a\n")
    report = check(tmp_path / "labels.csv")
    assert "labels.csv:2: there is no file nothing.jpg" in report.findings[0].problem
    assert len(report.findings) == 1 and report.lines()[-1] == "1 error, 0 warnings, 0 notes"
