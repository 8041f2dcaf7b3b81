from __future__ import annotations

import hashlib
import json
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat
from tests.data.trees import class_folders, inaturalist, number_of, tiny_imagenet, write
from torchvision import datasets

from frugalvit.data import cifar, flowers
from frugalvit.data.cars import StanfordCars
from frugalvit.data.cifar import Cifar10, Cifar100
from frugalvit.data.downloads import Download, fetched, unpacked
from frugalvit.data.flowers import Flowers102
from frugalvit.data.imagenet import ImageNet, ImageNetReal, ImageNetV2
from frugalvit.data.inaturalist import INaturalist
from frugalvit.data.source import Source
from frugalvit.data.svhn import Svhn
from frugalvit.data.tiny_imagenet import TinyImageNet
from frugalvit.errors import DataError


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # for files of a server that is a folder here


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def numbers(source: Source) -> list[int]:
    return [number_of(source.picture(index)) for index in range(len(source))]


# ------------------------------------------------------------------------------------------------ downloads


@pytest.mark.usefixtures("online")
def test_mirrors_are_tried_in_order_until_one_has_the_right_bytes(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(b"right")
    (tmp_path / "bad").write_bytes(b"wrong")
    urls = tuple((tmp_path / name).as_uri() for name in ("missing", "bad", "good"))
    path = fetched(Download("file.bin", md5(tmp_path / "good"), urls), tmp_path / "new")
    assert path.read_bytes() == b"right"
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["file.bin"]


def test_what_is_there_is_not_downloaded_again(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"right")
    assert fetched(Download("file.bin", md5(tmp_path / "file.bin"), ()), tmp_path) == tmp_path / "file.bin"


@pytest.mark.usefixtures("online")
def test_where_no_server_answers_the_error_names_the_file_its_md5_and_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(b"wrong")
    urls = ((tmp_path / "bad").as_uri(), (tmp_path / "missing").as_uri())
    with pytest.raises(DataError) as caught:
        fetched(Download("file.bin", "0123", urls), tmp_path / "data")
    for words in ("file.bin (md5 0123)", "its md5 differs", "No such file", f"place it in {tmp_path / 'data'}"):
        assert words in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_where_downloads_are_forbidden_the_error_says_what_to_fetch_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "server"
    server.mkdir()
    for word in ("1", "yes", "ON", "true"):
        monkeypatch.setenv("HF_HUB_OFFLINE", word)
        (server / "file.bin").write_bytes(b"right")
        with pytest.raises(DataError) as caught:
            fetched(Download("file.bin", md5(server / "file.bin"), ((server / "file.bin").as_uri(),)), tmp_path / "data")
        assert "missing, and not to be downloaded (HF_HUB_OFFLINE is set). Fetch file.bin (md5 " in str(caught.value)
        assert str(caught.value).endswith(f"and place it in {tmp_path / 'data'}.")
        assert not (tmp_path / "data").exists()
    with pytest.raises(
        DataError, match=r"HF_HUB_OFFLINE is set.* setid\.mat .*imagelabels\.mat .*102flowers\.tgz .*place them in"
    ):
        Flowers102().open("train", tmp_path)
    for dataset in (Cifar10(), Cifar100(), Svhn()):
        with pytest.raises(DataError, match=r"HF_HUB_OFFLINE is set\)\. Fetch "):
            dataset.open("train", tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["server"]


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file.tgz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"file.tgz: cannot be unpacked .* Delete it and start again"):
        unpacked(tmp_path / "file.tgz")


# ------------------------------------------------------------------------------------------------ CIFAR and SVHN


def miniature_cifar(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """CIFAR-10 with 20 + 10 pictures, and torchvision's checksums to match. The archive of it."""
    folder = root / datasets.CIFAR10.base_folder
    folder.mkdir(parents=True)
    for name, count in (("data_batch_1", 20), ("test_batch", 10)):
        values = np.random.default_rng(count).integers(0, 256, (count, 3072), dtype=np.uint8)
        (folder / name).write_bytes(pickle.dumps({"data": values, "labels": [n % 10 for n in range(count)]}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {n}" for n in range(10)]}))
    monkeypatch.setattr(datasets.CIFAR10, "train_list", [["data_batch_1", md5(folder / "data_batch_1")]])
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", md5(folder / "test_batch")]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": md5(folder / "batches.meta")}
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    with tarfile.open(root / "archive.tgz", "w:gz") as file:
        file.add(folder, folder.name)
    return root / "archive.tgz"


def test_cifar_is_read_from_arrays_too(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("test", 20)):
        np.save(tmp_path / f"{split}_images.npy", np.full((count, 32, 32, 3), 7, dtype=np.uint8))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(count) % 10)
    assert len(Cifar10(holdout=0.25).open("train", tmp_path)) == 30
    assert len(Cifar10().open("test", tmp_path)) == 20
    with pytest.raises(DataError, match=r"10 classes, CIFAR-100 has 100"):
        Cifar100().open("train", tmp_path)


def test_cifar_is_read_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    miniature_cifar(tmp_path, monkeypatch)
    train, val, test = (Cifar10(holdout=0.5).open(split, tmp_path) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (10, 10, 10)
    assert np.bincount(val.labels).tolist() == [1] * 10
    assert test.classes[3] == "class 3"
    values = pickle.loads((tmp_path / "cifar-10-batches-py" / "test_batch").read_bytes())["data"][4]
    np.testing.assert_array_equal(np.asarray(test.picture(4)), values.reshape(3, 32, 32).transpose(1, 2, 0))
    assert test.name(4) == "cifar-10-batches-py/test[4]"
    inside = Cifar10().open("test", tmp_path / "cifar-10-batches-py")
    assert inside.fingerprint() == test.fingerprint()


@pytest.mark.usefixtures("online")
def test_cifar_is_downloaded_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = miniature_cifar(tmp_path / "server", monkeypatch)
    monkeypatch.setattr(cifar, "TEN", Download("cifar.tgz", md5(archive), (archive.as_uri(),)))
    (tmp_path / "data").mkdir()
    assert len(Cifar10().open("test", tmp_path / "data")) == 10
    (tmp_path / "data" / "cifar-10-batches-py" / "test_batch").write_bytes(b"damaged")
    assert len(Cifar10().open("test", tmp_path / "data")) == 10
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [["test_batch", "another"]])
    with pytest.raises(DataError, match=r"cifar-10-batches-py: .*Delete this folder and cifar.tgz, and start again"):
        Cifar10().open("test", tmp_path / "data")


def test_cifar_names_its_archive_where_no_server_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline = Download(cifar.HUNDRED.name, cifar.HUNDRED.md5, ((tmp_path / "offline").as_uri(),))
    monkeypatch.setattr(cifar, "HUNDRED", offline)
    with pytest.raises(DataError, match=r"Fetch cifar-100-python.tar.gz \(md5 eb9058c3a382ffc7106e4002c42a8d85\)"):
        Cifar100().open("train", tmp_path)
    with pytest.raises(DataError, match=r"--data: where is the data.*an empty one to download into"):
        Cifar10().open("train", None)


def test_the_official_address_is_the_last_resort() -> None:
    assert cifar.TEN.urls[-1] == "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
    assert cifar.HUNDRED.urls[-1] == "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz"


def test_svhn_is_read_from_disk_and_zero_is_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = {}
    for split, count in (("train", 40), ("test", 11)):
        file = tmp_path / f"{split}_32x32.mat"
        values = np.random.default_rng(count).integers(0, 256, (32, 32, 3, count), dtype=np.uint8)
        savemat(file, {"X": values, "y": (np.arange(count) % 10 + 1)[:, None]})
        official[split] = [(tmp_path / "offline").as_uri(), file.name, md5(file)]
    monkeypatch.setattr(datasets.SVHN, "split_list", official)
    train, val, test = (Svhn(holdout=0.25).open(split, tmp_path) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (30, 10, 11)
    assert test.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    np.testing.assert_array_equal(np.asarray(test.picture(10)), values[..., 10])
    (tmp_path / "test_32x32.mat").unlink()
    with pytest.raises(DataError, match=r"Fetch test_32x32.mat \(md5"):
        Svhn().open("test", tmp_path)


# ------------------------------------------------------------------------------------------------ flowers and cars


def test_flowers_have_official_splits_or_train_on_two_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "flowers-102"
    for number in range(1, 10):
        write(folder / "jpg" / f"image_{number:05d}.jpg", number)
    savemat(folder / "imagelabels.mat", {"labels": np.array([1, 2, 3, 1, 2, 3, 102, 2, 3], np.uint8)})
    savemat(folder / "setid.mat", {"trnid": np.array([9, 2]), "valid": np.array([4, 5, 6]), "tstid": np.array([1, 3, 7, 8])})
    for name, file in (("LABELS", "imagelabels.mat"), ("SETS", "setid.mat")):
        monkeypatch.setattr(flowers, name, Download(file, md5(folder / file), ()))
    splits = {split: Flowers102().open(split, tmp_path) for split in ("train", "val", "test")}
    assert {split: numbers(source) for split, source in splits.items()} == {
        "train": [9, 2],
        "val": [4, 5, 6],
        "test": [1, 3, 7, 8],
    }
    assert splits["test"].labels.tolist() == [0, 2, 101, 1]
    assert len(splits["test"].classes) == 102
    pooled = {split: Flowers102("train+val").open(split, folder) for split in ("train", "val", "test")}
    assert numbers(pooled["train"]) == [9, 2, 4, 5, 6]
    assert numbers(pooled["val"]) == numbers(pooled["test"]) == [1, 3, 7, 8]


def test_cars_are_read_from_disk_and_the_layout_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"cars_meta.mat: missing, and no longer to be downloaded. Expected .* cars_train/"):
        StanfordCars().open("train", tmp_path / "empty")
    folder = tmp_path / "stanford_cars"
    (folder / "devkit").mkdir(parents=True)
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": np.array(["Audi", "BMW", "Fiat"], dtype=object)})
    kind = [("bbox_x1", "O"), ("class", "O"), ("fname", "O")]
    for name, file, first, labels in (
        ("cars_train", "devkit/cars_train_annos.mat", 0, [3, 1, 1, 2, 3, 2]),
        ("cars_test", "cars_test_annos_withlabels.mat", 20, [2, 3, 1, 1]),
    ):
        for index in range(len(labels)):
            write(folder / name / f"{index:05d}.jpg", first + index)
        rows = [(7, label, f"{index:05d}.jpg") for index, label in enumerate(labels)]
        savemat(folder / file, {"annotations": np.array(rows, dtype=kind)})
    train, val, test = (StanfordCars(holdout=0.5).open(split, tmp_path) for split in ("train", "val", "test"))
    assert (len(train), len(val)) == (3, 3)
    assert sorted(numbers(train) + numbers(val)) == [0, 1, 2, 3, 4, 5]
    assert test.classes == ("Audi", "BMW", "Fiat")
    assert (test.labels.tolist(), numbers(test)) == ([1, 2, 0, 0], [20, 21, 22, 23])


# ------------------------------------------------------------------------------------------------ iNaturalist


def test_inaturalist_follows_its_annotation_files(tmp_path: Path) -> None:
    inaturalist(tmp_path, 2018)
    train, val, test = (INaturalist(2018).open(split, tmp_path) for split in ("train", "val", "test"))
    assert train.classes == val.classes == ("fern", "moss (5)", "moss (7)")
    assert (numbers(train), train.labels.tolist()) == ([0, 1, 2, 3], [0, 1, 2, 0])
    assert (numbers(val), val.labels.tolist()) == ([4, 5], [1, 2])
    assert test.fingerprint() == val.fingerprint()
    with pytest.raises(DataError, match=r"train2019.json: there is no such file. Download it from"):
        INaturalist(2019).open("train", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [{"image_id": 1, "category_id": 2}]}, "an annotation names the image 1, which"),
        ({"annotations": [{"image_id": 50, "category_id": 3}]}, "an annotation names the category 3, which"),
        ({"annotations": [{"image_id": 50}]}, r"not the expected lists of pictures \(KeyError\('category_id'\)\)"),
    ],
)
def test_annotations_that_do_not_fit_say_why(tmp_path: Path, change: dict, message: str) -> None:
    inaturalist(tmp_path, 2018)
    file = tmp_path / "train2018.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(DataError, match=message):
        INaturalist(2018).open("train", tmp_path)


