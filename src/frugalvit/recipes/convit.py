"""ConViT (d'Ascoli et al. 2021): DeiT's recipe, on all of ImageNet, on a fraction of it, and on CIFAR-100."""

from __future__ import annotations

from dataclasses import replace

from frugalvit.data.dataset import Cifar100
from frugalvit.data.subset import FirstFraction
from frugalvit.recipes import deit
from frugalvit.training.duration import Epochs
from frugalvit.training.optimizer import AdamW
from frugalvit.training.recipe import Recipe
from frugalvit.zoo.find import model as named


def imagenet(
    *,
    model: str = "convit_tiny",
    epochs: int = 300,
    batch: int | None = None,
    lr: float | None = None,
    drop_path: float = 0.1,
) -> Recipe:
    """ConViT on ImageNet-1k (Table 1): DeiT's recipe unchanged; the "+" models learn at 4e-4 with 512 pictures a step.

    frugalvit train convit.imagenet model=convit_small --data IMAGENET --out runs/convit
    The paper: top-1 73.1 (Ti), 76.7 (Ti+), 81.3 (S), 82.2 (S+), 82.4 (B), 82.5 (B+). Not run here. `lr` is for 512 pictures.
    """
    usual_lr, usual_batch = (4e-4, 512) if model.endswith("_plus") else (5e-4, 1024)
    made = deit.imagenet(model=model, epochs=epochs, batch=usual_batch if batch is None else batch, drop_path=drop_path)
    return replace(made, optimizer=AdamW(usual_lr if lr is None else lr, per=512, weight_decay=0.05))


def imagenet_fraction(
    *,
    model: str = "convit_small",
    fraction: float = 0.1,
    epochs: int = 300,
    batch: int | None = None,
    drop_path: float = 0.1,
) -> Recipe:
    """The first pictures of every class by file name, for epochs / fraction: as many pictures seen as on the whole (Table 2).

    frugalvit train convit.imagenet_fraction fraction=0.05 --data IMAGENET --out runs/five_percent
    The paper, top-1 of ConViT-S (DeiT-S): 5 % 47.8 (34.8), 10 % 59.6 (48.0), 30 % 73.7 (66.1), 50 % 78.2 (74.6), all 81.4
    (79.9). Not run here. model=deit_small_patch16_224 is the other column.
    """
    made = imagenet(model=model, epochs=epochs, batch=batch, drop_path=drop_path)
    subset = FirstFraction(fraction)
    longer = Epochs(1 / fraction)  # as many pictures as the whole data set has
    return replace(
        made,
        data=replace(made.data, subset=subset),
        duration=Epochs(epochs / fraction),
        evaluate=longer,
        save=longer,
    )


def cifar100(
    *,
    model: str = "convit_tiny_plus",
    image: int = 224,
    epochs: int = 3000,
    batch: int | None = None,
    drop_path: float = 0.1,
) -> Recipe:
    """ConViT on CIFAR-100 from scratch, its pictures enlarged to 224 pixels (supplementary C): DeiT's recipe, longer.

    frugalvit train convit.cifar100 --data DOWNLOADS --out runs/cifar100
    The paper: top-1 82.1 (Ti+). Its curves end at 3000 epochs and overfit after about 1000. Not run here.
    """
    made = imagenet(model=model, epochs=epochs, batch=batch, drop_path=drop_path)
    spec = named(model, classes=100, image=image, drop_path=drop_path)
    data = replace(made.data, dataset=Cifar100(holdout=0.0))
    return replace(made, model=spec, data=data, evaluate=Epochs(25), save=Epochs(25))
