"""What happens to a batch on the device before the model sees it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from frugalvit.data.augment import ResizedCrop
from frugalvit.data.device.draws import uniform
from frugalvit.data.device.erase import erase
from frugalvit.data.device.frame import DeviceResizedCrop
from frugalvit.data.device.mix import mix, rows_of
from frugalvit.data.device.mixed import CropOfMany
from frugalvit.data.device.pipeline import part_of_pipeline, pipeline
from frugalvit.data.device.size import MapSize
from frugalvit.data.finish import normalize
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.randomness import Stream
from frugalvit.data.store_device import ManySizes, OnDevice, OneSize
from frugalvit.training.recipe import Recipe


class Prepared(nn.Module):
    """From bytes to what the model takes: augmented where the host does not, normalized, erased and mixed, by draws of a key.

    `drawn` counts the draws of the whole augmentation. Pictures that differ in size are cropped by the first of them: here
    where the device keeps them, before they come here where it decodes them.
    """

    def __init__(self, recipe: Recipe, preprocess: Preprocess, kept: OnDevice | None, rows: int):
        super().__init__()
        assert recipe.model.classes is not None
        self.kept, self.preprocess, self.rows = kept, preprocess, rows
        self.augment: Any = None
        self.crop: CropOfMany | None = None
        self.drawn = 0
        size, (first, *rest) = (preprocess.height, preprocess.width), recipe.data.augment.steps
        if isinstance(kept, OneSize):
            _, channels, height, width = kept.image_NCHW.shape
            self.augment = pipeline(recipe.data.augment, MapSize(height, width, channels), size)
            self.drawn = self.augment.draws
        elif isinstance(kept, ManySizes) or recipe.path == "decoded":
            assert isinstance(first, ResizedCrop)
            self.augment = part_of_pipeline(rest, MapSize(*size, len(preprocess.mean)), size)
            self.drawn = DeviceResizedCrop.draws + self.augment.draws
        if isinstance(kept, ManySizes):
            assert isinstance(first, ResizedCrop)
            self.crop = CropOfMany(first, kept, size)
        self.erase = None if recipe.data.erase is None else erase(recipe.data.erase)
        self.mix = mix(recipe.data.mix, recipe.model.classes, 0.0)

    def forward(
        self, image_BCHW: Tensor, index_B: Tensor, label_B: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(image_BCHW, target_BC, draws_RB of the model); the given pictures count only where none are kept."""
        if self.augment is not None:
            draws_BK = uniform(key, Stream.AUGMENT, (len(index_B), self.drawn))
            crops_BK, draws_BK = draws_BK.split((self.drawn - self.augment.draws, self.augment.draws), 1)
            if self.crop is not None:
                image_BCHW = self.crop(index_B, crops_BK)
            elif isinstance(self.kept, OneSize):
                image_BCHW = self.kept.image_NCHW[index_B]
            image_BCHW = self.augment(image_BCHW, draws_BK)
        image_BCHW = normalize(image_BCHW, self.preprocess.mean, self.preprocess.std)
        if self.erase is not None:
            draws_BK = uniform(key, Stream.ERASE, (len(index_B), self.erase.draws))
            image_BCHW = self.erase(image_BCHW, draws_BK, key)
        draws_RK = uniform(key, Stream.MIX, (rows_of(self.mix, len(index_B)), max(self.mix.draws, 1)))
        image_BCHW, target_BC = self.mix(image_BCHW, label_B, draws_RK)
        return image_BCHW, target_BC, uniform(key, Stream.DEPTH, (self.rows, len(index_B))) if self.rows else None
