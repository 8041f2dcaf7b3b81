"""What happens to a batch on the device before the model sees it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from frugalvit.data.device.draws import uniform
from frugalvit.data.device.erase import erase
from frugalvit.data.device.frame import DeviceResizedCrop
from frugalvit.data.device.mix import mix, rows_of
from frugalvit.data.device.pipeline import part_of_pipeline, pipeline
from frugalvit.data.device.size import MapSize
from frugalvit.data.finish import normalize
from frugalvit.data.preprocess import Preprocess
from frugalvit.data.randomness import Stream
from frugalvit.data.store_device import OneSize
from frugalvit.training.recipe import Recipe


class Prepared(nn.Module):
    """From bytes to what the model takes: augmented where the host does not, normalized, erased and mixed, by draws of a key.

    `drawn` counts the draws of the whole augmentation; pictures that the device decodes were cropped by the first of them.
    """

    def __init__(self, recipe: Recipe, preprocess: Preprocess, kept: OneSize | None, rows: int):
        super().__init__()
        assert recipe.model.classes is not None
        self.kept, self.preprocess, self.rows = kept, preprocess, rows
        self.augment: Any = None
        self.drawn = 0
        size = preprocess.height, preprocess.width
        if kept is not None:
            _, channels, height, width = kept.image_NCHW.shape
            self.augment = pipeline(recipe.data.augment, MapSize(height, width, channels), size)
            self.drawn = self.augment.draws
        elif recipe.path == "decoded":
            self.augment = part_of_pipeline(recipe.data.augment.steps[1:], MapSize(*size, len(preprocess.mean)), size)
            self.drawn = DeviceResizedCrop.draws + self.augment.draws
        self.erase = None if recipe.data.erase is None else erase(recipe.data.erase)
        self.mix = mix(recipe.data.mix, recipe.model.classes, 0.0)

    def forward(
        self, image_BCHW: Tensor, index_B: Tensor, label_B: Tensor, key: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """(image_BCHW, target_BC, draws_RB of the model); the given pictures count only where none are kept."""
        if self.augment is not None:
            given_BCHW = image_BCHW if self.kept is None else self.kept.image_NCHW[index_B]
            draws_BK = uniform(key, Stream.AUGMENT, (len(index_B), self.drawn))
            image_BCHW = self.augment(given_BCHW, draws_BK[:, self.drawn - self.augment.draws :])
        image_BCHW = normalize(image_BCHW, self.preprocess.mean, self.preprocess.std)
        if self.erase is not None:
            draws_BK = uniform(key, Stream.ERASE, (len(index_B), self.erase.draws))
            image_BCHW = self.erase(image_BCHW, draws_BK, key)
        draws_RK = uniform(key, Stream.MIX, (rows_of(self.mix, len(index_B)), max(self.mix.draws, 1)))
        image_BCHW, target_BC = self.mix(image_BCHW, label_B, draws_RK)
        return image_BCHW, target_BC, uniform(key, Stream.DEPTH, (self.rows, len(index_B))) if self.rows else None
