"""ImageNet-1k and two other sets of labels and pictures for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frugalvit.data.files import Files, folders_in, from_class_folders, json_in, listed, pictures_in, refuse_other_classes
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.data.split import NoSplit, Picked
from frugalvit.errors import DataError

GROUND_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
LAYOUT = (
    "a folder with train/<wnid>/* and val/<wnid>/*, or val/* and one of val.txt, LOC_val_solution.csv "
    f"or {GROUND_TRUTH} with meta.mat beside it"
)


@dataclass(frozen=True)
class ImageNet:
    """ImageNet-1k (ILSVRC 2012), classes sorted by WordNet id, as in all published weights. "val" and "test" are its val.

    Accepted below root: train/<wnid>/*, and val/<wnid>/*, or all of val's pictures directly in val/ together with one of
    - val.txt: lines "<file> <wnid>" or "<file> <number>", the number counted from 0 in sorted order (Caffe's file);
    - LOC_val_solution.csv: Kaggle's, lines "<file without ending>,<wnid> ...";
    - ILSVRC2012_validation_ground_truth.txt and meta.mat, in root or in ILSVRC2012_devkit_t12/data: the official kit, whose
      numbers follow an order of its own.
    """

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        root = needs(root, LAYOUT)
        ids = folders_in(root / "train")
        if split == "train":
            if not ids:
                raise NoSplit(f"no class folders here. Expected {LAYOUT}.", path=str(root / "train"))
            return from_class_folders(root / "train", ids, ids)
        own = folders_in(root / "val")
        if not own:
            return flat(root, ids)
        if ids:
            refuse_other_classes(own, ids, str(root / "val"), "train")
        return from_class_folders(root / "val", own, own)


def flat(root: Path, ids: list[str]) -> Files:
    """Pictures directly in val/, and a file that labels them."""
    names = pictures_in(root / "val")
    if not names:
        raise DataError(f"no pictures here. Expected {LAYOUT}.", path=str(root / "val"))
    file, words = labeled(root, names)
    if not ids and all(word.isdecimal() for word in words):
        raise DataError("numbers, and no folder train that says what they count. Add train/<wnid>.", path=str(file))
    ids = ids or sorted(set(words))
    places = {own: place for place, own in enumerate(ids)} | {str(place): place for place in range(len(ids))}
    unknown = [word for word in words if word not in places]
    if unknown:
        raise DataError(f"{unknown[0]} is none of the {len(ids)} classes, counted from 0. Expected {LAYOUT}.", path=str(file))
    return Files(root / "val", names, [places[word] for word in words], ids)


def labeled(root: Path, names: list[str]) -> tuple[Path, list[str]]:
    """The file that labels the pictures of val, and the label (an id or a number) of each."""
    readers: dict[str, Callable[[Path, list[str]], list[str]]] = {
        "val.txt": from_lines,
        "LOC_val_solution.csv": from_kaggle,
        GROUND_TRUTH: from_kit,
    }
    for folder in (root, root / "ILSVRC2012_devkit_t12" / "data"):
        for file, reader in readers.items():
            if (folder / file).is_file():
                return folder / file, reader(folder / file, names)
    raise DataError(f"pictures in one folder and no file that labels them. Expected {LAYOUT}.", path=str(root / "val"))


def from_lines(file: Path, names: list[str]) -> list[str]:
    rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    found = {Path(row[0]).name: row[1] for row in rows if len(row) > 1}
    return looked_up(file, names, found)


def from_kaggle(file: Path, names: list[str]) -> list[str]:
    rows = [line.replace(",", " ").split() for line in file.read_text(encoding="utf-8").splitlines()[1:]]
    found = {row[0]: row[1] for row in rows if len(row) > 1}
    return looked_up(file, [Path(name).stem for name in names], found)


def looked_up(file: Path, names: list[str], found: dict[str, str]) -> list[str]:
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"no label for {listed(missing)}. Download it again.", path=str(file))
    return [found[name] for name in names]


def from_kit(file: Path, names: list[str]) -> list[str]:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    meta = file.with_name("meta.mat")
    if not meta.is_file():
        raise DataError(f"missing; the numbers in {file.name} follow its order. Copy it from the kit.", path=str(meta))
    synsets = loadmat(meta, squeeze_me=True)["synsets"]
    ids = {int(number): str(own) for number, own in zip(synsets["ILSVRC2012_ID"], synsets["WNID"], strict=True)}
    numbers = file.read_text(encoding="utf-8").split()
    if len(numbers) != len(names):
        raise DataError(f"{len(numbers)} labels for {len(names)} pictures in val. Unpack both again.", path=str(file))
    return [ids[int(number)] for number in numbers]


@dataclass(frozen=True)
class ImageNetV2:
    """ImageNet-V2 (Recht et al. 2019): root/0 to root/999, by number. Only for evaluation: "val" and "test" are all of it."""

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        root = needs(root, "a folder with the folders 0 to 999")
        if split == "train":
            raise NoSplit("ImageNet-V2 has no split 'train'. Train on ImageNet, and evaluate here.", path=str(root))
        expected = [str(number) for number in range(1000)]  # not as text, where 10 comes before 2
        refuse_other_classes(sorted(folders_in(root), key=lambda name: (len(name), name)), expected, str(root), "ImageNet-V2")
        return from_class_folders(root, expected, expected)


@dataclass(frozen=True)
class ImageNetReal:
    """ImageNet's validation pictures with reassessed labels (Beyer et al. 2020): those of `ImageNet`, and root/real.json."""

    def open(self, split: str, root: Path | None) -> RealLabels:
        refuse_other_splits(split, SPLITS)
        if split == "train":
            raise NoSplit("the reassessed labels are of val. Train on ImageNet, and evaluate here.", path="split")
        source = ImageNet().open("val", root)
        file = needs(root, LAYOUT) / "real.json"
        real = json_in(file, "Download it from https://github.com/google-research/reassessed-imagenet")
        if len(real) != len(source):
            raise DataError(f"labels for {len(real)} pictures, but val has {len(source)}. Unpack both again.", path=str(file))
        by_name = sorted(range(len(source)), key=lambda index: Path(source.name(index)).name)  # the order of the file
        pairs = [(index, tuple(labels)) for index, labels in zip(by_name, real, strict=True) if labels]
        return RealLabels(source, pairs)


class RealLabels(Picked):
    """Pictures with at least one reassessed label: `real` has all of each, `labels` the first."""

    def __init__(self, source: Source, pairs: list[tuple[int, tuple[int, ...]]]):
        super().__init__(source, np.array([index for index, _ in pairs], dtype=np.int64))
        self.real = tuple(labels for _, labels in pairs)
        self.labels = np.array([labels[0] for labels in self.real], dtype=np.int64)
