from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from tests.data.trees import arrays, class_folders, number_of, picture, write

from frugalvit.data import arrays as array_files
from frugalvit.data.arrays import ArrayFolder, Arrays
from frugalvit.data.backing import afresh
from frugalvit.data.folder import ImageFolder
from frugalvit.data.split import Picked, apportioned, stratified
from frugalvit.data.table import LabelTable
from frugalvit.errors import DataError, SpecError

# ------------------------------------------------------------------------------------------------ holding out


def test_shares_follow_the_sizes_of_the_classes() -> None:
    np.testing.assert_array_equal(apportioned(np.array([50, 30, 20]), 10), [5, 3, 2])
    np.testing.assert_array_equal(apportioned(np.array([7, 7, 6]), 10), [4, 3, 3])  # the largest remainders, then the first


def test_a_single_picture_stays_in_training_and_two_give_one() -> None:
    np.testing.assert_array_equal(apportioned(np.array([1, 2, 97]), 10), [0, 1, 10])
    np.testing.assert_array_equal(apportioned(np.array([1, 2, 3]), 6), [0, 1, 2])


def test_what_is_held_out_of_a_class_depends_on_the_seed_alone() -> None:
    labels = np.array([0] * 11 + [1] * 13)
    first = stratified(labels, 6, seed=3)
    np.testing.assert_array_equal(first, stratified(labels, 6, seed=3))
    assert first.tolist() != stratified(labels, 6, seed=4).tolist()
    alone = stratified(np.zeros(11, np.int64), 3, seed=3)
    assert alone.tolist() == first[first < 11].tolist()


@pytest.mark.parametrize("dataset", [ArrayFolder, ImageFolder, LabelTable])
@pytest.mark.parametrize("share", [-0.1, 1.0])
def test_an_impossible_holdout_is_refused(dataset: type, share: float) -> None:
    with pytest.raises(SpecError, match=rf"holdout: a share of {share}\. Use 0 or more"):
        dataset(holdout=share)


# ------------------------------------------------------------------------------------------------ class folders


def test_folders_with_splits_are_read_as_they_are(tmp_path: Path) -> None:
    after = class_folders(tmp_path / "train", {"dog": 3, "cat": 5, "ant": 2})
    class_folders(tmp_path / "validation", {"dog": 1, "cat": 2, "ant": 1}, after)
    train, val = (ImageFolder().open(split, tmp_path) for split in ("train", "val"))
    assert train.classes == val.classes == ("ant", "cat", "dog")
    assert train.labels.tolist() == [0] * 2 + [1] * 5 + [2] * 3
    assert train.labels.dtype == np.int64
    assert val.labels.tolist() == [0, 1, 1, 2]
    assert [number_of(train.picture(index)) for index in range(10)] == [8, 9, 3, 4, 5, 6, 7, 0, 1, 2]
    assert train.name(2) == str(tmp_path / "train" / "cat" / "000.jpg")
    with pytest.raises(DataError, match=r"there is no split 'test'. Add test/<class>"):
        ImageFolder().open("test", tmp_path)
    class_folders(tmp_path / "test", {"dog": 1, "cat": 1, "ant": 1}, 100)
    assert len(ImageFolder().open("test", tmp_path)) == 3


def test_folders_without_splits_keep_a_part_of_each_class(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 20, "b": 10, "c": 1})
    train, val = (ImageFolder(holdout=0.2, seed=5).open(split, tmp_path) for split in ("train", "val"))
    assert np.bincount(val.labels, minlength=3).tolist() == [4, 2, 0]
    assert np.bincount(train.labels).tolist() == [16, 8, 1]
    names = [{source.name(index) for index in range(len(source))} for source in (train, val)]
    assert not names[0] & names[1]
    again, other = (ImageFolder(holdout=0.2, seed=seed).open("val", tmp_path) for seed in (5, 6))
    assert again.fingerprint() == val.fingerprint() != other.fingerprint()


