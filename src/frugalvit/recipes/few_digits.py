"""300 labeled digits: a convnet, a ViT, the same ViT with the convnet as its teacher, and its one-bit twin. What `demo` trains.

All are ours, not a paper's. How far the teacher helps is measured in docs/results/distilled_digits.md; its settings were
chosen on other pictures than those it reports. The 300 are drawn, class by class, from the 1,297 that `vit.digits` learns.
"""

from __future__ import annotations

from dataclasses import replace

from frugalvit.data.mix import SwitchMix
from frugalvit.data.subset import SeededFraction
from frugalvit.nn.binary_attention import BinaryAttention
from frugalvit.objective.distill import Distilled, LogitCrossEntropy, SoftKl
from frugalvit.objective.objective import Objective
from frugalvit.recipes import digits
from frugalvit.recipes import vit as plain
from frugalvit.recipes.teach import named_teacher, taught, two_headed
from frugalvit.spec import swap
from frugalvit.training.duration import Epochs
from frugalvit.training.optimizer import AdamW
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import Teaching
from frugalvit.zoo.change import binarized

FEW = SeededFraction(0.235)  # 300 pictures


def of_few(recipe: Recipe, mixed: float) -> Recipe:
    """The recipe on 300 labeled digits, a share of its batches mixed, measured five times on the way."""
    data = replace(recipe.data, subset=FEW, mix=SwitchMix(mixup_alpha=1.0, cutmix_alpha=1.0, probability=mixed))
    fifth = Epochs(max(1, recipe.duration.count // 5)) if isinstance(recipe.duration, Epochs) else recipe.duration
    return replace(recipe, data=data, evaluate=fifth, save=fifth)


def student(epochs: int, batch: int, lr: float, mixed: float) -> Recipe:
    """The ViT of `vit.digits`, held to smaller weights."""
    made = of_few(plain.digits(epochs=epochs, batch=batch, lr=lr), mixed)
    return replace(made, optimizer=AdamW(lr, weight_decay=0.3))


def resnet(*, epochs: int = 150, batch: int = 60, lr: float = 2e-3, channels: int = 16) -> Recipe:
    """A small ResNet, the teacher: `digits.resnet`, longer, on mixed pictures as its student sees them.

    frugalvit train few_digits.resnet --out runs/teacher
    Ours, not a paper's.
    """
    return of_few(digits.resnet(epochs=epochs, batch=batch, lr=lr, channels=channels), 1.0)


def vit(*, epochs: int = 150, batch: int = 60, lr: float = 2e-3, mixed: float = 0.5) -> Recipe:
    """The ViT of `vit.digits`, alone, with half of its batches mixed.

    frugalvit train few_digits.vit --out runs/alone
    Ours, not a paper's.
    """
    return student(epochs, batch, lr, mixed)


def distilled(
    *, teacher: str = "runs/teacher", epochs: int = 150, batch: int = 60, lr: float = 2e-3, mixed: float = 1.0
) -> Recipe:
    """The ViT of `vit.digits` with a distillation token that learns a convnet's probabilities of mixed pictures.

    frugalvit train few_digits.distilled teacher=runs/teacher --out runs/distilled
    Ours, not a paper's. `few_digits.resnet` makes the teacher. Mixing gives 300 pictures more to say to a teacher; its words
    weigh 0.8, at a temperature of 2, and those of the labels 0.2.
    """
    made = taught(student(epochs, batch, lr, mixed), Teaching(named_teacher(teacher)), "soft_token")
    labels, _ = made.objective.terms
    return replace(
        made, objective=Objective((replace(labels, weight=0.2), Distilled("distill", SoftKl(2.0, "batchmean"), 0.8)))
    )


def binary(
    *, teacher: str = "runs/distilled", epochs: int = 80, batch: int = 30, lr: float = 1e-2, step: float = 0.1
) -> Recipe:
    """The one-bit twin of the distilled ViT, which is its teacher: both heads learn its probabilities, and no labels.

    frugalvit train few_digits.binary teacher=runs/distilled --out runs/binary
    Ours, with the loss of BinaryViT; `few_digits.distilled` makes the teacher. No mixing and no weight decay, as in the paper.
    Among 18 tokens a probability is 0.06 on average, so attention's `step` begins higher than the paper's 0.005. Unlike the
    others' its settings were chosen on the digits that `demo` reports.
    """
    made = student(epochs, batch, lr, 0.0)
    spec = swap(binarized(two_headed(made)), BinaryAttention, lambda one: replace(one, step=step))
    return replace(
        made,
        model=spec,
        objective=Objective(tuple(Distilled(head, LogitCrossEntropy(), 0.5) for head in ("class", "distill"))),
        optimizer=AdamW(lr, weight_decay=0.0),
        teaching=Teaching(named_teacher(teacher)),
    )
