"""Miniature data sets on disk. Every picture is different, so that a copy is one on purpose."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image as Pillow


def picture(number: int, width: int = 7, height: int = 5) -> Pillow.Image:
    """A picture whose first pixel tells its number."""
    image_HWC = np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image_HWC[0, 0] = number % 256, number // 256, 0
    return Pillow.fromarray(image_HWC)


def number_of(found: Pillow.Image) -> int:
    low, high, _ = found.convert("RGB").getpixel((0, 0))
    return low + 256 * high


def write(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(number).save(path, "PNG")  # whatever the name says: lossless


def class_folders(root: Path, counts: dict[str, int], first: int = 0) -> int:
    """root/<class>/<n>.jpg; the next free number."""
    for name, count in counts.items():
        for index in range(count):
            write(root / name / f"{index:03d}.jpg", first)
            first += 1
    return first


def arrays(root: Path, split: str, count: int, classes: int, gray: bool = False) -> None:
    """Labels go round, so that every class has its share."""
    root.mkdir(parents=True, exist_ok=True)
    shape = (count, 5, 7) if gray else (count, 5, 7, 3)
    np.save(root / f"{split}_images.npy", np.random.default_rng(count).integers(0, 256, shape, dtype=np.uint8))
    np.save(root / f"{split}_labels.npy", np.arange(count) % classes)


def tiny_imagenet(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "wnids.txt").write_text("n03\nn01\nn02\n")
    (root / "words.txt").write_text("n01\tcrane\nn02\tcrane\nn03\tEgyptian cat\nn04\tunused\n")
    for label, own in enumerate(("n01", "n02", "n03")):
        for index in range(4):
            write(root / "train" / own / "images" / f"{own}_{index}.JPEG", 10 * label + index)
    rows = [("val_1.JPEG", "n02"), ("val_0.JPEG", "n03"), ("val_2.JPEG", "n01")]
    for index, (name, _) in enumerate(rows):
        write(root / "val" / "images" / name, 100 + index)
    text = "".join(f"{name}\t{own}\t0\t0\t63\t63\n" for name, own in rows)
    (root / "val" / "val_annotations.txt").write_text(text)


def inaturalist(root: Path, year: int) -> None:
    categories = [{"id": 7, "name": "moss"}, {"id": 2, "name": "fern"}, {"id": 5, "name": "moss"}]
    for split, numbers in (("train", [0, 1, 2, 3]), ("val", [4, 5])):
        images = [{"id": 50 - number, "file_name": f"train_val{year}/Plantae/{number}.jpg"} for number in numbers]
        annotations = [{"image_id": 50 - number, "category_id": (2, 5, 7)[number % 3]} for number in numbers]
        for number in numbers:
            write(root / f"train_val{year}" / "Plantae" / f"{number}.jpg", number)
        data = {"images": images, "annotations": annotations[::-1], "categories": categories}
        (root / f"{split}{year}.json").write_text(json.dumps(data))