def test_train_without_val_keeps_a_part_of_train(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"a": 9, "b": 7})
    assert len(ImageFolder(holdout=0.25).open("val", tmp_path)) == 4
    assert len(ImageFolder(holdout=0).open("train", tmp_path)) == 16
    with pytest.raises(DataError, match=r"no split 'val', and holdout=0 keeps.*Use holdout=0.1, or add val/<class>"):
        ImageFolder(holdout=0).open("val", tmp_path)


def test_a_few_pictures_still_give_a_validation_split(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 2, "b": 2})
    assert len(ImageFolder().open("val", tmp_path)) == 2
    shutil.rmtree(tmp_path / "a")
    shutil.rmtree(tmp_path / "b")
    class_folders(tmp_path, {"a": 1, "b": 1})
    with pytest.raises(DataError, match="every class has a single picture"):
        ImageFolder().open("val", tmp_path)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    class_folders(tmp_path, {"bus": 2, "train": 3})
    assert ImageFolder(holdout=0).open("train", tmp_path).classes == ("bus", "train")


def test_endings_in_capitals_and_links_count_and_hidden_files_do_not(tmp_path: Path) -> None:
    class_folders(tmp_path / "elsewhere" / "b", {"deep": 1})
    root = tmp_path / "root"
    for name in ("1.JPG", "2.PnG", "3.webp", ".hidden.jpg", "notes.txt", "5.tiff"):
        write(root / "a" / name, 1)
    (root / ".git").mkdir()
    (root / "b").symlink_to(tmp_path / "elsewhere" / "b" / "deep")
    source = ImageFolder(holdout=0).open("train", root)
    assert [Path(source.name(index)).name for index in range(len(source))] == ["1.JPG", "2.PnG", "3.webp", "5.tiff", "000.jpg"]
    assert source.classes == ("a", "b")


def test_other_classes_in_val_are_named(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", {"ant": 1, "bee": 1, "cat": 1})
    class_folders(tmp_path / "val", {"ant": 1, "cats": 1})
    with pytest.raises(DataError, match=r"val: its classes are not those of train \(missing: bee, cat; extra: cats\)"):
        ImageFolder().open("val", tmp_path)


@pytest.mark.parametrize(
    ("make", "split", "message"),
    [
        (["train/a/1.jpg", "train/empty/"], "train", r"train/empty: no pictures in this class folder \(jpg jpeg"),
        (["a/1.jpg", "b/inner/1.jpg"], "train", "b: no pictures .* They must lie directly in it"),
        (["1.jpg"], "train", "no class folders here. Expected a folder with train/<class>"),
        (["val/a/1.jpg"], "train", "there is val, but no train. Add train"),
        (["train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg"], "val", "val and valid are both here"),
    ],
)
def test_folders_that_cannot_be_read_say_why(tmp_path: Path, make: list[str], split: str, message: str) -> None:
    for name in make:
        (tmp_path / name).mkdir(parents=True) if name.endswith("/") else write(tmp_path / name, 1)
    with pytest.raises(DataError, match=message):
        ImageFolder().open(split, tmp_path)


def test_where_no_data_is_the_error_says_what_belongs_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--data: where is the data\? Say --data PATH: a folder with train"):
        ImageFolder().open("train", None)
    with pytest.raises(DataError, match=r"nowhere: there is no such file or folder. Expected a folder with train"):
        ImageFolder().open("train", tmp_path / "nowhere")


def test_files_travel_to_other_processes_and_keep_their_fingerprint_when_moved(tmp_path: Path) -> None:
    class_folders(tmp_path / "here", {"a": 3, "b": 2})
    source = ImageFolder().open("train", tmp_path / "here")
    assert pickle.loads(pickle.dumps(source)).fingerprint() == source.fingerprint()
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    there = tmp_path / "there"
    assert ImageFolder().open("train", there).fingerprint() == source.fingerprint()
    picture(1, 70, 50).save(there / "a" / "000.jpg")
    picture(2, 70, 50).save(there / "b" / "000.jpg")
    assert (
        ImageFolder(holdout=0).open("train", there).fingerprint()
        != ImageFolder(holdout=0).open("train", tmp_path / "here").fingerprint()
    )


def test_other_bytes_of_the_same_length_change_the_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(60):
        picture(number).save(tmp_path / "a" / f"{number:02d}.bmp")
    found = {ImageFolder(holdout=0).open("train", tmp_path).fingerprint()}
    for number in range(60):
        picture(number + 1).save(tmp_path / "a" / f"{number:02d}.bmp")
        found.add(ImageFolder(holdout=0).open("train", tmp_path).fingerprint())
    assert len({one.stat().st_size for one in (tmp_path / "a").iterdir()}) == 1
    assert len(found) == 61


def test_the_times_of_files_leave_the_fingerprint_as_it_is(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 2, "b": 3})
    arrays(tmp_path, "train", 6, 3)
    before = [one.open("train", tmp_path).fingerprint() for one in (ImageFolder(), ArrayFolder())]
    for one in (tmp_path / "a" / "000.jpg", tmp_path / "train_images.npy"):
        os.utime(one, ns=(1, 1))
    assert [one.open("train", tmp_path).fingerprint() for one in (ImageFolder(), ArrayFolder())] == before


