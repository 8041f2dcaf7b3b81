"""BinaryViT (Le & Li 2023) as published, in two stages, and for small pictures; ReActNet (Liu et al. 2020) to compare with.

`rung` names a model of the paper's ladder: a binary `deit`; the `mean` of its patches instead of a class token; `pool`ing
branches; `affine` maps before the sums; the `pyramid`, which is BinaryViT; `star`, whose merging is real. What to expect of
them, and the two stages: docs/binary.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from frugalvit.data.augment import Augment, Flip, PadCrop, ResizedCrop
from frugalvit.data.dataset import Cifar10, ImageNet
from frugalvit.errors import SpecError
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.nn.binary_channels import Affine
from frugalvit.nn.binary_merge import RealMerge
from frugalvit.nn.layers import AddPositions
from frugalvit.nn.model import Model
from frugalvit.objective.distill import Distilled, LogitCrossEntropy
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.recipes.digits import POSITIONS, trained
from frugalvit.recipes.teach import named_teacher
from frugalvit.spec import swap
from frugalvit.training.duration import Epochs, Fraction
from frugalvit.training.optimizer import AdamW
from frugalvit.training.recipe import Data, Recipe
from frugalvit.training.schedule import Cosine, EpochCosine
from frugalvit.training.teacher import Teaching
from frugalvit.zoo.binarize import with_damping, with_full_precision, with_real_weights
from frugalvit.zoo.binaryvit import CROSS, FLAT_SMALL, FLAT_TINY, SMALL, TINY, binary_deit, binaryvit
from frugalvit.zoo.find import model as named

Rung = Literal["deit", "mean", "pool", "affine", "pyramid", "star"]
Bits = Literal["both", "activations", "none"]  # of weights and activations; of activations alone; the twin in full precision

FLAT: dict[str, dict[str, Any]] = {  # what each rung adds to the one before
    "deit": {},
    "mean": {"summary": ()},
    "pool": {"summary": (), "branches": CROSS},
    "affine": {"summary": (), "branches": CROSS, "residual": Affine()},
}
PYRAMID: dict[str, dict[str, Any]] = {"pyramid": {}, "star": {"merge": RealMerge()}}


def climbed(rung: Rung, flat: Callable[..., Model], pyramid: Callable[..., Model]) -> Model:
    """The model of a rung, of two sizes."""
    return flat(**FLAT[rung]) if rung in FLAT else pyramid(**PYRAMID[rung])


def of_bits(spec: Model, bits: Bits, damping: float, step: float) -> Model:
    """The binary model with its guards, and with as many bits as are asked for."""
    refuse_damping(bits, damping)
    spec = swap(spec, BinaryAttention, lambda one: replace(one, step=step))
    match bits:
        case "both":
            return with_damping(spec, damping)
        case "activations":
            return with_real_weights(spec)
        case "none":
            return with_full_precision(spec)


def refuse_damping(bits: Bits, damping: float) -> None:
    if bits != "both" and damping:
        raise SpecError(
            f"{damping} would pull weights towards their signs, which bits={bits} does not use: its weights stay real. "
            "Leave it out, or use bits=both.",
            path="damping",
        )


def of_logits(recipe: Recipe, teacher: str) -> Recipe:
    """The recipe with a teacher whose probabilities are all that the class head learns; labels are not read (BinaryViT)."""
    logits = Objective((Distilled("class", LogitCrossEntropy(), 1.0),))
    return replace(recipe, objective=logits, teaching=Teaching(named_teacher(teacher)))


# ------------------------------------------------------------------------------------------------ ImageNet


def imagenet(
    *,
    rung: Rung = "pyramid",
    teacher: str = "deit_small_patch16_224",
    epochs: int = 300,
    batch: int = 512,
    damping: float = 0.0,
    step: float = 0.005,
) -> Recipe:
    """BinaryViT on ImageNet-1k as released: 300 epochs of AdamW without decay or warm-up, crops and flips alone, one stage.

    frugalvit train binaryvit.imagenet rung=star --data IMAGENET --out runs/star
    The paper, top-1 by rung: 48.5, 56.4, 60.2, 61.8, 67.7 and 70.6; the teacher 79.9. Not run here. The probabilities of a
    DeiT-S in full precision are all that it learns. The release keeps its best epoch; here `best.safetensors` does.
    `damping`, 0 in the paper, keeps weights from oscillating; `step` is where attention's threshold begins.
    """
    spec = of_bits(climbed(rung, FLAT_SMALL, SMALL), "both", damping, step)
    plain = Recipe(
        model=spec,
        data=Data(ImageNet(), Augment((ResizedCrop(interpolation="bilinear"), Flip(0.5)))),
        objective=Objective(),
        optimizer=AdamW(5e-4, per=512, weight_decay=0.0),
        schedule=EpochCosine(Epochs(0), end=1e-5),
        duration=Epochs(epochs),
        batch=batch,
        log_every=100,
    )
    return of_logits(plain, teacher)


def imagenet_activations(
    *, rung: Rung = "pyramid", teacher: str = "deit_small_patch16_224", epochs: int = 300, batch: int = 512, step: float = 0.005
) -> Recipe:
    """The first of ReActNet's two stages for BinaryViT: activations of one bit, real weights, which decay by 1e-5.

    frugalvit train binaryvit.imagenet_activations --data IMAGENET --out runs/first
    Then `frugalvit train binaryvit.imagenet --init runs/first --data IMAGENET --out runs/second`, which decays nothing. Ours;
    the paper has one stage, and ReActNet's are of 256 epochs each. Not run here. Deviation: ReActNet's decay is a part of
    Adam's gradient, AdamW's is not.
    """
    plain = imagenet(rung=rung, teacher=teacher, epochs=epochs, batch=batch, step=step)
    return replace(plain, model=with_real_weights(plain.model), optimizer=AdamW(5e-4, per=512, weight_decay=1e-5))


# ------------------------------------------------------------------------------------------------ small pictures


def small(spec: Architecture, passes: int, batch: int, lr: float, weight_decay: float, teacher: str) -> Recipe:
    """What all trainings on CIFAR-10 share: crops and flips, which a model that can hardly overfit needs least."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    plain = Recipe(
        model=spec,
        data=Data(Cifar10(), Augment((Flip(0.5), PadCrop(4))), mean, std, crop=1.0),
        objective=Objective((Supervised(loss=CrossEntropy(0.1)),)),
        optimizer=AdamW(lr, weight_decay=weight_decay),
        schedule=Cosine(Fraction(0.05), start=1e-6, end=1e-5),
        duration=Epochs(passes),
        batch=batch,
        evaluate=Epochs(10),
        save=Epochs(10),
        log_every=100,
    )
    return of_logits(plain, teacher) if teacher else plain