def test_an_annotation_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    (tmp_path / "val2019.json").write_text('{"images": [')
    with pytest.raises(DataError, match=r"val2019.json: not JSON .* Download it from"):
        INaturalist(2019).open("test", tmp_path)


# ------------------------------------------------------------------------------------------------ Tiny ImageNet


def test_tiny_imagenet_reads_its_flat_validation_folder(tmp_path: Path) -> None:
    root = tmp_path / "tiny-imagenet-200"
    tiny_imagenet(root)
    train, val, test = (TinyImageNet().open(split, tmp_path) for split in ("train", "val", "test"))
    assert train.classes == val.classes == ("crane (n01)", "crane (n02)", "Egyptian cat")
    assert train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert (numbers(val), val.labels.tolist()) == ([101, 100, 102], [2, 1, 0])
    assert TinyImageNet().open("val", root).fingerprint() == test.fingerprint() == val.fingerprint()


def test_tiny_imagenet_reads_a_validation_folder_that_was_sorted(tmp_path: Path) -> None:
    tiny_imagenet(tmp_path / "a")
    for number, own in enumerate(("n01", "n02", "n03")):
        write(tmp_path / "a" / "val" / own / "x.JPEG", 200 + number)
    assert numbers(TinyImageNet().open("val", tmp_path / "a")) == [200, 201, 202]