def test_a_missing_file_changes_the_fingerprint_and_ends_nothing(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 2, "b": 3})
    source = ImageFolder(holdout=0).open("train", tmp_path)
    before = source.fingerprint()
    (tmp_path / "a" / "000.jpg").unlink()
    assert afresh(source).fingerprint() != before
    with pytest.raises(DataError, match=r"000.jpg: there is no such file"):
        source.picture(0)


def test_the_fingerprint_of_files_is_computed_once_and_anew_where_they_are_opened_anew(tmp_path: Path) -> None:
    class_folders(tmp_path, {"a": 12, "b": 8})
    part = ImageFolder(holdout=0.2).open("train", tmp_path)
    assert isinstance(part, Picked)
    before, data = part.fingerprint(), pickle.dumps(part)
    for one in (tmp_path / "a").iterdir():
        picture(300, 70, 50).save(one, "PNG")
    again = ImageFolder(holdout=0.2).open("train", tmp_path).fingerprint()
    assert part.fingerprint() == before != again
    assert again == afresh(part).fingerprint() == pickle.loads(data).fingerprint()
    assert part.fingerprint() == before


def test_pictures_of_every_kind_are_read_and_a_cut_one_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    exif = Pillow.Exif()
    exif[0x0112] = 6
    picture(1, 17, 11).save(folder / "0.jpg", exif=exif)
    for number, mode in enumerate(("CMYK", "L"), 1):
        picture(1, 17, 11).convert(mode).save(folder / f"{number}.jpg")
    for number, mode in enumerate(("P", "RGBA", "LA", "1"), 3):
        picture(1, 17, 11).convert(mode).save(folder / f"{number}.png")
    Pillow.fromarray(np.arange(187, dtype=np.uint16).reshape(11, 17) * 300).save(folder / "7.tif")
    picture(1, 170, 110).save(folder / "8.jpg")
    (folder / "8.jpg").write_bytes((folder / "8.jpg").read_bytes()[:900])
    source = ImageFolder(holdout=0).open("train", tmp_path)
    assert [source.picture(index).size for index in range(8)] == [(11, 17)] + [(17, 11)] * 7
    assert np.asarray(source.picture(7)).max() > 200
    with pytest.raises(DataError, match=r"8\.jpg: not a picture that can be read"):
        source.picture(8)


# ------------------------------------------------------------------------------------------------ arrays


