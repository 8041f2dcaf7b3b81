"""DeiT (Touvron et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

from frugalvit.data.augment import Augment, Flip, PadCrop, ResizedCrop, deit_augment
from frugalvit.data.dataset import ArrayFolder, Cifar10, ImageNet
from frugalvit.data.erase import Erase
from frugalvit.data.mix import SwitchMix
from frugalvit.data.order import Repeated
from frugalvit.data.randaugment import RandAugment
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.model import Model
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes import vit
from frugalvit.recipes.teach import named_teacher, taught
from frugalvit.training.duration import Epochs
from frugalvit.training.optimizer import AdamW, Sgd
from frugalvit.training.recipe import Data, Recipe
from frugalvit.training.schedule import Constant, Cosine, EpochCosine
from frugalvit.training.teacher import Teaching
from frugalvit.training.tune import HeadsAndLastNorm
from frugalvit.zoo.change import with_distillation
from frugalvit.zoo.deit import deit
from frugalvit.zoo.find import model as named


def every_head(model: Architecture, smoothing: float) -> Objective:
    """The true labels on every head, alike: what a distilled model learns without its teacher."""
    loss = CrossEntropy(smoothing)
    return Objective(tuple(Supervised(head, loss, 1 / len(model.heads)) for head in model.heads))


def imagenet(*, model: str = "deit_tiny_patch16_224", epochs: int = 300, batch: int = 1024, drop_path: float = 0.1) -> Recipe:
    """DeiT on ImageNet-1k as published (Table 9): 300 epochs, AdamW, repeated augmentation, mixup and cutmix.

    frugalvit train deit.imagenet model=deit_small_patch16_224 --data IMAGENET --out runs/small
    The paper: top-1 72.2 (Ti), 79.8 (S), 81.8 (B). Not run here.
    """
    spec = named(model, drop_path=drop_path)
    return Recipe(
        model=spec,
        data=Data(ImageNet(), deit_augment(), order=Repeated(3), erase=Erase(0.25), mix=SwitchMix()),
        objective=every_head(spec, 0.1),
        optimizer=AdamW(5e-4, per=512, weight_decay=0.05),
        schedule=EpochCosine(Epochs(5), start=1e-6, end=1e-5),
        duration=Epochs(epochs),
        batch=batch,
        log_every=100,
    )


def imagenet_384(*, model: str = "deit_base_patch16_384", epochs: int = 30, batch: int = 512) -> Recipe:
    """Fine-tuning at 384 pixels as released (§6): a constant 5e-6 after the warm-up, everything else as before.

    frugalvit train deit.imagenet_384 --init deit_base_patch16_224 --data IMAGENET --out runs/base384
    The paper: top-1 83.1 (B). Not run here. The original kept stochastic depth off, as here (drop_path 0).
    """
    trained = imagenet(model=model, epochs=epochs, batch=batch, drop_path=0.0)
    optimizer = AdamW(5e-6, per=512, weight_decay=1e-8)
    return replace(trained, optimizer=optimizer, schedule=Constant(Epochs(5), start=1e-6))


def imagenet_distilled(
    *,
    model: str = "deit_tiny_distilled_patch16_224",
    teacher: str = "regnety_160",
    epochs: int = 300,
    batch: int = 1024,
    drop_path: float = 0.1,
) -> Recipe:
    """DeiT on ImageNet-1k with its teacher, a RegNetY-16GF: `deit.imagenet` with half the loss on the distillation token.

    frugalvit train deit.imagenet_distilled model=deit_base_distilled_patch16_224 --data IMAGENET --out runs/taught
    The paper: top-1 74.5 (Ti), 81.2 (S), 83.4 (B); with epochs=1000 76.6, 82.6 and 84.2; the teacher 82.9. Not run here.
    `teacher` is a model by name or a run's folder. It labels the augmented and mixed pictures; its labels are not smoothed.
    """
    plain = imagenet(model=model, epochs=epochs, batch=batch, drop_path=drop_path)
    return taught(plain, Teaching(named_teacher(teacher)))


def imagenet_384_teacher(*, model: str = "regnety_160", image: int = 384, epochs: int = 10, batch: int = 512) -> Recipe:
    """A teacher that shall see larger pictures is fitted to them by FixRes (Touvron et al. 2019), as DeiT's was (§4).

    frugalvit train deit.imagenet_384_teacher --init regnety_160 --data IMAGENET --out runs/regnety384
    The heads and the last norm learn; rate, momentum and decay are those of FixRes's release, which decays the bias too. Ours
    are the length, the cosine (the release: 1 to 56 epochs, a tenth of the rate after 30) and the mild crops and flips (there:
    the central crop of evaluation, or one that is shifted, flipped and recolored a little).
    DeiT does not tell what its own adaptation was, nor what it gave. Not run here.
    """
    spec = named(model, image=image)
    crops = Augment((ResizedCrop(area=(0.6, 1.0)), Flip()))
    return Recipe(
        model=spec,
        data=Data(ImageNet(), crops),
        objective=every_head(spec, 0.0),
        optimizer=Sgd(8e-3, per=512, weight_decay=1e-4),
        schedule=Cosine(),
        duration=Epochs(epochs),
        batch=batch,
        tune=HeadsAndLastNorm(),
        log_every=100,
    )


def imagenet_384_distilled(
    *, model: str = "deit_base_distilled_patch16_384", teacher: str = "regnety_160", epochs: int = 30, batch: int = 512
) -> Recipe:
    """Fine-tuning at 384 pixels that goes on learning from the teacher, which sees pictures of that size too (§4).

    frugalvit train deit.imagenet_384_distilled --init deit_base_distilled_patch16_224 --data IMAGENET --out runs/base384
    The paper: top-1 84.5 (B), 85.2 after 1000 epochs at 224. Not run here.
    The paper's teacher is adapted to 384 pixels: `teacher=runs/regnety384`, a run of deit.imagenet_384_teacher. Without it the
    larger pictures are seen by the one of 224 as it is.
    """
    plain = imagenet_384(model=model, epochs=epochs, batch=batch)
    size = plain.model.image.height, plain.model.image.width
    return taught(plain, Teaching(replace(named_teacher(teacher), size=size)))


def cifar10_224(*, model: str = "deit_base_patch16_224", epochs: int = 7200, batch: int = 1024) -> Recipe:
    """DeiT from scratch on CIFAR-10 at 224 pixels as published (§5.4): as many pictures as 300 epochs of ImageNet.

    frugalvit train deit.cifar10_224 --data CIFAR --out runs/cifar (CIFAR: a folder of arrays)
    The paper: top-1 97.5 (B). Not run here.
    """
    spec = named(model, classes=10, drop_path=0.1)
    data = Data(ArrayFolder(holdout=0.0), deit_augment(), order=Repeated(3), erase=Erase(0.25), mix=SwitchMix())
    return replace(imagenet(model=model, epochs=epochs, batch=batch), model=spec, data=data, objective=every_head(spec, 0.1))


def tiny_cifar10(*, image: int = 32, epochs: int = 100, batch: int = 256, lr: float = 1e-3, drop_path: float = 0.1) -> Recipe:
    """A DeiT of DeiT-Ti's width for 32-pixel pictures, from scratch on CIFAR-10: patches of 4, nine blocks.

    frugalvit train deit.tiny_cifar10 --data CIFAR --out runs/cifar (CIFAR: a folder of arrays)
    Ours, not a paper's: 100 epochs with DeiT's augmentation on a padded crop. From all 50,000 pictures
    (data.dataset.holdout=0.0): 82.62 ± 0.34 of the test pictures (n = 3), docs/results/distill_table.md.
    """
    spec = deit(dim=192, heads=3, depth=9, patch=4, image=image, classes=None, drop_path=drop_path)
    augment = Augment((PadCrop(4), Flip(), RandAugment()))
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    return Recipe(
        model=spec,
        data=Data(ArrayFolder(), augment, mean, std, crop=1.0, erase=Erase(0.25), mix=SwitchMix()),
        objective=every_head(spec, 0.1),
        optimizer=AdamW(lr, weight_decay=0.05),
        schedule=Cosine(Epochs(5)),
        duration=Epochs(epochs),
        batch=batch,
        clip=1.0,
        save=Epochs(5),
        evaluate=Epochs(5),
        log_every=50,
    )


def cifar10_distilled(
    *,
    teacher: str = "runs/convnet",
    image: int = 32,
    epochs: int = 100,
    batch: int = 256,
    lr: float = 1e-3,
    drop_path: float = 0.1,
) -> Recipe:
    """The small DeiT of `deit.tiny_cifar10` with a distillation token, which learns from a convnet.

    frugalvit train deit.cifar10_distilled teacher=runs/convnet --data DOWNLOADS --out runs/taught
    Ours, not a paper's. `frugalvit train convnet.cifar10 --data DOWNLOADS --out runs/convnet` makes the teacher, and holds out
    the same pictures. From all 50,000 of them (docs/results/distill_table.md): 86.09 ± 0.43 by both heads (n = 3), 82.62 ± 0.34
    without the teacher, whose own accuracy was 96.12.
    """
    plain = tiny_cifar10(image=image, epochs=epochs, batch=batch, lr=lr, drop_path=drop_path)
    return taught(replace(plain, data=replace(plain.data, dataset=Cifar10())), Teaching(named_teacher(teacher)))


def digits(*, epochs: int = 60, batch: int = 64, lr: float = 2e-3, dim: int = 64, depth: int = 4) -> Recipe:
    """The ViT of `vit.digits` with a distillation token; without a teacher both heads learn the labels.

    frugalvit train deit.digits --out runs/digits
    Ours, not a paper's.
    """
    plain = vit.digits(epochs=epochs, batch=batch, lr=lr, dim=dim, depth=depth)
    assert isinstance(plain.model, Model)
    spec = with_distillation(plain.model)
    return replace(plain, model=spec, objective=every_head(spec, 0.1))
