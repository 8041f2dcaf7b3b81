"""Street View House Numbers (Netzer et al. 2011): 73,257 + 26,032 pictures of 32 x 32."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frugalvit.data.arrays import Arrays
from frugalvit.data.downloads import Download, fetched
from frugalvit.data.source import SPLITS, Source, needs, refuse_other_splits
from frugalvit.data.split import held_out, refuse_impossible_share


@dataclass(frozen=True)
class Svhn:
    """SVHN's cropped digits, without the extra set, downloaded if missing. `holdout` of the training pictures are val."""

    holdout: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_impossible_share(self.holdout, "holdout")

    def open(self, split: str, root: Path | None) -> Source:
        refuse_other_splits(split, SPLITS)
        from torchvision.datasets import SVHN

        official = "test" if split == "test" else "train"
        url, name, md5 = SVHN.split_list[official]
        root = needs(root, f"a folder with {name}, or an empty one to download it into")
        fetched(Download(name, md5, (url,)), root)
        found = SVHN(root, official)
        images_NHWC = np.ascontiguousarray(found.data.transpose(0, 2, 3, 1))
        source = Arrays(images_NHWC, found.labels, [str(digit) for digit in range(10)], f"svhn/{official}")
        return source if split == "test" else held_out(source, split, self.holdout, self.seed, "evaluate on test")