@pytest.mark.parametrize("gray", [False, True])
def test_arrays_are_mapped_and_travel_as_their_path(tmp_path: Path, gray: bool) -> None:
    arrays(tmp_path, "train", 30, 3, gray)
    arrays(tmp_path, "test", 6, 3, gray)
    train, val, test = (ArrayFolder().open(split, tmp_path) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (27, 3, 6)
    assert np.bincount(val.labels).tolist() == [1, 1, 1]
    data = pickle.dumps(test)
    assert len(data) < 1000
    copy = pickle.loads(data)
    assert copy.fingerprint() == test.fingerprint()
    expected = np.load(tmp_path / "test_images.npy")[4]
    np.testing.assert_array_equal(np.asarray(copy.picture(4)), expected)
    assert copy.picture(4).mode == ("L" if gray else "RGB")
    assert copy.name(4) == f"{tmp_path / 'test_images.npy'}[4]"
    assert test.classes == ("0", "1", "2")


def test_every_pixel_of_an_array_is_in_its_fingerprint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_files, "PIECE", 700)  # several pieces, the last one short
    images = np.random.default_rng(0).integers(0, 256, (500, 5, 7), dtype=np.uint8)
    found = []
    for index in (None, *range(0, 500, 7)):
        changed = images.copy()
        if index is not None:
            changed[index, 4, 6] ^= 1
        np.save(tmp_path / "images.npy", changed)
        mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
        ways = [changed, mapped, np.asfortranarray(changed)]
        alike = {Arrays(one, np.zeros(500), ["a"], "noise").fingerprint() for one in ways}
        assert len(alike) == 1
        found += alike
    assert len(set(found)) == len(found)


def test_a_fingerprint_is_computed_once_and_anew_in_another_process(tmp_path: Path) -> None:
    arrays(tmp_path, "train", 6, 3)
    source = ArrayFolder(holdout=0).open("train", tmp_path)
    before, data = source.fingerprint(), pickle.dumps(source)
    np.save(tmp_path / "train_images.npy", np.load(tmp_path / "train_images.npy") // 2)
    assert source.fingerprint() == before != pickle.loads(data).fingerprint()


def test_arrays_may_bring_their_validation_split_and_names(tmp_path: Path) -> None:
    arrays(tmp_path, "train", 30, 3)
    arrays(tmp_path, "val", 7, 3)
    (tmp_path / "classes.json").write_text(json.dumps(["ant", "bee", "cat", "dog"]))
    train, val = (ArrayFolder().open(split, tmp_path) for split in ("train", "val"))
    assert (len(train), len(val)) == (30, 7)
    assert train.classes == val.classes == ("ant", "bee", "cat", "dog")
    assert train.name(3) == f"{tmp_path / 'train_images.npy'}[03]"
    with pytest.raises(DataError, match=r"there is no split 'test'. Add test_images.npy and test_labels.npy"):
        ArrayFolder().open("test", tmp_path)


def test_arrays_without_a_holdout_have_no_val(tmp_path: Path) -> None:
    arrays(tmp_path, "train", 30, 3)
    assert len(ArrayFolder(holdout=0).open("train", tmp_path)) == 30
    with pytest.raises(DataError, match=r"Use holdout=0.1, or add val_images.npy and val_labels.npy"):
        ArrayFolder(holdout=0).open("val", tmp_path)


@pytest.mark.parametrize(
    ("file", "array", "message"),
    [
        ("train_images.npy", None, "train_images.npy: there is no such file. Expected a folder with train_images.npy"),
        ("train_labels.npy", None, "train_labels.npy: there is no such file"),
        ("train_images.npy", np.zeros((30, 5, 7, 3), np.float32), r"shape \(30, 5, 7, 3\) and type float32. Store uint8"),
        ("train_images.npy", np.zeros((30, 3, 5, 7), np.uint8), r"shape \(30, 3, 5, 7\) and type uint8"),
        ("train_labels.npy", np.zeros((30, 3), np.int64), r"shape \(30, 3\) and type int64. Store one whole number"),
        ("train_labels.npy", np.zeros(30), r"shape \(30,\) and type float64"),
        ("train_labels.npy", np.arange(29), "29 labels for 30 pictures"),
        ("train_labels.npy", np.arange(30) - 1, r"label -1 at \[0\] is out of range. There are 29 classes"),
        ("train_labels.npy", np.array([{}] * 30), "not an array that can be read"),
    ],
)
def test_arrays_that_do_not_fit_say_why(tmp_path: Path, file: str, array: np.ndarray | None, message: str) -> None:
    arrays(tmp_path, "train", 30, 3)
    (tmp_path / file).unlink()
    if array is not None:
        np.save(tmp_path / file, array)
    with pytest.raises(DataError, match=message):
        ArrayFolder().open("train", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"classes.json: not JSON .* Store a list of class names"),
        ('["a", "a", "b"]', "not a list of different names"),
        ('["a", "b"]', r"label 2 at \[2\] is out of range. There are 2 classes"),
    ],
)
def test_class_names_that_do_not_fit_say_why(tmp_path: Path, text: str, message: str) -> None:
    arrays(tmp_path, "train", 30, 3)
    (tmp_path / "classes.json").write_text(text)
    with pytest.raises(DataError, match=message):
        ArrayFolder().open("train", tmp_path)


