"""The rules as tables of facts and what they lead to."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from frugalvit.advise import ladders, notes, rules
from frugalvit.advise.facts import Facts, Machine
from frugalvit.advise.look import LOOKED
from frugalvit.advise.plan import EPOCH, HIGHEST, LEAST_BATCH, Plan
from frugalvit.advise.rules import Setting
from frugalvit.data import check
from frugalvit.data.cifar import Cifar10
from frugalvit.recipes.find import functions, recipe

DOCS = Path(__file__).parents[2] / "docs"
MACHINE = Machine("cpu", "CPU", "fp32", 4, 4, 16 * 2**30)


def facts(pictures: int = 4500, **changes: object) -> Facts:
    """A folder of 5,000 photographs, some of them held out."""
    usual = dict(
        place="photos",
        dataset="ImageFolder",
        known="",
        pictures=pictures,
        whole=pictures,
        held=max(pictures // 9, 1),
        classes=10,
        least=pictures // 10,
        most=pictures // 10,
        side=290,
        shortest=240,
        longest=420,
        sizes=200,
        gray=0,
        looked=200,
    )
    return Facts(**(usual | changes))  # type: ignore[arg-type]


CIFAR = dict(dataset="ArrayFolder", known="cifar10", whole=50_000, held=5000, side=32, sizes=1)
IMAGENET = dict(known="imagenet", classes=1000, whole=1_281_167)


@pytest.mark.parametrize(
    ("pictures", "changes", "init", "way"),
    [
        (1297, dict(known="digits", side=8), "auto", "digits"),
        (1297, dict(known="digits", side=8), "none", "digits"),
        (1297, dict(known="digits", side=8), "deit_tiny_patch16_224.fb_in1k", "transfer"),
        (20, {}, "auto", "transfer"),
        (4500, {}, "auto", "transfer"),
        (45_000, CIFAR, "auto", "transfer"),
        (999_999, {}, "auto", "transfer"),
        (1_000_000, {}, "auto", "imagenet"),
        (4_999_999, {}, "auto", "imagenet"),
        (5_000_000, {}, "auto", "many"),
        (5_000_000, {}, "deit_tiny_patch16_224.fb_in1k", "transfer"),
        (45_000, CIFAR, "none", "small"),
        (4500, {}, "none", "small"),
        (49_999, {}, "none", "small"),
        (50_000, {}, "none", "local"),
        (50_000, dict(side=96), "none", "small"),
        (50_000, dict(side=97), "none", "local"),
        (999_999, {}, "none", "local"),
        (1_281_167, IMAGENET, "none", "imagenet"),
        (1_281_167, dict(side=64), "none", "small"),
        (14_000_000, {}, "none", "many"),
    ],
)
def test_the_way_to_begin_follows_from_pictures_pixels_and_weights(
    pictures: int, changes: dict[str, object], init: str, way: str
) -> None:
    assert rules.start_of(facts(pictures, **changes), init) == way


@pytest.mark.parametrize(
    ("side", "classes", "known", "recipe"),
    [
        (8, 10, "", "cifar10"),
        (32, 10, "", "cifar10"),
        (32, 11, "", "cifar100"),
        (48, 10, "", "cifar10"),
        (49, 10, "", "tiny_imagenet"),
        (64, 200, "tiny_imagenet", "tiny_imagenet"),
        (96, 3, "", "tiny_imagenet"),
        (290, 3, "", "tiny_imagenet"),
        (32, 10, "svhn", "svhn"),
        (32, 100, "cifar100", "cifar100"),
    ],
)
def test_small_pictures_take_the_nearest_protocol(side: int, classes: int, known: str, recipe: str) -> None:
    assert ladders.small_recipe(facts(side=side, classes=classes, known=known)) == recipe


@pytest.mark.parametrize(("pictures", "steps"), [(3312, 500), (50_000, 2500), (1_281_167, 20_000)])
def test_a_transfer_sees_as_many_pictures_as_augreg_s_did(pictures: int, steps: int) -> None:
    assert rules.PETS_SEEN * (pictures / rules.PETS) ** rules.GROWTH == pytest.approx(steps * 512, rel=0.08)


@pytest.mark.parametrize(
    ("pictures", "epochs"), [(1, 100), (300, 100), (1500, 100), (3312, 77), (4500, 69), (45_000, 29), (437_513, 12)]
)
def test_more_pictures_need_fewer_epochs_and_few_never_more_than_a_hundred(pictures: int, epochs: int) -> None:
    assert rules.transfer_epochs(pictures) == epochs


@pytest.mark.parametrize(
    ("pictures", "epochs"), [(50_000, 1000), (384_350, 1000), (640_583, 600), (1_000_000, 300), (1_281_167, 300)]
)
def test_convit_s_epochs_grow_as_pictures_shrink_until_it_overfits(pictures: int, epochs: int) -> None:
    assert rules.local_epochs(pictures) == epochs


@pytest.mark.parametrize(
    ("pictures", "epochs", "model", "setting"),
    [
        (1_281_167, 300, "Ti/16", Setting("light1", 0.0, 0.1)),
        (1_281_167, 300, "S/16", Setting("medium2", 0.0, 0.1)),
        (1_281_167, 300, "B/16", Setting("medium2", 0.1, 0.1)),
        (1_281_167, 300, "L/16", Setting("medium2", 0.1, 0.1)),
        (14_000_000, 30, "S/16", Setting("none", 0.0, 0.03)),
        (14_000_000, 30, "B/32", Setting("none", 0.0, 0.1)),
        (14_000_000, 30, "B/16", Setting("light1", 0.0, 0.1)),
        (14_000_000, 30, "L/16", Setting("light2", 0.0, 0.1)),
        (14_000_000, 300, "Ti/16", Setting("none", 0.0, 0.03)),
        (14_000_000, 300, "S/16", Setting("light1", 0.0, 0.03)),
        (14_000_000, 300, "B/32", Setting("light2", 0.0, 0.1)),
        (14_000_000, 300, "B/16", Setting("medium1", 0.0, 0.1)),
        (14_000_000, 300, "L/16", Setting("medium2", 0.0, 0.1)),
    ],
)
def test_augreg_s_setting_is_that_of_its_figure_4(pictures: int, epochs: int, model: str, setting: Setting) -> None:
    assert rules.augreg_setting(pictures, epochs, model) == setting


def test_a_head_for_many_classes_begins_rare_as_augreg_s_did() -> None:
    assert rules.many_bias(1000) == -6.9
    assert rules.many_bias(21_843) == -10.0


@pytest.mark.parametrize(
    ("least", "most", "changes", "balanced"),
    [
        (100, 100, {}, False),
        (100, 999, {}, False),
        (100, 1000, {}, True),
        (1, 10, {}, False),
        (5, 50, {}, True),
        (2, 1000, dict(known="inat18"), False),
        (100, 90_000, dict(pictures=1_000_000), False),
    ],
)
def test_rare_classes_are_drawn_more_often_from_ten_times_on(
    least: int, most: int, changes: dict[str, object], balanced: bool
) -> None:
    found = facts(**(dict(least=least, most=most) | changes))  # type: ignore[arg-type]
    assert rules.balances(found) is balanced
    (first, *_) = ladders.transfer(found, "auto").candidates
    assert ("data.order=Balanced" in first.settings) is balanced


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (dict(unreadable=("cat/3.jpg",)), "1 of 200 pictures that were looked at cannot be read (the first: cat/3.jpg)"),
        (dict(least=9), "The smallest class has 9 pictures"),
        (dict(gray=200), "The pictures are gray"),
        (dict(gray=3), "3 of 200 pictures looked at are gray"),
        (dict(side=1025), "The pictures are large"),
        (dict(least=1, classes=2, held=1), "The smallest class has 1 picture. Add some."),
        (dict(held=0, dataset="ImageFolder(holdout=0.0)"), "Leave holdout=0 out, or put others into val/<class>/"),
    ],
)
def test_what_else_there_is_to_know_is_noted(changes: dict[str, object], said: str) -> None:
    (note,) = notes.of_data(facts(**changes))  # type: ignore[arg-type]
    assert said in note


@pytest.mark.parametrize(
    ("dataset", "cure"),
    [
        ("ImageFolder", "put others into val/<class>/, beside train/<class>/."),
        ("LabelTable(holdout=0.2)", "put others into rows whose split is val."),
        ("ArrayFolder", "put others into val_images.npy and val_labels.npy."),
        ("StanfordCars", "hold others back, and measure on them (`evaluate`)."),
    ],
)
def test_where_every_class_has_one_picture_none_can_be_held_out_and_the_cure_is_not_a_holdout(dataset: str, cure: str) -> None:
    *_, note = notes.of_data(facts(2, classes=2, least=1, most=1, held=0, dataset=dataset))
    assert note.startswith("No picture can be held out for validation: every class has only one")
    assert note.endswith(f"Add pictures, or {cure}")
    assert "holdout" not in note


def test_a_hundred_epochs_of_few_pictures_are_not_called_as_many_as_augreg_s() -> None:
    assert "about as many pictures as AugReg's" in rules.transfer_length(facts(4500)).why
    assert "about as many" not in rules.transfer_length(facts(72)).why


@pytest.mark.parametrize(("pictures", "said"), [(540, "an epoch has 10 steps or more"), (65, "of so few, 8 at most")])
def test_a_smaller_batch_is_explained_by_the_rule_that_made_it(pictures: int, said: str) -> None:
    (_, row, *_) = ladders.transfer(facts(pictures), "auto").candidates
    assert said in rules.smaller_batch(Plan(row, 100, row.filled, 1)).why


def test_a_smaller_batch_names_no_figure_that_no_page_has() -> None:
    row = next(row for row in ladders.small(facts(540), MACHINE).candidates if row.lr and not row.rate)
    why = rules.smaller_batch(Plan(row, 100, row.filled, 1)).why
    assert why.endswith("; the learning rate stays the recipe's")


def planned(found: Facts) -> Plan:
    return Plan(ladders.at_384(found, "vit_small_patch16_224"), 500, 64, 8)


def test_nothing_is_noted_of_an_ordinary_folder() -> None:
    assert notes.of_data(facts()) == ()


def test_a_recipe_that_holds_nothing_out_is_remarked() -> None:
    found = facts(45_000, **CIFAR)
    (note,) = notes.all_pictures("small.cifar10", 50_000, found)
    assert note.startswith("small.cifar10 learns from all 50,000 pictures")
    assert recipe("small.cifar10", "data.dataset.holdout=0.1").data.dataset == Cifar10()
    assert notes.all_pictures("small.best_cifar10", 45_000, found) == ()


def test_waiting_for_weeks_is_remarked_only_where_no_hours_were_given() -> None:
    assert notes.too_long(336, None) == ()
    assert len(notes.too_long(337, None)) == 1
    assert notes.too_long(337, 5.0) == ()


def test_thresholds_are_those_of_the_data_check() -> None:
    assert (rules.UNEVEN, notes.FEW, notes.LARGE) == (check.UNEVEN, check.FEW, check.LARGE)


def test_every_rule_says_why_and_who_says_so() -> None:
    few, many = facts(), facts(14_000_000)
    choices = [rules.start(one, init) for one in (few, many) for init in ("auto", "none", "deit_tiny_patch16_224.fb_in1k")]
    choices += [rules.weights(), rules.transfer_image(few), rules.transfer_image(facts(**CIFAR)), rules.transfer_augment()]
    choices += [
        rules.transfer_length(few),
        rules.transfer_recipe(),
        rules.small_recipe(few, 64),
        rules.small_length("small.svhn"),
    ]
    choices += [rules.small_length("small.best_cifar10"), rules.best_colors(), rules.smaller_batch(planned(few))]
    choices += [rules.local_recipe(few), rules.local_length(few), rules.imagenet_recipe(), rules.imagenet_length()]
    choices += [rules.many_recipe(many, Setting("none", 0.0, 0.03)), rules.many_length(), rules.digits_recipe()]
    choices += [rules.order(few)]
    papers = r"(20\d\d \(.+\)|ours|--init)"
    for choice in choices:
        assert choice.about and choice.chosen and choice.why
        assert re.search(papers, choice.source), choice


def test_published_accuracies_are_those_of_the_papers_pages() -> None:
    pages = " ".join(page.read_text(encoding="utf-8") for page in (DOCS / "papers").glob("*.md"))
    pages += " ".join(function.__doc__ or "" for function in functions().values())
    numbers = {number for _, *pair in ladders.RELEASED.values() for number in pair}
    numbers |= {top1 for table in (ladders.DEIT, ladders.CONVIT) for _, top1 in table.values()}
    numbers |= {top1 for table in ladders.SL.values() for top1 in table.values()}
    missing = {number for number in numbers if not re.search(rf"\b{re.escape(f'{number:g}')}0?\b", pages)}
    assert not missing - {80.46, 79.13, 73.47, 83.96}  # Table 3 at 224, which the page leaves to the paper


def test_the_page_on_advice_names_every_threshold_and_its_commands_exist() -> None:
    page = (DOCS / "advise.md").read_text(encoding="utf-8")
    numbers = (rules.ENOUGH, rules.MANY, rules.LOCAL, rules.SMALL_SIDE, rules.TINY_SIDE, rules.UNEVEN, rules.MOST_EPOCHS)
    numbers += (rules.BEST_CLASSES, rules.BEST_SIDES.start, EPOCH, LEAST_BATCH, EPOCH * LEAST_BATCH, ladders.PETS_EPOCH)
    assert all(f"{number:,}" in page for number in (*numbers, rules.PETS, LOOKED))
    assert all(f"{rate:g} ({name})" in page for name, rate in HIGHEST.items())
    assert {f"{least} {unit}" for unit, least in (("epochs", 5), ("passes", 30), ("epochs", 30))} <= set(
        re.findall(r"\d+ (?:epochs|passes)", page)
    )
    commands = [line.split() for line in page.splitlines() if line.startswith("  frugalvit train")]
    assert commands
    for words in commands:
        recipe(words[2], *(word for word in words[3:] if "=" in word))
    for line in page.split("```console")[1].split("```")[0].strip().splitlines():
        assert line.startswith("$ frugalvit advise --data")


def test_rules_need_no_torch() -> None:
    names = ", ".join(f"frugalvit.advise.{name}" for name in ("facts", "plan", "rules", "ladders", "choose"))
    code = f"import sys, {names}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
