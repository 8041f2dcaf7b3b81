"""What a recipe refuses is told by the word that the user wrote, never by a field of a part that it became."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.test_cli import bad

from frugalvit.errors import SpecError
from frugalvit.recipes.find import functions, recipe
from frugalvit.training.recipe import Recipe
from frugalvit.zoo.find import called, causes, model

WRONG = {
    "batch": "0",
    "cutout": "3",
    "damping": "-1",
    "drop_path": "1.5",
    "dropout": "1.5",
    "epochs": "-1",
    "fraction": "2",
    "group": "0",
    "image": "0",
    "lr": "-1",
    "mixed": "2",
    "passes": "0",
    "position": "-1",
    "regularization": "1.5",
    "smoothing": "2",
    "stages": "0",
    "start": "0",
    "step": "0",
    "steps": "0",
    "warmup": "-1",
    "weight_decay": "-1",
}


@pytest.mark.parametrize("name", sorted(functions()))
def test_a_value_out_of_range_is_told_by_its_word(name: str) -> None:
    for word in WRONG.keys() & inspect.signature(functions()[name]).parameters.keys():
        with pytest.raises(SpecError, match=rf"^{re.escape(name)}\.{word}: .+\. Use "):
            recipe(name, f"{word}={WRONG[word]}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mixed=2",), "mixed: 2.0 is not a probability. Use 0 to 1."),
        (("drop_path=1.5",), "drop_path: a drop rate of 1.5 is not a probability below 1. Use 0 to 0.99."),
        (("depth=4", "drop_path=1.5", "mixed=2"), "drop_path: a drop rate of 1.5 is not a probability below 1. Use 0 to 0.99."),
        (("passes=0", "batch=64"), "passes: a training of 0 epochs. Use a number above 0."),
        (("passes=-1",), "passes: a length of -1 epochs. Use 0 or more; of a whole training, 1 or more."),
        (("data.mix.probability=2",), "data.mix.probability: 2.0 is not a probability. Use 0 to 1."),
        (("duration=Fraction(2)",), "duration.share: a share of 2 of the training. Use 0 to 1."),
    ],
)
def test_the_word_is_found_among_others(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError) as found:
        recipe("small.best_cifar10", *words)
    assert str(found.value) == f"small.best_cifar10.{message}"


def test_two_words_that_are_wrong_in_the_same_way_are_both_named() -> None:
    with pytest.raises(SpecError, match=r"^convnet\.cifar10\.cutout and mixed: 2\.0 is not a probability"):
        recipe("convnet.cifar10", "cutout=2", "mixed=2", "width=32")


def test_a_model_that_is_not_there_is_told_by_its_word() -> None:
    with pytest.raises(SpecError, match=r"^deit\.imagenet\.model: no model is called 'nobody'"):
        recipe("deit.imagenet", "epochs=3", "model=nobody")


def test_a_model_names_its_own_words_too() -> None:
    with pytest.raises(SpecError, match=r"^deit_tiny_patch16_224\.drop_path: a drop rate of 1\.5"):
        model("deit_tiny_patch16_224", drop_path=1.5, classes=10)
    with pytest.raises(SpecError, match=r"^convit\.local: 5 local blocks of 5: .*Use 0 to 4\."):
        model("convit", "dim=12", "heads=3", "depth=5", "local=5")


def test_causes_are_words_that_fail_alone_or_else_together() -> None:
    def refuse(some: list[str]) -> None:
        if {"a", "b"} <= set(some):
            raise SpecError("a and b do not go together.")
        if "broken" in some:
            raise ZeroDivisionError

    together, other = SpecError("a and b do not go together."), SpecError("something else.")
    assert causes(together, ["a", "b", "c"], refuse) == ["a", "b"]
    assert causes(other, ["a", "c", "broken"], refuse) == ["broken"]
    assert causes(other, ["a", "c"], lambda _: refuse(["broken"])) == []


def test_a_function_that_fails_whatever_is_given_keeps_its_own_path() -> None:
    def night(*, long: int = 3) -> Recipe:
        raise SpecError("is not mine.", path="data.mix")

    with pytest.raises(SpecError, match=r"^data\.mix: is not mine\."):
        called(night, {}, ["long=5"])


@pytest.mark.parametrize("verb", ["show", "train"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("depth=2", "dim=50"), "SpecError: vit.digits.dim (model.layers[2].attention.heads): 4 heads do not divide"),
        (("dim=0",), "SpecError: vit.digits.dim (model.tokenizer): patches of 2 x 2 pixels to a width of 0."),
        (("dim=24", "model.image=9"), "SpecError: model.tokenizer: patches of 2 x 2 do not tile"),
    ],
)
def test_parts_that_do_not_fit_are_told_by_the_words_that_made_them(
    verb: str, words: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    out = ("--out", str(tmp_path / "run")) if verb == "train" else ()
    assert message in bad(verb, "vit.digits", *words, *out)
