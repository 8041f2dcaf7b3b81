"""A convolutional network for CIFAR-10 that is trained in minutes: a teacher for small transformers."""

from __future__ import annotations

from typing import Literal

from frugalvit.data.augment import Augment, Flip, PadCrop, Step
from frugalvit.data.autoaugment import AutoAugment
from frugalvit.data.dataset import Cifar10
from frugalvit.data.erase import EraseConstant
from frugalvit.data.mix import Mix, NoMix, SwitchMix
from frugalvit.data.randaugment import RandAugment
from frugalvit.data.trivialaugment import TrivialAugment
from frugalvit.errors import SpecError
from frugalvit.nn.conv_blocks import BasicBlock, Stem
from frugalvit.nn.init import Zeros
from frugalvit.objective.loss import CrossEntropy
from frugalvit.objective.objective import Objective, Supervised
from frugalvit.training.average import EmaOver
from frugalvit.training.duration import Epochs, Fraction
from frugalvit.training.optimizer import Muon, Optimizer, Sgd
from frugalvit.training.recipe import Data, Recipe
from frugalvit.training.schedule import Cosine
from frugalvit.zoo.resnet import resnet

Policy = Literal["none", "autoaugment", "trivialaugment", "randaugment"]
POLICIES: dict[Policy, tuple[Step, ...]] = {
    "none": (),
    "autoaugment": (AutoAugment("cifar10"),),
    "trivialaugment": (TrivialAugment(),),
    "randaugment": (RandAugment(),),
}
LR: dict[str, float] = {"sgd": 0.4, "muon": 2e-3}  # with 512 pictures a step


def cifar10(
    *,
    width: int = 64,
    depth: int = 2,
    stages: int = 4,
    passes: int = 240,
    batch: int = 512,
    lr: float | None = None,
    weight_decay: float | None = None,
    augment: Policy = "autoaugment",
    cutout: float = 1.0,
    mixed: float = 0.0,
    smoothing: float = 0.1,
    optimizer: Literal["sgd", "muon"] = "sgd",
) -> Recipe:
    """A ResNet-18 for 32-pixel pictures, from scratch: `depth` blocks a stage, `width` channels in the first of them.

    frugalvit train convnet.cifar10 --data DOWNLOADS --out runs/convnet
    Ours, not a paper's. On CIFAR-10, learning from all 50,000 pictures (data.dataset.holdout=0.0): 96.12 of the test pictures
    (n = 1) after 288 seconds on an H200 that it shared with other trainings: docs/results/distill_table.md.
    `stages=3 width=128` is a wide ResNet of 16 layers, its activations behind the sums.
    `cutout` is the share of pictures that lose a square of half their side, `mixed` that of batches that are mixed. The rate
    is 0.4 for SGD with Nesterov's momentum, growing with the batch from 512, and 2e-3 for Muon; the decay 5e-4 and 0.05.
    """
    if stages < 1:
        raise SpecError(f"{stages} stages. Use 1 and more.", path="stages")
    mean, std = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
    spec = resnet(block=BasicBlock(width, scale=Zeros()), depths=(depth,) * stages, stem=Stem(width), image=32, classes=None)
    square = EraseConstant(cutout, area=(0.25, 0.25), ratio=(1.0, 1.0)) if cutout else None
    mix: Mix = SwitchMix(mixup_alpha=0.8, cutmix_alpha=1.0, probability=mixed, switch=0.5) if mixed else NoMix()
    peak = LR[optimizer] if lr is None else lr
    rates: dict[str, Optimizer] = {
        "sgd": Sgd(peak, per=512, weight_decay=5e-4 if weight_decay is None else weight_decay, nesterov=True),
        "muon": Muon(peak, weight_decay=0.05 if weight_decay is None else weight_decay),
    }
    return Recipe(
        model=spec,
        data=Data(Cifar10(), Augment((Flip(0.5), PadCrop(4), *POLICIES[augment])), mean, std, crop=1.0, erase=square, mix=mix),
        objective=Objective((Supervised(loss=CrossEntropy(smoothing)),)),
        optimizer=rates[optimizer],
        schedule=Cosine(Fraction(0.1), start=1e-6),
        duration=Epochs(passes),
        batch=batch,
        average=EmaOver(0.05),
        evaluate=Epochs(20),
        save=Epochs(40),
        log_every=50,
    )
