"""What could be trained, for each way to begin: models from the best published to the fastest. No torch.

A ladder is ordered by a paper's own table, and the budget says how far down it one must go.
"""

from __future__ import annotations

from dataclasses import dataclass

from frugalvit.advise import rules
from frugalvit.advise.facts import Facts, Machine
from frugalvit.advise.plan import Candidate, Length
from frugalvit.advise.rules import Choice

IMAGENET_1K = "ImageNet-1k"
IMAGENET_COLORS = ("data.mean=0.485,0.456,0.406", "data.std=0.229,0.224,0.225")
HALF = ("data.mean=0.5,0.5,0.5", "data.std=0.5,0.5,0.5")  # what AugReg's weights expect

# AugReg, Table 3, pre-trained on ImageNet-21k for 300 epochs: at 224 and at 384. No Ti/16: B/32 is as fast and 5 points better
RELEASED = {
    "vit_base_patch16_224": ("B/16", 83.96, 85.49),
    "vit_small_patch16_224": ("S/16", 80.46, 83.73),
    "vit_base_patch32_224": ("B/32", 79.13, 83.59),
    "vit_small_patch32_224": ("S/32", 73.47, 79.58),
}
DEIT = {"deit_base_patch16_224": ("DeiT-B", 81.8), "deit_small_patch16_224": ("DeiT-S", 79.8)}
DEIT |= {"deit_tiny_patch16_224": ("DeiT-Ti", 72.2)}
CONVIT = {"convit_base": ("ConViT-B", 82.4), "convit_small": ("ConViT-S", 81.3), "convit_tiny": ("ConViT-Ti", 73.1)}

# Lee et al., with SPT and LSA. PiT and T2T cost more than Swin, and are behind it but for a hundredth on SVHN
SL = {
    "cifar10": {"swin": 95.93, "cait": 95.81, "vit": 94.53},
    "cifar100": {"cait": 80.32, "swin": 79.99, "vit": 76.92},
    "svhn": {"cait": 98.28, "swin": 97.92, "vit": 97.79},
    "tiny_imagenet": {"cait": 67.18, "swin": 64.95, "vit": 61.07},
}
SL_NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN", "tiny_imagenet": "Tiny ImageNet"}
SL_LR = {"vit": 3e-3, "swin": 1e-3, "cait": 1e-3}
FAMILIES = {"vit": "SL-ViT", "swin": "SL-Swin", "cait": "SL-CaiT"}
PETS_EPOCH = 6  # steps of 512 pictures: AugReg's transfer to Pets has the shortest epochs of all papers here
BEST = 97.25  # our own training on CIFAR-10, the mean of docs/results/headline.md
MEASURED = (  # how that was
    "the mean of 3 seeds on its 10,000 test pictures after learning from its 50,000 others, with precision=bf16_stream "
    "data.dataset.holdout=0.0, in 492 seconds of one H200 at most"
)


@dataclass(frozen=True)
class Ladder:
    """Candidates from the best to the fastest, and which is taken where no budget is given, and why."""

    candidates: tuple[Candidate, ...]
    usual: int
    lead: str
    model: Choice  # how the candidates are ordered, and by whom

    @property
    def middle(self) -> Candidate:
        return self.candidates[self.usual]


def reading(facts: Facts, dataset: str) -> tuple[str, ...]:
    """What a recipe that reads `dataset` must be told to read these pictures."""
    own = () if facts.dataset == dataset else (f"data.dataset={facts.dataset}",)
    return own + (("data.order=Balanced",) if rules.balances(facts) else ())


def instead_of(facts: Facts, known: str, dataset: str) -> tuple[str, ...]:
    """What a recipe for a public data set must be told to take these pictures: its classes are then counted."""
    return () if facts.known == known else ("model.classes=none", *reading(facts, dataset))


def transfer(facts: Facts, init: str) -> Ladder:
    """Released weights: AugReg's, or those that were named as model.tag."""
    if init not in ("auto", "none"):
        return named_transfer(facts, init)
    rows = tuple(
        from_weights(facts, model, f"{model}.augreg_in21k", label, top1, HALF) for model, (label, top1, _) in RELEASED.items()
    )
    why = (
        "on ImageNet at 224: B/16 83.96, S/16 80.46, B/32 79.13, S/32 73.47; larger patches rather than Ti/16, which is as "
        "slow as B/32 and gave 73.75"
    )
    return Ladder(rows, 1, "a quarter of B/16's compute", Choice("model", "", why, f"{rules.AUGREG}, Table 3 and §4.6"))


