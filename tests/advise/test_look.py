"""Facts about folders, tables and arrays that are made here."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from frugalvit.advise.facts import Facts
from frugalvit.advise.look import LOOKED, dataset_at, look
from frugalvit.errors import DataError, SpecError


def picture(path: Path, width: int = 40, height: int = 30, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(len(str(path)) + width)
    image_HWC = draw.integers(0, 256, (height, width, 3), dtype=np.uint8)
    Pillow.fromarray(image_HWC).convert(mode).save(path)


def folder(root: Path, counts: dict[str, int], **size: int) -> Path:
    for name, count in counts.items():
        for number in range(count):
            picture(root / name / f"{number:03d}.png", **size)
    return root


def seen(data: Path | None, name: str = "") -> Facts:
    dataset = dataset_at(data, name)
    return look(dataset, data, dataset.open("train", data))


def arrays(root: Path, count: int, side: int, classes: int) -> Path:
    """Black pictures in sparse files, as many as one likes."""
    root.mkdir()
    shape = (count, side, side, 3)
    np.lib.format.open_memmap(root / "train_images.npy", mode="w+", dtype=np.uint8, shape=shape).flush()
    np.save(root / "train_labels.npy", np.arange(count) % classes)
    return root


def test_a_folder_a_class_is_counted_and_its_pictures_are_looked_at(tmp_path: Path) -> None:
    found = seen(folder(tmp_path / "pets", {"cat": 20, "dog": 10}))
    assert found == Facts(
        place=str(tmp_path / "pets"),
        dataset="ImageFolder",
        known="",
        pictures=27,
        whole=30,
        held=3,
        classes=2,
        least=9,
        most=18,
        side=30,
        shortest=30,
        longest=40,
        sizes=1,
        gray=0,
        looked=27,
    )
    assert found.uneven == 2


def test_mixed_sizes_gray_and_unreadable_pictures_are_seen(tmp_path: Path) -> None:
    root = tmp_path / "odd"
    for number in range(4):
        picture(root / "train/a" / f"{number}.jpg", 64, 48)
        picture(root / "train/b" / f"{number}.png", 20 + 10 * number, 90, "L")
    picture(root / "train/b/rgb.png", 50, 50)
    Pillow.open(root / "train/b/0.png").convert("RGB").save(root / "train/b/gray_in_color.png")
    (root / "train/a/broken.jpg").write_bytes((root / "train/a/0.jpg").read_bytes()[:300])
    (root / "train/b/text.png").write_text("no picture")
    folder(root / "val", {"a": 2, "b": 3})
    found = seen(root)
    assert (found.pictures, found.whole, found.held) == (12, 12, 5)
    assert found.sizes == 6
    assert (found.side, found.shortest, found.longest) == (48, 20, 90)
    assert found.gray == 5
    assert [Path(name).name for name in found.unreadable] == ["broken.jpg", "text.png"]
    assert found.looked == 12


def test_uneven_classes_are_seen(tmp_path: Path) -> None:
    found = seen(folder(tmp_path / "uneven", {"many": 60, "few": 3}))
    assert (found.least, found.most) == (2, 54)
    assert found.uneven == 27


def test_a_table_is_looked_at(tmp_path: Path) -> None:
    folder(tmp_path / "files", {"x": 6})
    rows = [f"files/x/{number:03d}.png,{'odd' if number % 2 else 'even'}" for number in range(6)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    found = seen(tmp_path / "labels.csv")
    assert (found.dataset, found.classes, found.whole) == ("LabelTable", 2, 6)


@pytest.mark.parametrize(
    ("count", "side", "classes", "known"),
    [
        (50_000, 32, 10, "cifar10"),
        (50_000, 32, 100, "cifar100"),
        (50_000, 32, 11, ""),
        (50_000, 33, 10, ""),
        (49_999, 32, 10, ""),
    ],
)
def test_cifar_in_arrays_is_known_by_its_numbers(tmp_path: Path, count: int, side: int, classes: int, known: str) -> None:
    found = seen(arrays(tmp_path / "arrays", count, side, classes))
    assert (found.dataset, found.known, found.whole, found.classes) == ("ArrayFolder", known, count, classes)
    assert found.looked == LOOKED


def test_the_digits_need_no_path() -> None:
    found = seen(None, "Digits")
    assert (found.place, found.dataset, found.known) == ("", "Digits", "digits")
    assert (found.pictures, found.held, found.classes, found.side) == (1297, 500, 10, 8)
    assert found.gray == LOOKED


def test_a_data_set_keeps_what_was_said_of_it(tmp_path: Path) -> None:
    found = seen(folder(tmp_path / "pets", {"cat": 20, "dog": 20}), "ImageFolder(holdout=0.5)")
    assert found.dataset == "ImageFolder(holdout=0.5)"
    assert (found.pictures, found.held) == (20, 20)


def wordnet(root: Path, each: int, names: tuple[str, ...] = ("train", "val")) -> Path:
    """1,000 classes of links to one picture."""
    picture(root.parent / "one.jpg", 500, 375)
    for split in names:
        for number in range(1000):
            own = root / split / f"n{10_000_000 + number}"
            own.mkdir(parents=True)
            for place in range(each if split == "train" else 1):
                (own / f"{place}.JPEG").symlink_to(root.parent / "one.jpg")
    return root


def test_imagenet_in_folders_is_known_by_its_classes_and_links_are_followed(tmp_path: Path) -> None:
    found = seen(wordnet(tmp_path / "imagenet", 2))
    assert (found.known, found.dataset) == ("imagenet", "ImageFolder")
    assert (found.pictures, found.held, found.classes) == (2000, 1000, 1000)
    assert (found.looked, found.side, found.sizes) == (LOOKED, 375, 1)


def test_imagenet_without_its_val_folder_is_a_folder_like_any_other(tmp_path: Path) -> None:
    found = seen(wordnet(tmp_path / "imagenet", 2, ("train",)))
    assert (found.known, found.pictures, found.held) == ("", 1000, 1000)


@pytest.mark.slow
def test_a_million_pictures_are_looked_at_in_a_minute(tmp_path: Path) -> None:
    root = wordnet(tmp_path / "imagenet", 1010)
    began = time.perf_counter()
    found = seen(root)
    assert time.perf_counter() - began < 60
    shutil.rmtree(root)  # pytest would keep it for a while
    assert (found.known, found.pictures, found.looked) == ("imagenet", 1_010_000, LOOKED)


# ------------------------------------------------------------------------------------------------ what cannot be advised on


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: there is no such file or folder\. Expected train/<class>"):
        seen(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"digits: there is no such file .* that come along: --dataset Digits"):
        seen(tmp_path / "digits")
    with pytest.raises(DataError, match=r"--data: which pictures\? Say --data PATH, or --dataset Digits"):
        seen(None)
    with pytest.raises(DataError, match=r"--dataset\.Digits: the digits come with the package"):
        seen(tmp_path, "Digits")
    with pytest.raises(SpecError, match=r"--dataset: .*Did you mean 'Digits'"):
        seen(None, "Digit")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no data set that is known"):
        seen(tmp_path)


def test_one_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"all pictures are of one class, and there must be two to tell apart"):
        seen(folder(tmp_path / "one", {"cat": 5}))


def test_pictures_of_which_none_can_be_read_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "bad" / name).mkdir(parents=True)
        for number in range(3):
            (tmp_path / "bad" / name / f"{number}.jpg").write_text("no picture")
    with pytest.raises(DataError, match=r"none of 4 pictures can be read, the first being .*jpg"):
        seen(tmp_path / "bad")
