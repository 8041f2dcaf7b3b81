"""The rules: each a small function from facts to a choice, with the paper that it comes from. No torch.

Numbers are the papers' (docs/papers has the pages); where a threshold is ours, the source says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from frugalvit.advise.facts import Facts, Machine
from frugalvit.advise.plan import LEAST_BATCH, Plan

AUGREG = "Steiner et al. 2022 (AugReg)"
DEIT = "Touvron et al. 2021 (DeiT)"
CONVIT = "d'Ascoli et al. 2021 (ConViT)"
SMALL = "Lee et al. 2021 (SPT, LSA)"
OURS = "ours"

ENOUGH = 1_000_000  # pictures from which on training from scratch is worth its cost; AugReg tested transfer below
MANY = 5_000_000  # between ImageNet-1k and ImageNet-21k, AugReg's two sizes of data
IMAGENET = 1_281_167  # pictures to train on
TINY_SIDE = 48  # pixels up to which pictures are treated as of 32, and then up to which as of 64: Lee et al.'s two sizes
SMALL_SIDE = 96
LOCAL = 50_000  # pictures from which on ConViT was trained at 224 pixels
UNEVEN = 10  # as in `data check`
REPEATED = 3  # pictures of the smallest class, below which drawing it as often as others would show the same few all the time
MOST_EPOCHS = 100  # of a transfer
BEST_PASSES = 360  # of small.best_cifar10
BEST_CLASSES = 10  # at most, since it was measured with ten alone
BEST_SIDES = range(28, SMALL_SIDE + 1)  # pixels that it takes
HOLDS = "they come from ImageNet-21k, which holds these pictures among its 14 million"
UNTRIED = (  # of more pictures than ENOUGH
    "no paper here tells whether released weights help with so many: AugReg's, from ImageNet-21k, were transferred to fewer, "
    "and to ImageNet, which is part of it"
)
PETS, PETS_SEEN, GROWTH = 3312, 500 * 512, 0.62  # AugReg's shortest transfer, and how others grow from it

Start = Literal["digits", "transfer", "small", "local", "imagenet", "many"]
Preset = Literal["none", "light1", "light2", "medium1", "medium2"]


@dataclass(frozen=True)
class Choice:
    """One decision: about what, what was chosen, why, and who says so."""

    about: str
    chosen: str
    why: str
    source: str


@dataclass(frozen=True)
class Setting:
    """AugReg's setting for a size of model and of data."""

    preset: Preset
    regularization: float
    weight_decay: float


# ------------------------------------------------------------------------------------------------ which way


def start_of(facts: Facts, init: str) -> Start:
    """The way to train: by the data, and by whether released weights may be used ("none": they may not).

    From ENOUGH on they are a runner-up: that they help is known for ImageNet alone, which is part of what they come from.
    """
    if init not in ("auto", "none"):
        return "transfer"
    if facts.known == "digits":
        return "digits"
    if init == "auto" and facts.pictures < ENOUGH:
        return "transfer"
    if facts.side <= SMALL_SIDE or facts.pictures < LOCAL:
        return "small"
    if facts.pictures < ENOUGH:
        return "local"
    return "imagenet" if facts.pictures < MANY else "many"


def start(facts: Facts, init: str) -> Choice:
    """Whether to begin from released weights."""
    count = f"{facts.pictures:,} pictures"
    if init not in ("auto", "none"):
        return Choice("start", f"the weights of {init}", "you named them", "--init")
    if facts.known == "digits":
        return Choice("start", "from scratch", "8 x 8 gray digits are unlike anything that weights were released for", OURS)
    if facts.pictures < ENOUGH:
        known = (
            "with 3 thousand pictures (Pets) no amount of training from scratch came near to transfer; with 30 thousand "
            "(Resisc45) a hundred times the compute came close and still lost"
        )
        if init == "auto":
            return Choice("start", "released weights", f"{count} are few: {known}", f"{AUGREG}, §4.2 and Figure 2")
        why = f"--init none. Released weights would be better, were they allowed: {count} are few, and {known}"
        return Choice("start", "from scratch", why, f"{AUGREG}, §4.2 and Figure 2")
    why = f"{count}: DeiT needs no other data from ImageNet's {IMAGENET:,} on"
    if init == "none":
        return Choice("start", "from scratch", why, f"{DEIT}, Table 9; the threshold of {ENOUGH:,} is ours")
    why += f". Released weights would be no transfer: {HOLDS}" if facts.known == "imagenet" else f"; {UNTRIED}"
    return Choice("start", "from scratch", why, f"{DEIT}, Table 9; {AUGREG}, Table 4; the threshold of {ENOUGH:,} is ours")


# ------------------------------------------------------------------------------------------------ transfer