def cifar10(
    *,
    rung: Rung = "pyramid",
    bits: Bits = "both",
    teacher: str = "",
    passes: int = 60,
    batch: int = 256,
    lr: float = 1e-3,
    dim: int = 64,
    damping: float = 0.0,
    step: float = 0.02,
) -> Recipe:
    """A BinaryViT of 4.7 M weights for 32-pixel pictures on CIFAR-10, or a rung below it with as many, from scratch.

    frugalvit train binaryvit.cifar10 rung=affine teacher=runs/convnet --data DOWNLOADS --out runs/binary
    Ours, not a paper's. By labels, with all 50,000 pictures (data.dataset.holdout=0.0), the test pictures: 80.2 (n = 3),
    rung=mean 78.6, rung=deit 76.2: docs/results/binary_ladder.md. With a `teacher`, a run's folder (`convnet.cifar10` makes
    one), its probabilities are all that is learned, as in the paper; without, labels. `bits=activations` is the first of two
    stages and decays by 1e-5: `--init` its run here for the second. `bits=none` is the twin in full precision. `dim` is the
    width of the pyramid's first stage, a quarter of a flat model's. Attention's threshold, half of `step`, begins below what
    an even softmax gives to 16 keys, or to the 64 of a flat model.
    """
    flat, pyramid = partial(FLAT_TINY, dim=4 * dim), partial(TINY, dim=dim, patch=2, image=32)
    spec = of_bits(replace(climbed(rung, flat, pyramid), classes=None), bits, damping, step)
    return small(spec, passes, batch, lr, 1e-5 if bits == "activations" else 0.0, teacher)


def cifar10_reactnet(
    *,
    model: str = "reactnet_a_32",
    bits: Literal["both", "activations"] = "both",
    teacher: str = "",
    passes: int = 60,
    batch: int = 256,
    lr: float = 1e-3,
    damping: float = 0.0,
) -> Recipe:
    """ReActNet, a convolutional network of one bit, trained on CIFAR-10 as `binaryvit.cifar10`, to compare with.

    frugalvit train binaryvit.cifar10_reactnet model=react_resnet18_32 --data DOWNLOADS --out runs/reactnet
    Ours, not a paper's. By labels, with all 50,000 pictures, `reactnet_a_32` gets 85.9 of the test pictures right (n = 1):
    docs/results/binary_ladder.md. It has MobileNet's shape, `react_resnet18_32` ResNet-18's.
    """
    refuse_damping(bits, damping)
    spec = replace(named(model), classes=None)
    spec = with_real_weights(spec) if bits == "activations" else with_damping(spec, damping)
    return small(spec, passes, batch, lr, 1e-5 if bits == "activations" else 0.0, teacher)


def digits(
    *,
    rung: Rung = "pyramid",
    bits: Bits = "both",
    teacher: str = "",
    epochs: int = 20,
    batch: int = 64,
    lr: float = 4e-3,
    dim: int = 32,
    damping: float = 0.0,
    step: float = 0.06,
) -> Recipe:
    """A small BinaryViT on 1,297 handwritten digits, enlarged to 16 x 16 pixels, or a rung below it; no download.

    frugalvit train binaryvit.digits rung=affine --out runs/digits
    Ours, not a paper's. `dim` is the width of a pyramid's first stage, half of its second's and of a flat model's.
    """
    flat = partial(binary_deit, dim=2 * dim, heads=4, depth=2, patch=4, image=16, channels=1, classes=None)
    stages = partial(binaryvit, heads=(2, 4), depths=(1, 1), ratios=(4, 4), reductions=(2, 1))
    pyramid = partial(stages, dim=dim, patch=2, image=16, channels=1, classes=None)
    spec = of_bits(climbed(rung, flat, pyramid), bits, damping, step)
    spec = swap(spec, AddPositions, lambda _: AddPositions(POSITIONS))
    made = trained(spec, epochs, batch, lr)
    made = replace(made, optimizer=AdamW(lr, weight_decay=1e-5 if bits == "activations" else 0.0))
    return of_logits(made, teacher) if teacher else made