def test_tiny_imagenet_says_what_is_missing(tmp_path: Path) -> None:
    root = tmp_path / "tiny"
    tiny_imagenet(root)
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn01\nval_1.JPEG\tn77\n")
    with pytest.raises(DataError, match=r"val_annotations.txt:2: not a picture's name and one of the ids"):
        TinyImageNet().open("val", root)
    (root / "wnids.txt").write_text("n01\nn02\nn09\n")
    with pytest.raises(DataError, match=r"train: no pictures for n09. Expected the folder tiny-imagenet-200"):
        TinyImageNet().open("train", root)
    (root / "words.txt").unlink()
    with pytest.raises(DataError, match=r"words.txt: there is no such file. Expected the folder"):
        TinyImageNet().open("train", root)


# ------------------------------------------------------------------------------------------------ ImageNet


WNIDS = ("n01", "n02", "n03")
FLAT = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 5)]


def imagenet(root: Path) -> None:
    """Training folders, and four validation pictures in one folder."""
    class_folders(root / "train", {"n03": 2, "n01": 3, "n02": 1})
    for number, name in enumerate(FLAT):
        write(root / "val" / name, 100 + number)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("val.txt", "".join(f"{name} {label}\n" for name, label in zip(FLAT, (2, 0, 0, 1), strict=True))),
        ("val.txt", "".join(f"val/{name} {own}\n" for name, own in zip(FLAT, ("n03", "n01", "n01", "n02"), strict=True))),
        (
            "LOC_val_solution.csv",
            "ImageId,PredictionString\n"
            + "".join(
                f"{name[:-5]},{own} 1 2 3 4 \n" for name, own in zip(FLAT[::-1], ("n02", "n01", "n01", "n03"), strict=True)
            ),
        ),
        ("ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt", "1\n3\n3\n2\n"),
    ],
)
def test_flat_validation_pictures_are_labeled_by_any_of_four_files(tmp_path: Path, file: str, text: str) -> None:
    imagenet(tmp_path)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    if "devkit" in file:
        rows = [(1, "n03"), (2, "n02"), (3, "n01"), (4, "n99")]
        synsets = np.array(rows, dtype=[("ILSVRC2012_ID", "O"), ("WNID", "O")])
        savemat((tmp_path / file).with_name("meta.mat"), {"synsets": synsets})
    val = ImageNet().open("val", tmp_path)
    assert (val.classes, val.labels.tolist()) == (WNIDS, [2, 0, 0, 1])
    assert numbers(val) == [100, 101, 102, 103]
    assert ImageNet().open("train", tmp_path).labels.tolist() == [0, 0, 0, 1, 2, 2]