def weights() -> Choice:
    why = "one file a size, the one with the best accuracy where it was pre-trained: as good as trying many in most cases"
    return Choice("weights", "pre-trained on ImageNet-21k for 300 epochs", why, f"{AUGREG}, §4.3 and §4.5")


def transfer_image(facts: Facts) -> Choice:
    """The side of the pictures that a released model is given."""
    if facts.side <= SMALL_SIDE:
        why = f"pictures of {facts.side} pixels are enlarged; CIFAR-10 gave 99.1 at 224 and at 384 alike"
        return Choice("image", "224", why, f"{DEIT}, Table 7")
    why = "384 pixels gave 3.3 points more on ImageNet (S/16: 80.46, 83.73) for 3.4 times the multiply-accumulates"
    return Choice("image", "224", why, f"{AUGREG}, Table 3")


def transfer_augment() -> Choice:
    why = "stronger augmentation and regularization did not help where released models are transferred"
    return Choice("augment", "crop and flip alone", why, f"{AUGREG}, Figure 2")


def transfer_epochs(pictures: int) -> int:
    """Epochs in which as many pictures are seen as in AugReg's transfers (Table 4), grown by a power of the data's size.

    500 steps of 512 for 3,312 pictures (Pets), 2,500 for 50,000 (CIFAR-100), 20,000 for 1.28 M (ImageNet): within 8 %.
    """
    seen = PETS_SEEN * (pictures / PETS) ** GROWTH
    return max(1, min(MOST_EPOCHS, round(seen / pictures)))


def transfer_length(facts: Facts) -> Choice:
    epochs = transfer_epochs(facts.pictures)
    seen = "256 thousand for 3,312 (Pets), 1.28 M for 50,000 (CIFAR-100), 10.2 M for 1.28 M (ImageNet)"
    why = f"about as many pictures as AugReg's transfers saw: {seen}; never more than {MOST_EPOCHS} epochs"
    if epochs == MOST_EPOCHS:
        why = f"as many as we advise; AugReg's transfers saw more pictures ({seen}), but so few as here would come too often"
    return Choice("length", f"{epochs} epochs", why, f"{AUGREG}, Table 4; in between, ours")


def transfer_recipe() -> Choice:
    why = "AdamW, lower blocks learn slower by 0.75 a block; AugReg's own SGD is `augreg.to_folder`"
    return Choice("recipe", "transfer.folder", why, OURS)


# ------------------------------------------------------------------------------------------------ from scratch


def small_recipe(facts: Facts, side: int) -> Choice:
    """The protocol for small pictures, always with SPT and LSA. `side` is the model's."""
    if facts.side > SMALL_SIDE:
        why = (
            f"{facts.pictures:,} pictures are too few for 224 pixels without released weights; shrunk to 64, SPT and LSA help: "
        )
    else:
        why = f"pictures of {facts.side} pixels, from scratch: "
    why += "ViT 93.58 -> 94.53 on CIFAR-10, 73.81 -> 76.92 on CIFAR-100, 57.07 -> 61.07 on Tiny ImageNet"
    return Choice("recipe", f"SPT and LSA, at {side} pixels", why, f"{SMALL}, §3 and the results on small data sets")


def small_length(recipe: str) -> Choice:
    if recipe == "small.best_cifar10":
        why = "what 540 seconds of one H200 have room for, on CIFAR-10 with precision=bf16_stream"
        return Choice("length", f"{BEST_PASSES} passes", why, f"{OURS}; docs/results/headline.md")
    why = "the paper's 100 epochs walk three permutations each"
    return Choice("length", "300 passes", why, f"{SMALL}, its released code")


def takes_best(facts: Facts) -> bool:
    """Whether `small.best_cifar10` is for these pictures; for public data sets but CIFAR-10 the paper's protocols are."""
    return facts.known in ("", "cifar10") and facts.classes <= BEST_CLASSES and facts.side <= SMALL_SIDE


def best_colors() -> Choice:
    """How `small.best_cifar10` normalizes other pictures."""
    why = "the recipe's own are CIFAR-10's; ImageNet is of photographs of all kinds"
    return Choice("colors", "ImageNet's mean and std", why, OURS)


def small_side(facts: Facts) -> int:
    """The nearest of Lee et al.'s two sizes."""
    return 32 if facts.side <= TINY_SIDE else 64


def local_recipe(facts: Facts) -> Choice:
    share = facts.pictures / IMAGENET
    why = (
        f"{share:.0%} of ImageNet's pictures: attention that begins as a convolution pays with few. ConViT-S against DeiT-S: "
        "47.8 against 34.8 with 5 %, 59.6 against 48.0 with 10 %, 73.7 against 66.1 with 30 %"
    )
    return Choice("recipe", "ConViT", why, f"{CONVIT}, Table 2")


