"""Which data set lies below a path."""

from __future__ import annotations

from pathlib import Path

from frugalvit.data.arrays import ArrayFolder
from frugalvit.data.cars import StanfordCars
from frugalvit.data.cifar import Cifar10, Cifar100
from frugalvit.data.files import folders_in, pictures_in
from frugalvit.data.flowers import Flowers102
from frugalvit.data.folder import ImageFolder
from frugalvit.data.imagenet import ImageNet, ImageNetV2
from frugalvit.data.inaturalist import INaturalist
from frugalvit.data.source import DatasetPart, needs
from frugalvit.data.svhn import Svhn
from frugalvit.data.table import LabelTable
from frugalvit.data.tiny_imagenet import TinyImageNet
from frugalvit.errors import DataError

MARKS: dict[str, DatasetPart] = {  # a file or folder that only this data set has
    "train_images.npy": ArrayFolder(),
    "wnids.txt": TinyImageNet(),
    "tiny-imagenet-200": TinyImageNet(),
    "train2018.json": INaturalist(2018),
    "train2019.json": INaturalist(2019),
    "cifar-10-batches-py": Cifar10(),
    "cifar-100-python": Cifar100(),
    "train_32x32.mat": Svhn(),
    "flowers-102": Flowers102(),
    "stanford_cars": StanfordCars(),
}
LAYOUTS = (
    "train/<class>/*.jpg and val/<class>/*.jpg; or <class>/*.jpg; or a .csv file with the columns path and label; or "
    "train_images.npy and train_labels.npy; or an unpacked public data set"
)


def recognized(root: Path) -> DatasetPart:
    """The data set that lies at `root`, by the names of its files alone."""
    needs(root, LAYOUTS)
    if root.is_file():
        if root.suffix.lower() == ".csv":
            return LabelTable()
        raise DataError(f"a single file, and no table (.csv) of pictures and labels. Expected {LAYOUTS}.", path=str(root))
    for mark, dataset in MARKS.items():
        if (root / mark).is_file() or ((root / mark).is_dir() and any((root / mark).iterdir())):
            return dataset
    folders = folders_in(root)
    if "999" in folders and len(folders) == 1000:
        return ImageNetV2()
    if pictures_in(root / "val") and any(is_wordnet_id(name) for name in folders_in(root / "train")):
        return ImageNet()
    if folders:
        return ImageFolder()
    tables = sorted(root.glob("*.csv"))
    hint = f" Give the table itself: {tables[0]}." if tables else ""
    alone = " Pictures without class folders have no labels." if pictures_in(root) else ""
    raise DataError(f"no data set that is known.{alone}{hint} Expected {LAYOUTS}.", path=str(root))


def is_wordnet_id(name: str) -> bool:
    return len(name) == 9 and name[0] == "n" and name[1:].isdecimal()