# ------------------------------------------------------------------------------------------------ tables


def table(root: Path, text: str) -> Path:
    for number in range(12):
        write(root / "pictures" / f"{number}.png", number)
    (root / "labels.csv").write_text(text, encoding="utf-8")
    return root / "labels.csv"


def test_a_table_says_where_pictures_are_and_what_they_show(tmp_path: Path) -> None:
    rows = [(9, "10", "train"), (3, "2", "train"), (5, "2", "valid"), (1, "10", "test"), (2, "2", "train")]
    text = "Split, Label ,filename\n" + "".join(f"{split},{label},pictures/{name}.png\n" for name, label, split in rows)
    file = table(tmp_path, "\ufeff" + text)
    train, val, test = (LabelTable().open(split, file) for split in ("train", "val", "test"))
    assert train.classes == val.classes == ("2", "10")
    assert train.labels.tolist() == [1, 0, 0]
    assert [number_of(train.picture(index)) for index in range(3)] == [9, 3, 2]
    assert [number_of(source.picture(0)) for source in (val, test)] == [5, 1]


def test_a_table_without_splits_keeps_a_part_of_each_class(tmp_path: Path) -> None:
    file = table(
        tmp_path, "image,class\n" + "".join(f"pictures/{n}.png,{'even' if n % 2 == 0 else 'odd'}\n" for n in range(12))
    )
    train, val = (LabelTable(holdout=0.34, seed=1).open(split, file) for split in ("train", "val"))
    assert np.bincount(val.labels).tolist() == [2, 2]
    assert len(train) == 8
    assert train.classes == ("even", "odd")
    with pytest.raises(DataError, match=r"no split 'test'. Add rows whose split is test"):
        LabelTable().open("test", file)
    with pytest.raises(DataError, match=r"Use holdout=0.1, or add rows whose split is val"):
        LabelTable(holdout=0).open("val", file)


def test_a_picture_may_be_listed_twice_to_weigh_more(tmp_path: Path) -> None:
    file = table(tmp_path, "path,label\npictures/1.png,a\npictures/1.png,a\npictures/2.png,b\n")
    assert len(LabelTable(holdout=0).open("train", file)) == 3


@pytest.mark.parametrize("spelled", ["pictures/{}.png", "./pictures/{}.png", "pictures/../pictures//{}.png", "links/{}.png"])
def test_a_picture_that_is_listed_twice_is_in_one_split_only(tmp_path: Path, spelled: str) -> None:
    (tmp_path / "links").symlink_to("pictures")
    paths = [form.format(n) for n in range(12) for form in ("pictures/{}.png", spelled)]
    file = table(tmp_path, "path,label\n" + "".join(f"{path},{'ab'[at % 4 // 2]}\n" for at, path in enumerate(paths)))
    train, val = (LabelTable(holdout=0.34, seed=1).open(split, file) for split in ("train", "val"))
    shown = [[number_of(source.picture(index)) for index in range(len(source))] for source in (train, val)]
    assert not set(shown[0]) & set(shown[1])
    assert [sorted(one) for one in shown] == [sorted(2 * list(set(one))) for one in shown]
    assert np.bincount(val.labels).tolist() == [4, 4]