def named_transfer(facts: Facts, init: str) -> Ladder:
    model, _, tag = init.partition(".")
    half = HALF if tag.startswith("augreg") else ()
    label, top1, _ = RELEASED.get(model, (model, 0.0, 0.0))
    only = from_weights(facts, model, init, label, top1 if tag == "augreg_in21k" else 0.0, half)
    return Ladder((only,), 0, "the model of the weights", Choice("model", "", "you named them", "--init"))


def from_weights(facts: Facts, model: str, init: str, label: str, top1: float, own: tuple[str, ...]) -> Candidate:
    settings = (f"model={model}", *reading(facts, "ImageFolder"), *own)
    length = Length("epochs", rules.transfer_epochs(facts.pictures), 5)
    return Candidate("transfer.folder", settings, init, facts.pictures, length, 64, label, top1, IMAGENET_1K)


def small(facts: Facts, here: Machine) -> Ladder:
    """From scratch on small pictures: Lee et al.'s protocol of the same or of the nearest data set, and ours above it."""
    recipe = small_recipe(facts)
    names = {"cifar10": "Cifar10", "cifar100": "Cifar100", "svhn": "Svhn", "tiny_imagenet": "TinyImageNet"}
    own = instead_of(facts, recipe, names[recipe])
    rows = tuple(
        Candidate(
            f"small.{recipe}",
            (f"model={family}", "add=spt+lsa", *own),
            "",
            facts.pictures if own else facts.whole,
            Length("passes", 300, 30),
            128,
            FAMILIES[family],
            top1,
            SL_NAMES[recipe],
            lr=SL_LR[family],
        )
        for family, top1 in SL[recipe].items()
    )
    source = f"{rules.SMALL}, the results on small data sets"
    if not rules.takes_best(facts):
        choice = Choice("model", "", f"on {SL_NAMES[recipe]}: {listed(recipe)}", source)
        return Ladder(rows, len(rows) - 1, "the paper's cheapest", choice)
    best = best_cifar10(facts, here)
    why = f"on {best.on}: {best.model} {best.top1:g}, {listed('cifar10')}"
    why += "" if recipe == "cifar10" else f"; on {SL_NAMES[recipe]}: {listed(recipe)}"
    choice = Choice("model", "", why, f"{rules.OURS}, docs/results/headline.md, and {source}")
    return Ladder((best, *rows), 0, "ahead of all that the paper has on CIFAR-10", choice)


def listed(recipe: str) -> str:
    """The paper's figures on a data set."""
    return ", ".join(f"{FAMILIES[family]} {top1:g}" for family, top1 in SL[recipe].items())


def best_cifar10(facts: Facts, here: Machine) -> Candidate:
    """Our own recipe, which was measured on CIFAR-10 alone; elsewhere at the pictures' own size, as far as it takes it."""
    other = facts.known != "cifar10"
    image = (f"image={facts.side}",) if other and facts.side in rules.BEST_SIDES and facts.side != 32 else ()
    colors = IMAGENET_COLORS if other else ()
    stream = ("precision=bf16_stream",) if here.precision == "bf16" else ()  # as it was measured
    settings = (*image, *instead_of(facts, "cifar10", "Cifar10"), *colors, *stream)
    length = Length("passes", rules.BEST_PASSES, 30)
    kept = "" if other or not facts.held else f"; here {facts.held:,} of those are kept for validation"
    return Candidate(
        "small.best_cifar10",
        settings,
        "",
        facts.pictures,
        length,
        512,
        "our pyramid",
        BEST,
        SL_NAMES["cifar10"],
        ours=MEASURED + kept,
        lr=3e-3,
        optimizer="Muon",
    )


def small_recipe(facts: Facts) -> str:
    if facts.known in SL:
        return facts.known
    if rules.small_side(facts) == 64:
        return "tiny_imagenet"
    return "cifar10" if facts.classes <= 10 else "cifar100"


