"""Vision Transformer for Small-Size Datasets (Lee et al. 2021): its protocol, for all five of its scaled-down models.

`model` and `add` choose one: SL-ViT is `model=vit add=spt+lsa`. A pass is an epoch here: the paper's 100 "epochs" walk three
permutations each, which its release calls repeated augmentation, so they are 300 passes, and 10 epochs of warm-up are 30.
The paper reports the best epoch's accuracy on the test pictures; here they are measured once, at the end, unless
`data.validate=test` asks for its way. Deviation: products in bf16 on a GPU that has it; `precision=fp32` is the paper's.
The paper has pictures of 32 and 64 pixels; `image` takes others, on the same grids (`SIDES`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from frugalvit.data.augment import Augment, Flip, PadCrop
from frugalvit.data.augment import Step as AugmentStep
from frugalvit.data.autoaugment import AutoAugment
from frugalvit.data.dataset import Cifar10, Cifar100, Dataset, Svhn, TinyImageNet
from frugalvit.data.erase import Erase, EraseConstant
from frugalvit.data.mix import SwitchMix
from frugalvit.data.randaugment import RandAugment
from frugalvit.data.trivialaugment import TrivialAugment
from frugalvit.errors import SpecError
from frugalvit.nn.model import Model
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.pyramid import pyramid
from frugalvit.training.average import EmaOver
from frugalvit.training.duration import Epochs, Fraction
from frugalvit.training.optimizer import AdamW, AllParameters, Muon, Optimizer
from frugalvit.training.recipe import Data, Recipe
from frugalvit.training.schedule import Cosine
from frugalvit.zoo.change import with_gpsa, with_lsa, with_spt
from frugalvit.zoo.small import small_cait, small_pit, small_swin, small_t2t, small_vit

Family = Literal["vit", "cait", "pit", "swin", "t2t"]
Added = Literal["none", "spt", "lsa", "spt+lsa"]

FAMILIES: dict[Family, Callable[..., Model]] = {
    "vit": small_vit,
    "cait": small_cait,
    "pit": small_pit,
    "swin": small_swin,
    "t2t": small_t2t,
}
ADDED: dict[Added, tuple[Callable[[Model], Model], ...]] = {
    "none": (),
    "spt": (with_spt,),
    "lsa": (with_lsa,),
    "spt+lsa": (with_spt, with_lsa),
}
Policy = Literal["autoaugment", "trivialaugment", "randaugment"]
POLICIES: dict[Policy, AugmentStep] = {
    "autoaugment": AutoAugment("cifar10"),
    "trivialaugment": TrivialAugment(),
    "randaugment": RandAugment(),
}
# grids of 8 x 8 patches, or at first of 16 x 16, tile these; soft splits halve evenly down to 8 x 8 from 32 and 64 alone
SIDES: dict[Family, Sequence[int]] = {
    "vit": range(32, 97, 8),
    "cait": range(32, 97, 8),
    "pit": range(32, 97, 16),
    "swin": range(32, 97, 16),
    "t2t": (32, 64),
}
LR: dict[Family, float] = {"vit": 3e-3, "cait": 1e-3, "pit": 1e-3, "swin": 1e-3, "t2t": 1e-3}


def chosen(model: Family, add: Added, image: int, classes: int, drop_path: float) -> Model:
    """A model of the paper, with what it adds, at the one of its sides that is nearest to `image`, in doubt the larger."""
    refuse_image(image)
    side = min(SIDES[model], key=lambda one: (abs(one - image), -one))
    spec = FAMILIES[model](image=side, classes=classes, drop_path=drop_path)
    for change in ADDED[add]:
        spec = change(spec)
    return spec


def refuse_image(image: int) -> None:
    if not 28 <= image <= 96:
        raise SpecError(f"{image} pixels. Use 28 to 96; for other pictures see `frugalvit advise`.", path="image")


def protocol(
    spec: Model,
    dataset: Dataset,
    policy: Literal["cifar10", "svhn", "imagenet"],
    mean: tuple[float, float, float],
    std: tuple[float, float, float],
    lr: float,
    passes: int,
    batch: int,
) -> Recipe:
    """What all data sets share."""
    augment = Augment((Flip(0.5), PadCrop(4), AutoAugment(policy)))
    erase = EraseConstant(0.25, area=(0.02, 0.4), ratio=(0.3, 1 / 0.3), color=mean)
    mix = SwitchMix(mixup_alpha=1.0, cutmix_alpha=1.0, probability=0.5, switch=0.5)
    return Recipe(
        model=spec,
        data=Data(dataset, augment, mean, std, crop=1.0, erase=erase, mix=mix),
        objective=Objective((Supervised(loss=CrossEntropy(0.1)),)),
        optimizer=AdamW(lr, weight_decay=0.05, decays=AllParameters()),
        schedule=Cosine(Fraction(0.1), start=1e-6, end=1e-6),
        duration=Epochs(passes),
        batch=batch,
        evaluate=Epochs(3),
        save=Epochs(30),
        log_every=100,
    )


def cifar10(
    *,
    model: Family = "vit",
    add: Added = "none",
    image: int = 32,
    passes: int = 300,
    batch: int = 128,
    lr: float | None = None,
    drop_path: float = 0.1,
) -> Recipe:
    """CIFAR-10 from scratch: 300 passes, AutoAugment, half of the batches mixed, everything decays.

    frugalvit train small.cifar10 model=vit add=spt+lsa --data DOWNLOADS --out runs/sl_vit
    The paper, top-1 plain -> with both: ViT 93.58 -> 94.53, CaiT 94.91 -> 95.81, PiT 94.24 -> 95.88, Swin 94.46 -> 95.93,
    T2T 95.30 -> 95.57; ours: docs/results/small_table.md. The rate is 3e-3 for ViT, 1e-3 for others unless `lr` is given.
    Other pictures, of 28 to 96 pixels: `image=48 model.classes=none data.dataset=...` and their mean and std. Grids stay as
    published, 8 x 8 patches in ViT, CaiT and T2T, at first 16 x 16 in PiT and Swin, and patches grow. Pictures are resized to
    the nearest side with such a grid, in doubt the larger: a multiple of 8 for ViT and CaiT (by up to a seventh), of 16 for PiT
    and Swin (a fifth), 32 or 64 for T2T, whose soft splits halve (a third).
    """
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    spec = chosen(model, add, image, 10, drop_path)
    return protocol(spec, Cifar10(holdout=0.0), "cifar10", mean, std, LR[model] if lr is None else lr, passes, batch)


def best_cifar10(
    *,
    image: int = 32,
    passes: int = 360,
    batch: int = 512,
    lr: float = 3e-3,
    weight_decay: float = 0.1,
    dim: int = 224,
    heads: int = 4,
    depth: int = 6,
    early: int = 3,
    late: int = 2,
    mlp_ratio: float = 3.0,
    local: int = 0,
    add: Added = "spt+lsa",
    augment: Policy = "autoaugment",
    mixed: float = 0.5,
    drop_path: float = 0.1,
    optimizer: Literal["muon", "adamw"] = "muon",
) -> Recipe:
    """Our own training of a transformer from scratch, for pictures of 28 to 96 pixels; nothing of it is a paper's protocol.

    frugalvit train small.best_cifar10 precision=bf16_stream data.dataset.holdout=0.0 --data DOWNLOADS --out runs/best
    On CIFAR-10: 97.25 ± 0.05 of the test pictures (n = 3), in 492 seconds of one H200 at most: docs/results/headline.md.
    `depth` blocks on a grid of 8 x 8 patches, with SPT and LSA; `early` ones before them on a grid twice as fine and at half
    the width, `late` ones behind on a grid half as fine and at twice the width, a PiT or a Swin in outline. Chosen on held-out
    training pictures: docs/results/best_cifar10_search.md. All pictures have the same grid, and so the same compute within 3 %:
    each is resized to the nearest of 32, 48, 64, 80 and 96 pixels, by up to a fifth: one of 28 to 32, one of 40 to 48. Without
    `late` ones grids of 7 x 7 and 9 x 9 fit too, and with them more sides.
    The first `local` of all blocks have ConViT's gated positions. `mixed` is the share of batches that are mixed.
    `early=0 late=0 depth=9 dim=256 heads=8` is a plain ViT. Other data: `data.dataset=...` and its mean and std.
    """
    refuse_image(image)
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    spec = pyramid(image, dim, heads, early, depth, late, mlp_ratio, drop_path)
    for change in ADDED[add]:
        spec = change(spec)
    if local:
        spec = with_gpsa(spec, local)
    steps = Augment((Flip(0.5), PadCrop(spec.image.height // 8), POLICIES[augment]))
    mix = SwitchMix(mixup_alpha=0.8, cutmix_alpha=1.0, probability=mixed, switch=0.5)
    rates: dict[str, Optimizer] = {
        "muon": Muon(lr, weight_decay=weight_decay),
        "adamw": AdamW(lr, weight_decay=weight_decay),
    }
    return Recipe(
        model=spec,
        data=Data(Cifar10(), steps, mean, std, crop=1.0, erase=Erase(0.25), mix=mix),
        objective=Objective((Supervised(loss=CrossEntropy(0.1)),)),
        optimizer=rates[optimizer],
        schedule=Cosine(Fraction(0.05), start=1e-6, end=1e-6),
        duration=Epochs(passes),
        batch=batch,
        clip=1.0,
        average=EmaOver(0.05),
        evaluate=Epochs(10),
        save=Epochs(50),
        log_every=100,
    )


def cifar100(
    *,
    model: Family = "vit",
    add: Added = "none",
    image: int = 32,
    passes: int = 300,
    batch: int = 128,
    lr: float | None = None,
    drop_path: float = 0.1,
) -> Recipe:
    """CIFAR-100 from scratch, as CIFAR-10 and with its policy.

    frugalvit train small.cifar100 model=swin add=spt+lsa --data DOWNLOADS --out runs/sl_swin
    The paper, top-1 plain -> with both: ViT 73.81 -> 76.92, CaiT 76.89 -> 80.32, PiT 74.99 -> 79.00, Swin 76.87 -> 79.99,
    T2T 77.00 -> 77.36; ViT with LSA alone 74.87, with SPT alone 76.29. Not run here. `image`: as of small.cifar10.
    """
    mean, std = (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    spec = chosen(model, add, image, 100, drop_path)
    return protocol(spec, Cifar100(holdout=0.0), "cifar10", mean, std, LR[model] if lr is None else lr, passes, batch)


def svhn(
    *,
    model: Family = "vit",
    add: Added = "none",
    image: int = 32,
    passes: int = 300,
    batch: int = 128,
    lr: float | None = None,
    drop_path: float = 0.1,
) -> Recipe:
    """SVHN from scratch, without its extra pictures; digits are flipped too, as published.

    frugalvit train small.svhn model=cait add=spt+lsa --data DOWNLOADS --out runs/sl_cait
    The paper, top-1 plain -> with both: ViT 97.82 -> 97.79, CaiT 98.13 -> 98.28, PiT 97.83 -> 97.93, Swin 97.72 -> 97.92,
    T2T 97.90 -> 97.91. Not run here. `image`: as of small.cifar10.
    """
    mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    spec = chosen(model, add, image, 10, drop_path)
    return protocol(spec, Svhn(holdout=0.0), "svhn", mean, std, LR[model] if lr is None else lr, passes, batch)


def tiny_imagenet(
    *,
    model: Family = "vit",
    add: Added = "none",
    image: int = 64,
    passes: int = 300,
    batch: int = 128,
    lr: float | None = None,
    drop_path: float = 0.1,
) -> Recipe:
    """Tiny ImageNet from scratch at its 64 pixels, with ImageNet's policy and patches twice as wide.

    frugalvit train small.tiny_imagenet model=pit add=spt+lsa --data TINY --out runs/sl_pit
    The paper, top-1 plain -> with both: ViT 57.07 -> 61.07, CaiT 64.37 -> 67.18, PiT 60.25 -> 62.91, Swin 60.87 -> 64.95,
    T2T 60.57 -> 61.83; ViT with LSA alone 58.50, with SPT alone 60.67. Not run here. `image`: as of small.cifar10.
    """
    mean, std = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
    spec = chosen(model, add, image, 200, drop_path)
    return protocol(spec, TinyImageNet(), "imagenet", mean, std, LR[model] if lr is None else lr, passes, batch)
