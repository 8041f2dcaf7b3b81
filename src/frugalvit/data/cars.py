"""Stanford Cars (Krause et al. 2013): 8,144 + 8,041 pictures of 196 models."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from frugalvit.data.files import Files
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.data.split import held_out, refuse_impossible_share
from frugalvit.errors import DataError

LAYOUT = (
    "a folder with stanford_cars, which holds cars_train/*.jpg, cars_test/*.jpg, devkit/cars_meta.mat, "
    "devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat"
)


@dataclass(frozen=True)
class StanfordCars:
    """Stanford Cars, from disk: its home no longer offers it. `holdout` of the training pictures, stratified, are val."""

    holdout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_share(self.holdout, "holdout")

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        root = needs(root, LAYOUT)
        folder = root if root.name == "stanford_cars" else root / "stanford_cars"
        if split == "test":
            return read(folder, "cars_test", folder / "cars_test_annos_withlabels.mat")
        source = read(folder, "cars_train", folder / "devkit" / "cars_train_annos.mat")
        return held_out(source, split, self.holdout, self.seed, "evaluate on test")


def read(folder: Path, pictures: str, annotations: Path) -> Files:
    from scipy.io import loadmat  # type: ignore[import-untyped]

    meta = folder / "devkit" / "cars_meta.mat"
    for path in (meta, annotations, folder / pictures):
        if not path.exists():
            raise DataError(f"missing, and no longer to be downloaded. Expected {LAYOUT}.", path=str(path))
    rows = loadmat(annotations, squeeze_me=True)["annotations"]
    classes = [str(name) for name in loadmat(meta, squeeze_me=True)["class_names"]]
    names = [f"{pictures}/{name}" for name in rows["fname"]]
    return Files(folder, names, [int(number) - 1 for number in rows["class"]], classes)