def local(facts: Facts) -> Ladder:
    """From scratch on a part of what ImageNet has: ConViT."""
    length = Length("epochs", rules.local_epochs(facts.pictures), 30)
    own = instead_of(facts, "imagenet", "ImageNet")
    rows = tuple(
        Candidate("convit.imagenet", (f"model={model}", *own), "", facts.pictures, length, 1024, label, top1, IMAGENET_1K)
        for model, (label, top1) in CONVIT.items()
    )
    choice = Choice("model", "", "on all of ImageNet: Ti 73.1, S 81.3, B 82.4", f"{rules.CONVIT}, Tables 1 and 2")
    return Ladder(rows, 1, "the size that the paper tested on parts of ImageNet", choice)


def imagenet(facts: Facts) -> Ladder:
    """From scratch on about as many pictures as ImageNet has: DeiT."""
    own = instead_of(facts, "imagenet", "ImageNet")
    length = Length("epochs", 300, 30)
    rows = tuple(
        Candidate("deit.imagenet", (f"model={model}", *own), "", facts.pictures, length, 1024, label, top1, IMAGENET_1K)
        for model, (label, top1) in DEIT.items()
    )
    choice = Choice("model", "", "on ImageNet: Ti 72.2, S 79.8, B 81.8", f"{rules.DEIT}, results on ImageNet")
    return Ladder(rows, 1, "a quarter of B's compute, and robust where B is brittle (deit issues 40, 63, 125)", choice)


def many(facts: Facts) -> Ladder:
    """Far more pictures than ImageNet: AugReg's pre-training, 30 epochs."""
    top1s = (80.42, 76.04, 72.24, 68.49)
    rows = [
        augreg(facts, model, label, top1, Length("epochs", 30, 5))
        for (model, (label, *_)), top1 in zip(RELEASED.items(), top1s, strict=True)
    ]
    why = "on ImageNet at 224, after 30 epochs of ImageNet-21k: B/16 80.42, S/16 76.04, B/32 72.24, S/32 68.49"
    return Ladder(tuple(rows), 1, "a quarter of B/16's compute", Choice("model", "", why, f"{rules.AUGREG}, Table 3"))


def augreg(facts: Facts, model: str, label: str, top1: float, length: Length) -> Candidate:
    """AugReg's pre-training under the setting that its Figure 4 has for the size of data and model."""
    setting = rules.augreg_setting(facts.pictures, length.usual, label)
    bias = () if facts.classes == 1000 else (f"model.readout.linear.bias=Filled({rules.many_bias(facts.classes)})",)
    own = (*bias, *instead_of(facts, "imagenet", "ImageNet"))
    settings = (
        f"model={model}",
        f"preset={setting.preset}",
        f"regularization={setting.regularization:g}",
        f"weight_decay={setting.weight_decay:g}",
        *own,
    )
    return Candidate("augreg.imagenet", settings, "", facts.pictures, length, 4096, label, top1, IMAGENET_1K)


def digits(facts: Facts) -> Ladder:
    """The digits that come along."""
    one = Candidate("vit.digits", (), "", facts.pictures, Length("epochs", 60, 10), 64, "a ViT of width 64", 98.6, "digits")
    why = "202,186 parameters, sixteen tokens"
    choice = Choice("model", "", why, f"{rules.OURS}; docs/results/digits_families.md")
    return Ladder((one,), 0, "four blocks, minutes on one core", choice)


def at_384(facts: Facts, model: str) -> Candidate:
    """AugReg's own transfer, at 384 pixels, with its SGD: steps, warm-up and rate by the size of the data (Table 4)."""
    label, _, top1 = RELEASED[model]
    larger, init = model.replace("_224", "_384"), f"{model}.augreg_in21k"
    own: tuple[str, ...] = ()
    if facts.known == "imagenet":
        recipe, steps = "augreg.to_imagenet", 20_000
    elif facts.pictures >= 250_000:
        recipe, own, steps = "augreg.to_folder", ("lr=0.03", "warmup=500"), 20_000
    elif facts.pictures >= 10_000:
        recipe, own, steps = "augreg.to_folder", ("warmup=200",), 2_500
    else:
        recipe, steps = "augreg.to_folder", 500
    reads = () if facts.known == "imagenet" else reading(facts, "ImageFolder")
    settings = (f"model={larger}", *own, *reads)
    length = Length("steps", steps, 500)
    name, lr = f"{label} at 384", 0.03 if steps == 20_000 else 3e-3
    return Candidate(
        recipe,
        settings,
        init,
        facts.pictures,
        length,
        512,
        name,
        top1,
        IMAGENET_1K,
        lr=lr,
        optimizer="Sgd",
        epoch=PETS_EPOCH,
    )
