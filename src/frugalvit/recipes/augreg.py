"""AugReg (Steiner et al. 2022, "How to train your ViT?"): pre-training under seven presets, and transfer from its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from frugalvit.data.augment import Augment, Flip, ResizedCrop
from frugalvit.data.dataset import Cifar100, Dataset, ImageFolder, ImageNet
from frugalvit.data.mix import Mix, NoMix, RolledMixup
from frugalvit.data.tf_randaugment import TfRandAugment
from frugalvit.objective.loss import SigmoidCrossEntropy
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.vit import HALF
from frugalvit.training.duration import Epochs, Steps
from frugalvit.training.optimizer import AdamW, Sgd
from frugalvit.training.recipe import Data, Recipe
from frugalvit.training.schedule import Cosine
from frugalvit.zoo.find import model as named

CROP = ResizedCrop(area=(0.05, 1.0), ratio=(3 / 4, 4 / 3), interpolation="bilinear")
RARE = "readout.linear.bias=Filled(-6.9)"  # each of 1000 classes starts at a probability of 0.001

PresetName = Literal["none", "light1", "light2", "medium1", "medium2", "strong1", "strong2"]


@dataclass(frozen=True)
class Preset:
    """How strongly AugReg augments: RandAugment's layers and magnitude, and mixup's α, 0 for none."""

    layers: int
    magnitude: float
    alpha: float

    @property
    def steps(self) -> tuple[TfRandAugment, ...]:
        """What follows crop and flip."""
        return (TfRandAugment(self.layers, self.magnitude),) if self.layers else ()

    @property
    def mix(self) -> Mix:
        return RolledMixup(self.alpha) if self.alpha else NoMix()


# The paper's names. Released files shift two of them: light0 and light1 there are light1 and light2 here.
PRESETS: dict[PresetName, Preset] = {
    "none": Preset(0, 0.0, 0.0),
    "light1": Preset(2, 0.0, 0.0),
    "light2": Preset(2, 10.0, 0.2),
    "medium1": Preset(2, 15.0, 0.2),
    "medium2": Preset(2, 15.0, 0.5),
    "strong1": Preset(2, 20.0, 0.5),
    "strong2": Preset(2, 20.0, 0.8),
}


def imagenet(
    *,
    model: str = "vit_small_patch16_224",
    preset: PresetName = "medium2",
    weight_decay: float = 0.1,
    regularization: float = 0.0,
    epochs: int = 300,
    batch: int = 4096,
) -> Recipe:
    """Pre-training on ImageNet-1k: one of seven presets, weight decay 0.1 or 0.03, regularization 0 or 0.1.

    frugalvit train augreg.imagenet preset=light1 model=vit_tiny_patch16_224 --data IMAGENET --out runs/tiny
    The paper (Table 3, the best setting of each size, 300 epochs at 224): top-1 72.59 (Ti/16), 72.07 (S/32), 79.00 (S/16),
    74.42 (B/32), 79.84 (B/16), 75.72 (L/16), 79.61 (R26+S/32). Not run here. `regularization` is the rate of dropout and of
    stochastic depth in the last block. The head starts with weights of 0 and a bias of -6.9, as it does there for 1000 classes.
    """
    augment = Augment((CROP, Flip(0.5), *PRESETS[preset].steps))
    return Recipe(
        model=named(model, RARE, drop_path=regularization, dropout=regularization or None),
        data=Data(ImageNet(), augment, HALF, HALF, interpolation="bilinear", mix=PRESETS[preset].mix),
        objective=Objective((Supervised(loss=SigmoidCrossEntropy()),)),
        optimizer=AdamW(1e-3, per=4096, weight_decay=weight_decay),
        schedule=Cosine(Steps(10_000), start=0.0),
        duration=Epochs(epochs),
        batch=batch,
        clip=1.0,
        log_every=100,
    )


def transferred(
    model: str, dataset: Dataset, classes: int | None, image: int, lr: float, steps: int, warmup: int, batch: int
) -> Recipe:
    """What the transfers share (Table 4): SGD with momentum, nothing decays, crop and flip alone."""
    spec = named(model, f"classes={'none' if classes is None else classes}", image=image)
    return Recipe(
        model=spec,
        data=Data(dataset, Augment((CROP, Flip(0.5))), HALF, HALF, crop=384 / 448, interpolation="bilinear"),
        objective=Objective(),
        optimizer=Sgd(lr, momentum=0.9),
        schedule=Cosine(Steps(warmup), start=0.0),
        duration=Steps(steps),
        batch=batch,
        clip=1.0,
        evaluate=Steps(max(steps // 10, 1)),
        save=Steps(max(steps // 10, 1)),
    )


def to_imagenet(
    *,
    model: str = "vit_small_patch16_384",
    image: int = 384,
    lr: float = 0.03,
    steps: int = 20_000,
    warmup: int = 500,
    batch: int = 512,
) -> Recipe:
    """From ImageNet-21k to ImageNet-1k: SGD, 20,000 steps, a learning rate of 0.01 or 0.03 (Table 4).

    frugalvit train augreg.to_imagenet --init vit_small_patch16_224.augreg_in21k --data IMAGENET --out runs/s16
    The paper (Table 3, at 384): top-1 78.22 (Ti/16), 79.58 (S/32), 83.73 (S/16), 83.59 (B/32), 85.49 (B/16), 85.59 (L/16),
    75.40 (R+Ti/16), 83.85 (R26+S/32), 85.99 (R50+L/32). Not run here.
    """
    return transferred(model, ImageNet(), 1000, image, lr, steps, warmup, batch)


def to_cifar100(
    *,
    model: str = "vit_base_patch32_384",
    image: int = 384,
    lr: float = 0.01,
    steps: int = 10_000,
    warmup: int = 500,
    batch: int = 512,
) -> Recipe:
    """From ImageNet-21k to CIFAR-100, 2 % of whose pictures are held out: 1e-3, 3e-3 or 0.01; 2,500 or 10,000 steps (Table 4).

    frugalvit train augreg.to_cifar100 --init vit_base_patch32_224.augreg_in21k --data DOWNLOADS --out runs/cifar100
    big_vision's own transfer: top-1 91.35 (B/32, lr 0.01, cropped 384 of 448 pixels instead). Not run here. With 2,500 steps,
    the warm-up is 200.
    """
    return transferred(model, Cifar100(holdout=0.02), 100, image, lr, steps, warmup, batch)


def to_folder(
    *,
    model: str = "vit_base_patch32_384",
    image: int = 384,
    lr: float = 3e-3,
    steps: int = 500,
    warmup: int = 100,
    batch: int = 512,
) -> Recipe:
    """From ImageNet-21k to a few thousand pictures of your own, as the paper to Pets (Table 4): 500 or 2,500 steps.

    frugalvit train augreg.to_folder --init vit_base_patch32_224.augreg_in21k --data PICTURES --out runs/mine
    big_vision's own transfer: top-1 93.78 on Pets (B/32, lr 3e-3). Not run here. With 2,500 steps, the warm-up is 200; the
    other rates to try are 1e-3 and 0.01.
    """
    return transferred(model, ImageFolder(), None, image, lr, steps, warmup, batch)