def test_a_link_to_a_picture_is_that_picture(tmp_path: Path) -> None:
    file = table(tmp_path, "path,label,split\npictures/1.png,a,train\nagain.png,a,val\n")
    (tmp_path / "again.png").symlink_to(tmp_path / "pictures" / "1.png")
    with pytest.raises(DataError, match=r"csv:3: again\.png is a for val here, but a for train on line 2, as pictures/1"):
        LabelTable().open("train", file)


def test_rows_without_copies_are_split_as_ever(tmp_path: Path) -> None:
    text = "path,label\n" + "".join(f"pictures/{n}.png,{'ab'[n % 2]}\n" for n in range(12))
    val = LabelTable(holdout=0.34, seed=1).open("val", table(tmp_path, text))
    assert [number_of(val.picture(index)) for index in range(len(val))] == [2, 3, 5, 10]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"labels.csv:1: no column path or file or filename or image in its header \(empty\)"),
        ("path,kind\n", r"labels.csv:1: no column label or class in its header \(path, kind\)"),
        ("path,label\n\n", "labels.csv: no rows below the header"),
        ("path,label\npictures/1.png,a\npictures/2.png\n", "labels.csv:3: the label is empty"),
        ("path,label\npictures/1.png,a\n,b\n", "labels.csv:3: the path is empty"),
        ("path,label\npictures/1.png,a\npictures/77.png,b\n", "labels.csv:3: there is no file pictures/77.png"),
        ("path,label,split\npictures/1.png,a,trian\n", r"labels.csv:2: there is no split 'trian'. Did you mean 'train'\?"),
        ("path,label,split\npictures/1.png,a,test\n", "labels.csv: no row is for training"),
        ("path,label,split\npictures/1.png,a,train\npictures/2.png,b,val\n", "csv:3: the label b of val never occurs in train"),
        (
            "path,label\npictures/1.png,a\npictures/1.png,b\n",
            "csv:3: pictures/1.png is b for train here, but a for train on line 2. It is one picture: keep one of the two",
        ),
        (
            "path,label,split\npictures/1.png,a,train\n./pictures/1.png,a,val\n",
            "csv:3: ./pictures/1.png is a for val here, but a for train on line 2, as pictures/1.png. It is one picture",
        ),
    ],
)
def test_a_table_with_a_mistake_names_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        LabelTable().open("train", table(tmp_path, text))


def test_a_folder_or_bytes_are_no_table(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a folder. Give the file itself: a .csv file"):
        LabelTable().open("train", tmp_path)
    (tmp_path / "labels.csv").write_bytes(b"path,label\n\xff\xfe,1\n")
    with pytest.raises(DataError, match=r"not a CSV file that can be read .* Save it as UTF-8"):
        LabelTable().open("train", tmp_path / "labels.csv")


def test_labels_of_one_byte_need_no_names(tmp_path: Path) -> None:
    np.save(tmp_path / "train_images.npy", np.zeros((6, 4, 4), dtype=np.uint8))
    np.save(tmp_path / "train_labels.npy", np.array([0, 1, 2, 0, 1, 2], dtype=np.uint8))
    assert ArrayFolder(0.0).open("train", tmp_path).classes == ("0", "1", "2")


@pytest.mark.parametrize("images", [np.zeros((4, 8, 8)), np.zeros((4, 8, 8), np.float32), np.zeros((4, 8, 8), np.int64)])
def test_arrays_of_other_numbers_than_bytes_are_refused_at_once(images: np.ndarray) -> None:
    with pytest.raises(DataError, match=rf"mine: pictures of type {images.dtype}\. Give uint8 values, 0 to 255"):
        Arrays(images, np.zeros(4, int), ["a"], "mine")
