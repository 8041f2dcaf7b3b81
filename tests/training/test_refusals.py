"""What training would otherwise ignore in silence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.training.runs import tiny

import frugalvit
from frugalvit.data.digits import Digits
from frugalvit.errors import FrugalError
from frugalvit.training.optimizer import AdamW, Sgd


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"data": "nowhere"}, "--data: the digits come with the package"),
        ({"data": {"val": Digits().open("val", None)}}, "data: splits ['val']. Give train"),
        (
            {"data": {"train": Digits().open("train", None), "valid": Digits().open("val", None)}},
            "data: splits ['train', 'valid']",
        ),
        ({"extend": True}, "--extend: only a resumed run can be extended"),
        ({"workers": -1}, "--workers: -1 processes"),
        ({"log": "tensorbord"}, "Did you mean 'tensorboard'?"),
    ],
)
def test_arguments_that_mean_nothing_are_refused_before_a_folder_is_made(tmp_path: Path, words: dict, message: str) -> None:
    with pytest.raises(FrugalError) as error:
        frugalvit.train(tiny(), out=tmp_path / "run", device="cpu", **words)
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_batch_of_a_few_pictures_over_and_over_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FrugalError, match=r"recipe\.batch: 100,000 pictures, and there are [\d,]+: each would be in a batch \d+ times"
    ):
        frugalvit.train(tiny("batch=100000"), out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_name_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(FrugalError, match="recipe: train takes a Recipe, not str"):
        frugalvit.train("vit.digits", out=tmp_path / "run")


@pytest.mark.parametrize("kind", [AdamW, Sgd])
def test_rates_below_zero_are_refused(kind: type) -> None:
    with pytest.raises(FrugalError, match=r"lr: a learning rate of -1\.0"):
        kind(-1.0)
    with pytest.raises(FrugalError, match=r"weight_decay: a decay of -5\.0"):
        kind(0.1, weight_decay=-5.0)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("clip=-1.0", r"clip: a norm of -1\. Use a number above 0, or none"),
        ("clip=0.0", r"clip: a norm of 0\."),
        ("optimizer.layer_decay=-1.0", r"layer_decay: a factor of -1\.0 a block"),
        ("optimizer.layer_decay=1.5", r"layer_decay: a factor of 1\.5 a block"),
        ("optimizer.betas=[1.5,0.9]", r"betas\[0\]: a share of 1\.5"),
        ("optimizer.eps=-1.0", r"eps: -1\.0\. Use 0 and more"),
        ("optimizer=Sgd(0.1,momentum=1.0)", r"momentum: a share of 1\.0"),
        ("objective.terms[0].weight=-1.0", r"weight: a weight of -1\.0\. Use a number above 0"),
    ],
)
def test_numbers_that_would_train_uphill_or_not_at_all_are_refused(word: str, message: str) -> None:
    with pytest.raises(FrugalError, match=message):
        tiny(word)


def test_the_best_weights_of_a_run_load_and_give_its_best_validation(tmp_path: Path) -> None:
    done = frugalvit.train(tiny(), out=tmp_path / "run", device="cpu")
    best = frugalvit.load(tmp_path / "run" / "best.safetensors")
    held_out = Digits().open("val", None)
    guesses = best.predict([held_out.picture(index) for index in range(len(held_out))], top=1, batch=250)
    right = [guess.name == held_out.classes[label] for guess, label in zip(guesses, held_out.labels, strict=True)]
    assert 100 * torch.tensor(right).double().mean().item() == pytest.approx(done.summary["best_val_top1"])
