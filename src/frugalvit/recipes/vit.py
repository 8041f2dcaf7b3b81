"""ViT (Dosovitskiy et al. 2021), and small ones for a first run."""

from __future__ import annotations

from frugalvit.data.augment import Augment, Flip, PadCrop, ResizedCrop
from frugalvit.data.dataset import Digits, ImageNet
from frugalvit.nn.init import Normal
from frugalvit.nn.layers import AddPositions
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.spec import swap
from frugalvit.training.duration import Epochs, Steps
from frugalvit.training.optimizer import AdamW
from frugalvit.training.recipe import Data, Recipe
from frugalvit.training.schedule import Cosine
from frugalvit.zoo.find import model as named
from frugalvit.zoo.vit import vit

HALF = (0.5, 0.5, 0.5)


def imagenet(*, model: str = "vit_base_patch16_224", dropout: float = 0.1, epochs: int = 300, batch: int = 4096) -> Recipe:
    """ViT on ImageNet-1k alone as first published: lr 3e-3, weight decay 0.3, dropout 0.1, no augmentation but crop and flip.

    frugalvit train vit.imagenet --data IMAGENET --out runs/vit
    The paper: top-1 77.9 (B/16, after fine-tuning at 384). Not run here. `dropout=0` is for models that have none.
    """
    return Recipe(
        model=named(model, dropout=dropout or None),
        data=Data(ImageNet(), Augment((ResizedCrop(), Flip())), HALF, HALF),
        objective=Objective(),
        optimizer=AdamW(3e-3, per=4096, weight_decay=0.3),
        schedule=Cosine(Steps(10_000)),
        duration=Epochs(epochs),
        batch=batch,
        clip=1.0,
        log_every=100,
    )


def digits(
    *,
    epochs: int = 60,
    batch: int = 64,
    lr: float = 2e-3,
    dim: int = 64,
    depth: int = 4,
    drop_path: float = 0.0,
    position: float = 0.5,
) -> Recipe:
    """A small ViT on 1,297 handwritten digits of 8 x 8 pixels; no download.

    frugalvit train vit.digits --out runs/digits
    Ours, not a paper's. `position` is the deviation of the initial positions: at ViT's 0.02 it takes hundreds of steps
    until the model can tell sixteen tokens apart (docs/notebook.md).
    """
    spec = vit(dim=dim, heads=4, depth=depth, patch=2, image=8, channels=1, classes=None, drop_path=drop_path)
    spec = swap(spec, AddPositions, lambda _: AddPositions(Normal(position)))
    return Recipe(
        model=spec,
        data=Data(Digits(), Augment((PadCrop(1),)), (0.3053,), (0.3765,), crop=1.0),
        objective=Objective((Supervised(loss=CrossEntropy(0.1)),)),
        optimizer=AdamW(lr, weight_decay=0.05),
        schedule=Cosine(Steps(50)),
        duration=Epochs(epochs),
        batch=batch,
        evaluate=Epochs(5),
        save=Epochs(5),
    )
