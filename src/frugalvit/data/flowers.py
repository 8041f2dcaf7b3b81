"""Oxford's 102 flowers (Nilsback and Zisserman 2008): 1,020 + 1,020 + 6,149 pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from frugalvit.data.downloads import Download, all_fetched, unpacked
from frugalvit.data.files import Files
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits

FOLDER = "flowers-102"
HOME = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
PICTURES = Download("102flowers.tgz", "52808999861908f626f3c1f4e79d11fa", (HOME + "102flowers.tgz",))
LABELS = Download("imagelabels.mat", "e0620be6f572b9609742df49c70aed4d", (HOME + "imagelabels.mat",))
SETS = Download("setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c", (HOME + "setid.mat",))


@dataclass(frozen=True)
class Flowers102:
    """Flowers-102, downloaded into root/flowers-102 if missing.

    Trained on "train", the splits are the official ones. On "train+val", as in DeiT's transfer results, there are 2,040 to
    train on, and "val" and "test" are both the official test split.
    """

    train: Literal["train", "train+val"] = "train"

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        root = needs(root, "a folder with flowers-102, or an empty one to download it into")
        return read(root, "" if root.name == FOLDER else FOLDER, self.official(split))

    def official(self, split: str) -> tuple[str, ...]:
        """The keys of setid.mat that make a split."""
        if self.train == "train":
            return ({"train": "trnid", "val": "valid", "test": "tstid"}[split],)
        return ("trnid", "valid") if split == "train" else ("tstid",)


def read(root: Path, inside: str, keys: tuple[str, ...]) -> Files:
    from scipy.io import loadmat  # type: ignore[import-untyped]
    from torchvision import datasets

    folder = root / inside
    pictures = [] if (folder / "jpg").is_dir() else [PICTURES]
    files = all_fetched([SETS, LABELS, *pictures], root, inside)
    sets, labels = loadmat(files[0], squeeze_me=True), loadmat(files[1], squeeze_me=True)["labels"].astype(np.int64) - 1
    for archive in files[2:]:
        unpacked(archive)
    numbers = np.concatenate([sets[key] for key in keys]).astype(np.int64)  # from 1
    names = [f"jpg/image_{number:05d}.jpg" for number in numbers]
    return Files(folder, names, labels[numbers - 1], datasets.Flowers102.classes)
