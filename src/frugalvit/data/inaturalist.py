"""iNaturalist 2018 and 2019 (Van Horn et al. 2018), by their annotation files: torchvision's reader ignores the splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from frugalvit.data.files import Files, json_in, unique_names
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.errors import DataError


@dataclass(frozen=True)
class INaturalist:
    """iNaturalist: root/train2018.json, root/val2018.json and the pictures below root, as they name them (train_val2018/...).

    DeiT counts 437,513 + 24,426 pictures of 8,142 classes in 2018, 265,240 + 3,003 of 1,010 in 2019. Labels follow the ids of
    the categories. "val" and "test" are both the official validation split.
    """

    year: Literal[2018, 2019]

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        names = f"train{self.year}.json and val{self.year}.json"
        root = needs(root, f"a folder with {names} and the folder train_val{self.year}")
        file = root / f"{'train' if split == 'train' else 'val'}{self.year}.json"
        return read(root, file)


def read(root: Path, file: Path) -> Files:
    found = json_in(file, "Download it from https://github.com/visipedia/inat_comp")
    try:
        ids = sorted(category["id"] for category in found["categories"])
        words = {category["id"]: str(category.get("name", category["id"])) for category in found["categories"]}
        files = {image["id"]: image["file_name"] for image in found["images"]}
        pairs = [(one["image_id"], one["category_id"]) for one in found["annotations"]]
    except (KeyError, TypeError) as error:
        raise DataError(f"not the expected lists of pictures ({error!r}). Download it again.", path=str(file)) from error
    labels = {own: label for label, own in enumerate(ids)}
    for image, category in pairs:
        if image not in files or category not in labels:
            kind, own = ("image", image) if image not in files else ("category", category)
            raise DataError(f"an annotation names the {kind} {own}, which the file does not list.", path=str(file))
    pairs.sort(key=lambda pair: files[pair[0]])
    classes = unique_names([words[own] for own in ids], [str(own) for own in ids])
    return Files(root, [files[image] for image, _ in pairs], [labels[category] for _, category in pairs], classes)