def local_epochs(pictures: int) -> int:
    """As many pictures as 300 epochs of ImageNet have (ConViT, Table 2), but at most 1,000 epochs."""
    return 300 if pictures >= ENOUGH else min(1000, round(300 * IMAGENET / pictures))


def local_length(facts: Facts) -> Choice:
    why = "fewer pictures, more epochs, so that as many are seen as in 300 epochs of ImageNet; CIFAR-100 overfits after 1,000"
    return Choice("length", f"{local_epochs(facts.pictures)} epochs", why, f"{CONVIT}, Table 2 and supplementary C")


def imagenet_recipe() -> Choice:
    why = "RandAugment, mixup, cutmix, erasing, repeated augmentation and stochastic depth stand in for more data"
    return Choice("recipe", "DeiT's", why, f"{DEIT}, Table 9")


def imagenet_length() -> Choice:
    why = "as published; without a teacher nothing is gained after 400"
    return Choice("length", "300 epochs", why, f"{DEIT}, Table 9; deit issue 66")


def augreg_setting(pictures: int, epochs: int, model: str) -> Setting:
    """Augmentation, regularization and weight decay for a size (Ti/16, S/32, S/16, B/32, B/16, L/16), by Figure 4."""
    base = model[0] in "BL"
    decay = 0.1 if base or pictures < MANY else 0.03
    if pictures < MANY:  # ImageNet-1k: always augment, and regularize from B on
        preset: Preset = "light1" if model == "Ti/16" else "medium2"
        return Setting(preset, 0.1 if base else 0.0, decay)
    if epochs < 100:  # ImageNet-21k, 30 epochs: almost everything hurts
        short: dict[str, Preset] = {"B/16": "light1", "L/16": "light2"}
        return Setting(short.get(model, "none"), 0.0, decay)
    long: dict[str, Preset] = {"S/16": "light1", "B/32": "light2", "B/16": "medium1", "L/16": "medium2"}
    return Setting(long.get(model, "none"), 0.0, decay)


def many_recipe(facts: Facts, setting: Setting) -> Choice:
    chosen = f"AugReg's: {setting.preset}, regularization {setting.regularization:g}, weight decay {setting.weight_decay:g}"
    why = f"with {facts.pictures:,} pictures and 30 epochs, augmentation and regularization hurt all but the largest models"
    return Choice("recipe", chosen, why, f"{AUGREG}, §4.4 and Figure 4")


def many_length() -> Choice:
    why = "30 epochs of ImageNet-21k cost what 300 of ImageNet-1k do, and transfer better"
    return Choice("length", "30 epochs", why, f"{AUGREG}, §4.3 and Figure 3")


def many_bias(classes: int) -> float:
    """The head's first bias: each class at a probability of 1 / classes (AugReg: -6.9 for 1,000, -10 for 21,843)."""
    return -round(math.log(classes), 1)


def digits_recipe() -> Choice:
    why = "a small ViT made for these digits; 98.6 and 97.8 of 500 held-out ones (seeds 0, 1; docs/notebook.md)"
    return Choice("recipe", "vit.digits", why, OURS)


# ------------------------------------------------------------------------------------------------ whatever the way


def balances(facts: Facts) -> bool:
    """Whether rare classes are to be drawn as often as common ones. Public data sets are left as their papers had them."""
    return facts.uneven >= UNEVEN and facts.least >= REPEATED and not facts.known and facts.pictures < ENOUGH


def order(facts: Facts) -> Choice:
    why = (
        f"the largest class has {facts.most:,} pictures, the smallest {facts.least:,}, so the rare ones would hardly count; "
        "accuracy over all pictures may fall for it, so read that of each class (`evaluate`)"
    )
    source = f"Kang et al. 2020 (class-balanced sampling); the threshold of {UNEVEN} times is ours"
    return Choice("order", "every class equally often", why, source)


def batch(plan: Plan, machine: Machine) -> Choice:
    full = plan.candidate.filled
    why = f"a batch of {full} does not fit {machine.memory / 2**30:.0f} GiB; the gradients of several are added up instead"
    return Choice("batch", f"{plan.accumulate} x {plan.batch}", why, OURS)


def smaller_batch(plan: Plan) -> Choice:
    """A batch that the pictures can fill."""
    own = plan.candidate
    enough = own.filled * own.epoch <= own.pictures
    rule = f"an epoch has {own.epoch} steps or more" if enough else f"of so few, {LEAST_BATCH} at most"
    rate = "the learning rate stays the recipe's" if own.lr else "the learning rate shrinks in proportion"
    rate = "the learning rate is the highest that is known to work with it" if own.rate else rate
    why = f"the recipe's {own.batch} are too many for {own.pictures:,} pictures: {rule}; {rate}"
    return Choice("batch", f"{own.filled} pictures a step", why, OURS)
