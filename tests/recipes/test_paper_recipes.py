"""The recipes of CaiT, ConViT, SPT/LSA and AugReg are what the papers and their releases say."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from frugalvit.data.arrays import Arrays
from frugalvit.data.augment import Flip, PadCrop, ResizedCrop, deit_augment
from frugalvit.data.autoaugment import AutoAugment
from frugalvit.data.dataset import Cifar10, Cifar100, ImageFolder, ImageNet, Svhn, TinyImageNet
from frugalvit.data.erase import Erase, EraseConstant
from frugalvit.data.mix import NoMix, RolledMixup, SwitchMix
from frugalvit.data.order import Repeated, Shuffled
from frugalvit.data.source import Source
from frugalvit.data.subset import FirstFraction
from frugalvit.data.tf_randaugment import TfRandAugment
from frugalvit.data.trivialaugment import TrivialAugment
from frugalvit.errors import SpecError
from frugalvit.nn.attention import Attention
from frugalvit.nn.block import Block, SummaryBlock
from frugalvit.nn.dropout import Drop
from frugalvit.nn.init import Filled, Zeros
from frugalvit.nn.linear import Dense
from frugalvit.nn.readout import Tokens
from frugalvit.nn.score import HideSelf, LearnedScale
from frugalvit.nn.shape import Shape
from frugalvit.nn.tokenizer import ShiftedPatches
from frugalvit.objective.loss import CrossEntropy, SigmoidCrossEntropy
from frugalvit.recipes import augreg, cait, convit, deit, small, vit
from frugalvit.recipes.find import recipe
from frugalvit.spec import swap
from frugalvit.training.devices import place_for
from frugalvit.training.duration import Epochs, Fraction, Steps
from frugalvit.training.optimizer import AdamW, AllParameters, Sgd, peak_lr
from frugalvit.training.prepare import prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.schedule import Constant, Cosine


def changed(one: Recipe, other: Recipe) -> set[str]:
    return {name for name in Recipe.__dataclass_fields__ if getattr(one, name) != getattr(other, name)}


def drops(made: Recipe, kind: type) -> list[float]:
    return [layer.residual.drop for layer in made.model.layers if isinstance(layer, kind)]


# ------------------------------------------------------------------------------------------------ CaiT


def test_cait_is_deits_recipe_for_400_epochs_on_whole_pictures() -> None:
    made = cait.imagenet()
    assert changed(made, deit.imagenet()) == {"model", "data", "duration"}
    assert made.duration == Epochs(400)
    assert made.data == replace(deit.imagenet().data, crop=1.0)


@pytest.mark.parametrize(("model", "rate"), [("cait_xxs24_224", 0.05), ("cait_s36_384", 0.2), ("cait_m48_448", 0.4)])
def test_cait_drops_evenly_at_the_rate_of_its_size_and_not_in_class_blocks(model: str, rate: float) -> None:
    made = cait.imagenet(model=model)
    assert set(drops(made, Block)) == {rate}
    assert set(drops(made, SummaryBlock)) == {0.0}
    assert (made.model.image.height, made.model.image.width) == (224, 224)
    assert set(drops(cait.imagenet(model=model, drop_path=0.15), Block)) == {0.15}


def test_every_size_of_cait_has_a_rate_and_others_are_asked_for_one() -> None:
    table = dict(xxs24=0.05, xxs36=0.1, xs24=0.05, xs36=0.1, s24=0.1, s36=0.2, s48=0.3, m24=0.2, m36=0.3, m48=0.4)
    assert table == cait.DROP_PATH
    with pytest.raises(SpecError, match=r"drop_path: the paper has no rate for 'deit_tiny_patch16_224'. Set one"):
        cait.imagenet(model="deit_tiny_patch16_224")


def test_cait_is_fine_tuned_as_its_authors_say() -> None:
    made = cait.imagenet_384(model="cait_m48_448")
    assert (made.batch, made.duration, made.model.image.height) == (256, Epochs(60), 448)
    assert (made.optimizer, made.schedule) == (AdamW(5e-6, weight_decay=0.05), Constant(Epochs(5), 1e-6))
    assert set(drops(made, Block)) == {0.3}
    assert set(drops(cait.imagenet_384(), Block)) == {0.05}


# ------------------------------------------------------------------------------------------------ ConViT


@pytest.mark.parametrize(("model", "lr", "batch"), [("convit_tiny", 1e-3, 1024), ("convit_tiny_plus", 4e-4, 512)])
def test_convit_is_deits_recipe_and_its_plus_models_learn_slower(model: str, lr: float, batch: int) -> None:
    made = convit.imagenet(model=model)
    assert changed(made, deit.imagenet()) <= {"model", "optimizer", "batch"}
    assert made.data == deit.imagenet().data
    assert (made.batch, peak_lr(made.optimizer, made.pictures)) == (batch, pytest.approx(lr))
    assert drops(made, Block)[0] == 0 and drops(made, Block)[-1] == pytest.approx(0.1)
    other = convit.imagenet(model=model, batch=64, lr=1e-4)
    assert (other.batch, other.optimizer.lr) == (64, 1e-4)


@pytest.mark.parametrize("fraction", [0.05, 0.1, 0.3, 0.5, 1.0])
def test_a_fraction_is_the_first_pictures_for_as_many_steps_as_the_whole(fraction: float) -> None:
    made, whole = convit.imagenet_fraction(fraction=fraction), convit.imagenet(model="convit_small")
    assert made.data == replace(whole.data, subset=FirstFraction(fraction))
    assert made.duration.steps(1000 * fraction, 0) == whole.duration.steps(1000, 0) == 300_000
    assert changed(made, whole) <= {"data", "duration", "evaluate", "save"}


def test_impossible_fractions_are_refused_on_the_command_line() -> None:
    with pytest.raises(SpecError, match=r"fraction: a fraction of 0.0"):
        recipe("convit.imagenet_fraction", "fraction=0")


def test_convit_meets_cifar100_enlarged() -> None:
    made = convit.cifar100()
    assert made.data == replace(deit.imagenet().data, dataset=Cifar100(holdout=0.0))
    assert (made.model.classes, made.model.image.height, made.batch, made.duration) == (100, 224, 512, Epochs(3000))


# ------------------------------------------------------------------------------------------------ Lee et al.

SETS = {
    "cifar10": (Cifar10(holdout=0.0), "cifar10", 32, 10, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": (Cifar100(holdout=0.0), "cifar10", 32, 100, (0.5070, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": (Svhn(holdout=0.0), "svhn", 32, 10, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "tiny_imagenet": (TinyImageNet(), "imagenet", 64, 200, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)),
}


@pytest.mark.parametrize("name", SETS)
def test_small_data_are_augmented_mixed_and_erased_as_published(name: str) -> None:
    dataset, policy, image, classes, mean, std = SETS[name]
    made = recipe(f"small.{name}")
    data = made.data
    assert data.augment.steps == (Flip(0.5), PadCrop(4, fill=0), AutoAugment(policy, (128, 128, 128)))
    assert data.mix == SwitchMix(1.0, 1.0, probability=0.5, switch=0.5)
    assert data.erase == EraseConstant(0.25, (0.02, 0.4), (0.3, 1 / 0.3), color=mean)
    assert (data.dataset, data.mean, data.std, data.crop, data.order) == (dataset, mean, std, 1.0, Shuffled())
    assert (made.model.image.height, made.model.classes) == (image, classes)
    assert made.objective.terms[0].loss == CrossEntropy(0.1)
    assert (made.batch, made.clip, made.average, made.precision) == (128, None, None, "auto")


@pytest.mark.parametrize("model", ["vit", "cait", "pit", "swin", "t2t"])
def test_vit_learns_at_three_times_the_rate_of_the_others_and_everything_decays(model: str) -> None:
    for add in ("none", "spt+lsa"):
        made = recipe("small.cifar100", f"model={model}", f"add={add}")
        assert made.optimizer == AdamW(3e-3 if model == "vit" else 1e-3, weight_decay=0.05, decays=AllParameters())
        assert max(drops(made, Block)) == pytest.approx(0.1)
    assert recipe("small.cifar100", f"model={model}", "lr=0.002").optimizer.lr == 0.002


def test_a_hundred_epochs_of_three_walks_are_300_passes() -> None:
    made = small.cifar10()
    assert (made.duration, made.schedule) == (Epochs(300), Cosine(Fraction(0.1), start=1e-6, end=1e-6))
    steps = made.duration.steps(50_000 // 128, 0)
    assert steps == 117_000  # the release has 100 * (150,000 // 128) = 117,100: it drops fewer last batches
    assert made.schedule.warmup.steps(50_000 // 128, steps) == 30 * (50_000 // 128)


@pytest.mark.parametrize("add", ["none", "spt", "lsa", "spt+lsa"])
@pytest.mark.parametrize("model", ["vit", "cait", "pit", "swin"])
def test_what_is_added_is_what_its_name_says(model: str, add: str) -> None:
    made = recipe("small.tiny_imagenet", f"model={model}", f"add={add}").model
    found: list[Attention] = []
    swap(made, Attention, lambda one: found.append(one) or one)
    assert isinstance(made.tokenizer, ShiftedPatches) == ("spt" in add)
    assert {isinstance(one.scale, LearnedScale) for one in found} == {"lsa" in add}
    assert any(HideSelf() in one.before for one in found) == ("lsa" in add)


def test_an_unknown_choice_is_refused_with_the_choices() -> None:
    with pytest.raises(SpecError, match=r"add.*spt\+lsa"):
        recipe("small.cifar10", "add=everything")


def toy_source(image: int, classes: int) -> Source:
    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (8, image, image, 3), dtype=np.uint8)
    return Arrays(pictures, np.arange(8) % classes, [f"class {n}" for n in range(classes)], "toy")


@pytest.mark.parametrize("add", ["none", "spt+lsa"])
@pytest.mark.parametrize("model", ["vit", "pit", "swin"])
def test_a_small_recipe_takes_steps(model: str, add: str) -> None:
    made = recipe("small.cifar10", f"model={model}", f"add={add}", "batch=4")
    training = prepare(made, {"train": toy_source(32, 10)}, place_for("cpu", "fp32"))
    before = [one.detach().clone() for one in training.state.module.parameters()]
    for number in range(3):
        training.step.take([training.batches[number]])
    taken = training.step.taken()
    assert np.isfinite(taken["loss"]) and not taken["nonfinite"]
    assert all(not torch.equal(*pair) for pair in zip(before, training.state.module.parameters(), strict=True))


# ------------------------------------------------------------------------------------------------ AugReg


def test_the_presets_are_the_papers() -> None:
    table = {name: (one.layers, one.magnitude, one.alpha) for name, one in augreg.PRESETS.items()}
    assert table == {
        "none": (0, 0, 0),
        "light1": (2, 0, 0),
        "light2": (2, 10, 0.2),
        "medium1": (2, 15, 0.2),
        "medium2": (2, 15, 0.5),
        "strong1": (2, 20, 0.5),
        "strong2": (2, 20, 0.8),
    }


@pytest.mark.parametrize("preset", augreg.PRESETS)
def test_augreg_pretrains_under_a_preset(preset: str) -> None:
    made = recipe("augreg.imagenet", f"preset={preset}", "weight_decay=0.03", "regularization=0.1")
    layers, magnitude, alpha = (getattr(augreg.PRESETS[preset], name) for name in ("layers", "magnitude", "alpha"))
    rand = () if preset == "none" else (TfRandAugment(layers, magnitude, (128, 128, 128)),)
    assert made.data.augment.steps == (ResizedCrop((0.05, 1.0), (3 / 4, 4 / 3), "bilinear"), Flip(0.5), *rand)
    assert made.data.mix == (RolledMixup(alpha) if alpha else NoMix())
    assert (made.data.mean, made.data.std, made.data.erase) == ((0.5,) * 3, (0.5,) * 3, None)
    assert (made.data.crop, made.data.interpolation, made.data.dataset) == (0.875, "bilinear", ImageNet())
    assert made.objective.terms[0].loss == SigmoidCrossEntropy()
    assert (made.optimizer.weight_decay, peak_lr(made.optimizer, 4096)) == (0.03, 1e-3)
    assert (made.schedule, made.clip, made.batch) == (Cosine(Steps(10_000), 0.0, 0.0), 1.0, 4096)
    assert drops(made, Block)[0] == 0 and drops(made, Block)[-1] == pytest.approx(0.1)
    assert dropouts(made) == [0.1] * 13


def dropouts(made: Recipe) -> list[float]:
    """The rates that are not 0: behind the positions, and in each block."""
    found = [layer.rate if isinstance(layer, Drop) else getattr(layer, "dropout", 0.0) for layer in made.model.layers]
    return [rate for rate in found if rate]


@pytest.mark.parametrize("model", ["vit_tiny_patch16_224", "vit_small_r26_s32_224"])
def test_augreg_regularizes_by_one_rate_and_says_no_to_every_class_at_first(model: str) -> None:
    plain, regular = (augreg.imagenet(model=model, regularization=rate) for rate in (0.0, 0.1))
    assert not dropouts(plain) and not any(drops(plain, Block))
    assert dropouts(regular) == [0.1] * 13 and drops(regular, Block)[-1] == pytest.approx(0.1)
    assert plain.model.readout.linear == Dense(weight=Zeros(), bias=Filled(-6.9))
    head = plain.model.readout.build(Shape(12, 1, 1, ("class",)), 1000)
    logits_BC = head(torch.randn(2, 2, 12))["class"]
    assert torch.equal(logits_BC, torch.full((2, 1000), -6.9))
    assert logits_BC.sigmoid().mean().item() == pytest.approx(0.001, rel=0.01)
    recipe("augreg.imagenet", "model=deit_tiny_patch16_224")  # without regularization, any transformer


def test_vit_drops_as_published_and_transfers_do_not() -> None:
    assert dropouts(vit.imagenet()) == [0.1] * 13
    assert not dropouts(vit.imagenet(model="deit_tiny_patch16_224", dropout=0.0))
    with pytest.raises(SpecError, match=r"deit_tiny_patch16_224: there is no parameter 'dropout'"):
        vit.imagenet(model="deit_tiny_patch16_224")
    assert not any(dropouts(made) for made in (augreg.to_imagenet(), augreg.to_cifar100(), augreg.to_folder()))


@pytest.mark.parametrize(
    ("name", "lr", "steps", "warmup", "classes", "dataset"),
    [
        ("to_imagenet", 0.03, 20_000, 500, 1000, ImageNet()),
        ("to_cifar100", 0.01, 10_000, 500, 100, Cifar100(holdout=0.02)),
        ("to_folder", 3e-3, 500, 100, None, ImageFolder()),
    ],
)
def test_augreg_transfers_with_sgd_and_neither_decay_nor_augmentation(
    name: str, lr: float, steps: int, warmup: int, classes: int | None, dataset: object
) -> None:
    made = recipe(f"augreg.{name}")
    assert made.optimizer == Sgd(lr, weight_decay=0.0, momentum=0.9)
    assert (made.schedule, made.duration) == (Cosine(Steps(warmup), 0.0, 0.0), Steps(steps))
    assert (made.batch, made.clip, made.data.mix, made.model.classes) == (512, 1.0, NoMix(), classes)
    assert made.data.dataset == dataset
    assert [type(step) for step in made.data.augment.steps] == [ResizedCrop, Flip]
    assert made.model.image.height == 384


def test_the_recipes_of_this_file_do_not_share_what_sets_them_apart() -> None:
    """Guards against a test that passes because two recipes are the same."""
    assert deit.imagenet().data.augment == deit_augment()
    assert isinstance(deit.imagenet().data.erase, Erase) and deit.imagenet().data.order == Repeated(3)
    made = [cait.imagenet(), convit.imagenet(), small.cifar10(), augreg.imagenet(), deit.imagenet()]
    assert all(changed(*pair) for pair in itertools.combinations(made, 2))


@pytest.mark.parametrize("page", ["cait", "convit", "spt_lsa", "augreg"])
def test_a_papers_page_names_files_and_recipes_that_exist(page: str) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "papers" / f"{page}.md").read_text(encoding="utf-8")
    words = {word for piece in text.split("`")[1::2] for word in piece.replace(",", " ").replace(":", " ").split()}
    files = {word for word in words if word.endswith(".py") and "/" in word}
    assert files
    for file in files:
        assert (root / "src" / "frugalvit" / file).exists() or (root / file).exists(), file
    for word in words:
        family, _, name = word.partition(".")
        if family in ("cait", "convit", "small", "augreg") and name.isidentifier() and name not in ("py", "md"):
            recipe(word)


def test_our_own_small_recipe_takes_parts_of_other_papers() -> None:
    plain = recipe("small.best_cifar10", "add=none", "optimizer=adamw", "augment=trivialaugment")
    assert isinstance(plain.optimizer, AdamW) and isinstance(plain.data.augment.steps[-1], TrivialAugment)
    gated = recipe("small.best_cifar10", "local=3", "heads=8", "dim=64", "early=3")
    assert len([one for one in gated.model.layers if isinstance(one, Block) and one.attention.after]) == 3


def test_our_own_small_recipe_may_begin_on_a_finer_grid() -> None:
    made = recipe("small.best_cifar10", "early=2", "dim=32", "heads=4", "depth=3", "late=0")
    module = replace(made.model, classes=10).build(seed=0)
    blocks = [
        (shape.dim, shape.height)
        for layer, shape in zip(made.model.layers, module.shapes, strict=False)
        if isinstance(layer, Block)
    ]
    assert blocks == [(16, 16)] * 2 + [(32, 8)] * 3
    assert [one.attention.heads for one in made.model.layers if isinstance(one, Block)] == [2, 2, 4, 4, 4]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("late=-1",), r"best_cifar10.late: -1 blocks. Use 0 and more"),
        (("early=-1",), r"best_cifar10.early: -1 blocks"),
        (("depth=0",), r"best_cifar10.depth: 0 blocks"),
        (("early=3", "depth=0", "late=0"), r"best_cifar10.depth: 0 blocks"),
        (("dim=31",), r"best_cifar10.dim: 31 channels. Use a multiple of 2"),
        (("dim=-4",), r"best_cifar10.dim: -4 channels"),
        (("dim=30",), r"best_cifar10.heads: 4 heads of 30 channels. Use one of \[2, 6, 10, 30\]"),
        (("heads=3",), r"best_cifar10.heads: 3 heads of 224 channels. Use one of \[2, 4, 8, 14"),
        (("heads=0", "early=0"), r"best_cifar10.heads: 0 heads of 224 channels. Use one of \[1, 2, 4"),
        (("local=99",), r"99 of 11 blocks on patches alone. Use 1 to 11\."),
        (("steps=5",), r"no parameter 'steps'. Say passes=2 or 'duration=Epochs\(2\)' or 'duration=Steps\(100\)'"),
        (("epochs=5",), r"no parameter 'epochs'. Say passes=2"),
    ],
)
def test_our_own_small_recipe_refuses_in_the_words_it_was_told(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        recipe("small.best_cifar10", *words)


def test_our_own_small_recipe_may_be_a_pyramid() -> None:
    words = ("early=2", "depth=3", "late=1", "dim=32", "heads=4", "mlp_ratio=2.0")
    for add in ("none", "spt+lsa"):
        made = recipe("small.best_cifar10", *words, f"add={add}")
        module = replace(made.model, classes=10).build(seed=0)
        blocks = [
            (shape.dim, shape.height, layer.attention.heads)
            for layer, shape in zip(made.model.layers, module.shapes, strict=False)
            if isinstance(layer, Block)
        ]
        assert blocks == [(16, 16, 2)] * 2 + [(32, 8, 4)] * 3 + [(64, 4, 8)]
        assert module.eval()(torch.zeros(1, 3, 32, 32))["class"].shape == (1, 10)
    made = recipe("small.best_cifar10", "early=0", "late=1", "depth=1")
    assert [one.attention.heads for one in made.model.layers if isinstance(one, Block)] == [4, 8]
    flat = recipe("small.best_cifar10", "early=0", "late=0", "depth=1")
    assert flat.model.heads == ("class",) and isinstance(flat.model.readout, Tokens)