def test_validation_pictures_may_lie_in_class_folders(tmp_path: Path) -> None:
    class_folders(tmp_path / "val", {"n02": 1, "n01": 2})
    assert ImageNet().open("test", tmp_path).labels.tolist() == [0, 0, 1]
    class_folders(tmp_path / "train", {"n01": 1, "n03": 2})
    with pytest.raises(DataError, match=r"val: its classes are not those of train \(missing: n03; extra: n02\)"):
        ImageNet().open("val", tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("other.txt", "", "val: pictures in one folder and no file that labels them. Expected a folder with train/<wnid>"),
        ("val.txt", f"{FLAT[0]} 1\n", rf"val.txt: no label for {FLAT[1]}, {FLAT[2]}, {FLAT[3]}"),
        ("val.txt", "".join(f"{name} 3\n" for name in FLAT), "val.txt: 3 is none of the 3 classes, counted from 0"),
        ("ILSVRC2012_validation_ground_truth.txt", "1\n", "meta.mat: missing; the numbers in ILSVRC2012_val"),
    ],
)
def test_labels_of_flat_pictures_that_do_not_fit_say_why(tmp_path: Path, file: str, text: str, message: str) -> None:
    imagenet(tmp_path)
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=message):
        ImageNet().open("val", tmp_path)


