"""What happens to the folder that a data set is downloaded to."""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest
from tests.data.trees import arrays, class_folders, write

from frugalvit.data import cifar, flowers
from frugalvit.data.cifar import Cifar10, Cifar100
from frugalvit.data.downloads import Download, unpacked
from frugalvit.data.flowers import Flowers102
from frugalvit.data.own import own_pictures
from frugalvit.data.recognize import recognized
from frugalvit.data.source import DatasetPart
from frugalvit.data.svhn import Svhn
from frugalvit.errors import DataError

DOWNLOADED = [Cifar10(), Cifar100(), Svhn(), Flowers102()]


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody forbids to download, and nobody answers."""
    from torchvision.datasets import SVHN

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    url = (tmp_path / "nowhere").as_uri()
    for module, name in ((cifar, "TEN"), (cifar, "HUNDRED"), (flowers, "SETS"), (flowers, "LABELS"), (flowers, "PICTURES")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, Download(real.name, real.md5, (url,)))
    monkeypatch.setattr(SVHN, "split_list", {split: [url, f"{split}_32x32.mat", "0"] for split in ("train", "test")})


def contents(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def fill(root: Path, layout: str) -> None:
    if layout == "arrays":
        arrays(root, "train", 6, 2)
    elif layout == "table":
        root.mkdir()
        (root / "labels.csv").write_text("path,label\n")
    else:
        folder = {"plain": root, "splits": root / "train", "capitals": root / "Training"}.get(layout, root / "train")
        class_folders(folder, {"ant": 1, "bee": 1, "cat": 1})
        if layout == "deep":
            for name in ("ant", "bee", "cat"):
                (folder / name / "000.jpg").unlink()
                write(folder / name / "images" / "0.png", 1)


LAYOUTS = [
    ("plain", "ant/000.jpg", "ImageFolder"),
    ("splits", "train/ant/000.jpg", "ImageFolder"),
    ("capitals", "Training/ant/000.jpg", "ImageFolder"),
    ("deep", "train/ant/images/0.png", "ImageFolder"),
    ("table", "labels.csv", "LabelTable"),
]
ARRAYS = ("arrays", "train_images.npy", "ArrayFolder")  # from which CIFAR is read


@pytest.mark.parametrize(
    ("dataset", "layout", "example", "reader"),
    [(dataset, *one) for dataset in DOWNLOADED for one in LAYOUTS] + [(dataset, *ARRAYS) for dataset in (Svhn(), Flowers102())],
)
def test_nothing_is_downloaded_among_ones_own_pictures(
    tmp_path: Path, dataset: DatasetPart, layout: str, example: str, reader: str
) -> None:
    root = tmp_path / "pictures"
    fill(root, layout)
    before = contents(root)
    message = rf"pictures: holds pictures of your own \({example}, \.\.\.\).* Read them as {reader}, or give another folder"
    for split in ("train", "test"):
        with pytest.raises(DataError, match=message):
            dataset.open(split, root)
    assert contents(root) == before
    if layout != "table":
        assert type(recognized(root)).__name__ == reader


@pytest.mark.parametrize("dataset", DOWNLOADED, ids=lambda dataset: type(dataset).__name__)
def test_a_download_that_fails_leaves_no_folders(tmp_path: Path, dataset: DatasetPart) -> None:
    root = tmp_path / "downloads"
    root.mkdir()
    with pytest.raises(DataError, match=r"missing, and not to be downloaded \(file:"):
        dataset.open("train", root)
    assert not contents(root)


def test_data_sets_share_a_folder_of_downloads(tmp_path: Path) -> None:
    write(tmp_path / "flowers-102" / "jpg" / "image_00001.jpg", 1)
    write(tmp_path / "tiny-imagenet-200" / "train" / "n01" / "images" / "n01_0.JPEG", 2)
    write(tmp_path / "stanford_cars" / "cars_train" / "00001.jpg", 3)
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-python.tar.gz").touch()
    np.save(tmp_path / "notes.npy", np.zeros(3))
    assert own_pictures(tmp_path) is None
    assert own_pictures(tmp_path / "flowers-102") is None
    with pytest.raises(DataError, match="not to be downloaded"):
        Svhn().open("train", tmp_path)


def test_a_file_is_no_folder_to_download_to(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n")
    for dataset in DOWNLOADED:
        with pytest.raises(DataError, match=r"labels.csv: a file. Give a folder to download \S+ to"):
            dataset.open("train", tmp_path / "labels.csv")


def test_an_archive_that_is_cut_is_not_unpacked_in_part(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path / "server" / "jpg" / f"{number}.jpg", number)
    with tarfile.open(tmp_path / "whole.tgz", "w:gz") as file:
        file.add(tmp_path / "server" / "jpg", "jpg")
    data = (tmp_path / "whole.tgz").read_bytes()
    for name, length in (("cut", len(data) // 2), ("good", len(data))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file.tgz").write_bytes(data[:length])
    with pytest.raises(DataError, match=r"file.tgz: cannot be unpacked"):
        unpacked(tmp_path / "cut" / "file.tgz")
    assert contents(tmp_path / "cut") == ["file.tgz"]
    (tmp_path / "good" / "jpg").mkdir()
    (tmp_path / "good" / "jpg" / "0.jpg").write_text("damaged")
    unpacked(tmp_path / "good" / "file.tgz")
    assert len(contents(tmp_path / "good")) == 42
    assert (tmp_path / "good" / "jpg" / "0.jpg").read_bytes() == (tmp_path / "server" / "jpg" / "0.jpg").read_bytes()
