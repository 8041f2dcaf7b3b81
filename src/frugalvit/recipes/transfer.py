"""From released weights to another data set: DeiT's transfers (Touvron et al. 2021, Table 7), and one's own pictures."""

from __future__ import annotations

from dataclasses import replace

from frugalvit.data.augment import Augment, Flip, ResizedCrop, deit_augment
from frugalvit.data.dataset import ArrayFolder, Cifar100, Dataset, Flowers102, ImageFolder, INaturalist, StanfordCars
from frugalvit.data.erase import Erase
from frugalvit.data.mix import SwitchMix
from frugalvit.data.order import Repeated
from frugalvit.nn.shape import Size
from frugalvit.recipes.deit import every_head
from frugalvit.training.duration import Epochs, Fraction
from frugalvit.training.optimizer import AdamW, Optimizer, Sgd
from frugalvit.training.recipe import Data, Recipe
from frugalvit.training.schedule import Cosine
from frugalvit.zoo.find import model as named

CIFAR_SGD = Sgd(0.01, weight_decay=1e-4)  # the authors' word, deit issue 45
INAT_ADAMW = AdamW(7.5e-5, per=768, weight_decay=0.05)  # deit issues 105 and 141


def published(model: str, dataset: Dataset, classes: int, image: int, epochs: int, optimizer: Optimizer) -> Recipe:
    """What the transfers share: 768 pictures a step, and the augmentation of ImageNet."""
    spec = named(model, classes=classes, image=image)
    return Recipe(
        model=spec,
        data=Data(dataset, deit_augment(), order=Repeated(3), mix=SwitchMix()),
        objective=every_head(spec, 0.1),
        optimizer=optimizer,
        schedule=Cosine(Epochs(5), start=1e-6),
        duration=Epochs(epochs),
        batch=768,
        evaluate=Epochs(10),
        save=Epochs(10),
        log_every=100,
    )


def cifar10(*, model: str = "deit_base_patch16_224", image: int = 224, epochs: int = 1000) -> Recipe:
    """DeiT to CIFAR-10, enlarged to the model's size.

    frugalvit train transfer.cifar10 --init deit_base_patch16_224 --data CIFAR --out runs/cifar10 (CIFAR: a folder of arrays)
    The paper: top-1 99.1 (B, and B at 384). Not run here.
    """
    return published(model, ArrayFolder(holdout=0.0), 10, image, epochs, CIFAR_SGD)


def cifar100(*, model: str = "deit_base_patch16_224", image: int = 224, epochs: int = 1000) -> Recipe:
    """DeiT to CIFAR-100.

    frugalvit train transfer.cifar100 --init deit_base_patch16_224 --data DOWNLOADS --out runs/cifar100
    The paper: top-1 90.8 (B). Not run here.
    """
    return published(model, Cifar100(holdout=0.0), 100, image, epochs, CIFAR_SGD)


def cars(*, model: str = "deit_base_patch16_224", image: int = 224, epochs: int = 1000) -> Recipe:
    """DeiT to Stanford Cars.

    frugalvit train transfer.cars --init deit_base_patch16_224 --data CARS --out runs/cars
    The paper: top-1 92.1 (B), 93.3 (B at 384). Not run here.
    """
    return published(model, StanfordCars(holdout=0.0), 196, image, epochs, CIFAR_SGD)


def flowers(*, model: str = "deit_base_patch16_224", image: int = 224, epochs: int = 1000) -> Recipe:
    """DeiT to Flowers-102. The authors gave no figures for it; these are those of CIFAR and Cars.

    frugalvit train transfer.flowers --init deit_base_patch16_224 --data DOWNLOADS --out runs/flowers
    The paper: top-1 98.4 (B), 98.5 (B at 384). Not run here.
    """
    return published(model, Flowers102(), 102, image, epochs, CIFAR_SGD)


def inat18(*, model: str = "deit_base_patch16_224", image: int = 224, epochs: int = 360) -> Recipe:
    """DeiT to iNaturalist 2018: AdamW, 360 epochs, erasing 0.1, stochastic depth 0.1.

    frugalvit train transfer.inat18 --init deit_base_patch16_224 --data INAT --out runs/inat18
    The paper: top-1 73.2 (B), 79.5 (B at 384). Not run here.
    """
    return inaturalist(model, INaturalist(2018), 8142, image, epochs)


def inat19(*, model: str = "deit_base_patch16_224", image: int = 224, epochs: int = 360) -> Recipe:
    """DeiT to iNaturalist 2019, as to 2018.

    frugalvit train transfer.inat19 --init deit_base_patch16_224 --data INAT --out runs/inat19
    The paper: top-1 77.7 (B), 81.4 (B at 384). Not run here.
    """
    return inaturalist(model, INaturalist(2019), 1010, image, epochs)


def inaturalist(model: str, dataset: INaturalist, classes: int, image: int, epochs: int) -> Recipe:
    """What both years share."""
    made = published(model, dataset, classes, image, epochs, INAT_ADAMW)
    spec = named(model, classes=classes, image=image, drop_path=0.1)
    return replace(made, model=spec, data=replace(made.data, erase=Erase(0.1)))


def folder(
    *,
    model: str = "deit_tiny_patch16_224",
    image: Size = 224,
    patch: Size | None = None,
    epochs: int = 30,
    batch: int = 64,
    lr: float = 5e-4,
    drop_path: float | None = None,
) -> Recipe:
    """Your own pictures, a folder a class: lower blocks learn slower (0.75 a block), crops are mild, labels are smoothed.

    PICTURES/<class>/*, or PICTURES/train/<class>/* and val/<class>/* and test/<class>/* where there are any; `frugalvit data
    check PICTURES` says what is taken for what.
    frugalvit train transfer.folder --init deit_tiny_patch16_224 --data PICTURES --out runs/mine
    Ours, not a paper's. Without --init it trains from scratch, which wants many pictures. `drop_path` is 0.1 where it is not
    given; models of other libraries (`model=timm:resnet18`) have none, and all of their layers learn at the same rate.
    """
    others = ":" in model
    drop = 0.1 if drop_path is None and not others else drop_path
    spec = replace(named(model, image=image, patch=patch, drop_path=drop), classes=None)
    return Recipe(
        model=spec,
        data=Data(ImageFolder(), Augment((ResizedCrop(area=(0.35, 1.0)), Flip()))),
        objective=every_head(spec, 0.1),
        optimizer=AdamW(lr, per=512, weight_decay=0.05, layer_decay=1.0 if others else 0.75),
        schedule=Cosine(Fraction(0.1)),
        duration=Epochs(epochs),
        batch=batch,
        clip=1.0,
        log_every=10,
    )