def test_imagenet_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train: no class folders here. Expected a folder with train/<wnid>"):
        ImageNet().open("train", tmp_path)
    with pytest.raises(DataError, match=r"val: no pictures here. Expected a folder with train/<wnid>"):
        ImageNet().open("val", tmp_path)
    write(tmp_path / "val" / "a.JPEG", 1)
    (tmp_path / "val.txt").write_text("a.JPEG 0\n")
    with pytest.raises(DataError, match=r"val.txt: numbers, and no folder train that says what they count"):
        ImageNet().open("val", tmp_path)
    (tmp_path / "val.txt").write_text("a.JPEG n07\n")
    assert ImageNet().open("val", tmp_path).classes == ("n07",)


def test_imagenet_v2_counts_its_folders_by_number(tmp_path: Path) -> None:
    write(tmp_path / "picture.jpg", 5)
    for number in range(1000):
        (tmp_path / "v2" / str(number)).mkdir(parents=True)
        (tmp_path / "v2" / str(number) / "a.jpeg").hardlink_to(tmp_path / "picture.jpg")
    source = ImageNetV2().open("test", tmp_path / "v2")
    assert source.labels.tolist() == list(range(1000))
    assert Path(source.name(10)).parent.name == "10"
    with pytest.raises(DataError, match=r"ImageNet-V2 has no split 'train'. Train on ImageNet"):
        ImageNetV2().open("train", tmp_path / "v2")
    (tmp_path / "v2" / "17" / "a.jpeg").unlink()
    (tmp_path / "v2" / "17").rmdir()
    with pytest.raises(DataError, match=r"not those of ImageNet-V2 \(missing: 17\)"):
        ImageNetV2().open("val", tmp_path / "v2")


def test_reassessed_labels_follow_the_names_of_the_pictures(tmp_path: Path) -> None:
    for number, (own, name) in enumerate(zip(("n03", "n01", "n02", "n01"), FLAT, strict=True)):
        write(tmp_path / "val" / own / name, 100 + number)
    (tmp_path / "real.json").write_text("[[2, 1], [], [1], [0]]")
    source = ImageNetReal().open("val", tmp_path)
    assert source.real == ((2, 1), (1,), (0,))
    assert source.labels.tolist() == [2, 1, 0]
    assert numbers(source) == [100, 102, 103]
    assert pickle.loads(pickle.dumps(source)).real == source.real
    with pytest.raises(DataError, match="the reassessed labels are of val"):
        ImageNetReal().open("train", tmp_path)
    (tmp_path / "real.json").write_text("[[2]]")
    with pytest.raises(DataError, match=r"real.json: labels for 1 pictures, but val has 4"):
        ImageNetReal().open("val", tmp_path)
    (tmp_path / "real.json").unlink()
    with pytest.raises(DataError, match=r"real.json: there is no such file. Download it from"):
        ImageNetReal().open("val", tmp_path)
