"""The verb: what it says for digits, CIFAR, a folder of one's own and ImageNet, and what it writes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from fractions import Fraction as Ratio
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.advise.test_look import arrays, folder, picture
from tests.test_cli import bad, good

from frugalvit.advise import advise as advice_module
from frugalvit.advise import speed
from frugalvit.data.order import steps_per_epoch
from frugalvit.recipes.find import recipe
from frugalvit.training.duration import total_steps

CPU = ("--device", "cpu", "--quiet")


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One step of two pictures for the chosen model, none for the others; one thread, since cores are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(speed, "CPU_MACS", 1.0)
    monkeypatch.setattr(speed, "SECONDS", 0.0)
    monkeypatch.setattr(advice_module, "SECONDS", 0.0)
    yield
    torch.set_num_threads(before)


def links(root: Path, each: int, classes: int = 10) -> Path:
    """Many pictures that are one."""
    picture(root.parent / "one.jpg", 320, 240)
    for label in range(classes):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(each):
            (root / f"class{label}" / f"{number}.jpg").symlink_to(root.parent / "one.jpg")
    return root


def asked(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(good("advise", *words, *CPU, "--json"))
    return found


def made(command: str) -> Any:
    """The recipe that a command trains."""
    words = shlex.split(command)
    assert words[:2] == ["frugalvit", "train"]
    return recipe(words[2], *(word for word in words[3 : words.index("--out")] if "=" in word))


def test_digits_get_the_recipe_that_was_made_for_them() -> None:
    found = asked("--dataset", "Digits")
    chosen = found["recommended"]
    assert chosen["command"] == "frugalvit train vit.digits epochs=60 --device cpu --out runs/digits"
    assert made(chosen["command"]) == recipe("vit.digits")
    assert chosen["expected"]["steps"] == 1200
    assert 0 < chosen["expected"]["hours"] < 1
    assert found["fits"] and found["hours"] is None


def test_a_few_thousand_pictures_begin_from_released_weights(tmp_path: Path) -> None:
    found = asked("--data", str(links(tmp_path / "my photos", 500)))
    chosen = found["recommended"]
    assert chosen["recipe"] == "transfer.folder"
    assert chosen["init"] == "vit_small_patch16_224.augreg_in21k"
    assert f"--data '{tmp_path / 'my photos'}' --init vit_small_patch16_224.augreg_in21k" in chosen["command"]
    assert chosen["command"].endswith("--out 'runs/my photos'")
    assert chosen["expected"]["pictures"] == pytest.approx(69 * 4500, rel=0.01)
    start = found["choices"][0]
    assert (start["about"], start["chosen"]) == ("start", "released weights")
    assert start["source"] == "Steiner et al. 2022 (AugReg), §4.2 and Figure 2"
    assert [one["recipe"] for one in found["alternatives"]][:2] == ["augreg.to_folder", "small.tiny_imagenet"]
    for one in found["alternatives"]:
        made(one["command"])
        assert one["why"] and one["speed"]["how"].startswith("estimated from S/16")


def test_cifar_10_from_scratch_has_spt_and_lsa_and_is_told_of_released_weights(tmp_path: Path) -> None:
    root = arrays(tmp_path / "cifar", 50_000, 32, 10)
    found = asked("--data", str(root), "--init", "none")
    chosen, (transfer, faster) = found["recommended"], found["alternatives"]
    assert chosen["command"].startswith(f"frugalvit train small.best_cifar10 passes=360 --data {root} --device")
    assert chosen["expected"]["pictures"] == 360 * (45_000 // 512) * 512
    assert "Released weights would be better, were they allowed" in found["choices"][0]["why"]
    assert (faster["recipe"], faster["overrides"][1]) == ("small.cifar10", "add=spt+lsa")
    assert transfer["recipe"] == "transfer.folder"
    assert transfer["why"].startswith("better, where released weights are allowed")


def test_the_text_says_whose_the_figure_on_cifar_10_is_and_how_it_was_measured(tmp_path: Path) -> None:
    text = " ".join(good("advise", "--data", str(arrays(tmp_path / "cifar", 50_000, 32, 10)), "--init", "none", *CPU).split())
    assert "measured by us: our pyramid (97.25 on CIFAR-10), the mean of 3 seeds on its 10,000 test pictures" in text
    assert "with precision=bf16_stream data.dataset.holdout=0.0, in 492 seconds of one H200 at most" in text
    assert "published" not in text


@pytest.mark.parametrize("init", ["auto", "none"])
@pytest.mark.parametrize(("each", "steps"), [((1, 1), {2: 1}), ((16, 16), {7: 4}), ((300, 300), {32: 16})])
def test_what_is_expected_is_what_training_will_do(
    tmp_path: Path, each: tuple[int, int], steps: dict[int, int], init: str
) -> None:
    """Batches that the pictures fill, and as many steps as `train` takes with the command and with the recipe's file."""
    root, file = folder(tmp_path / "few", {"cat": each[0], "dog": each[1]}, width=48, height=48), tmp_path / "few.json"
    found = asked("--data", str(root), "--init", init, "--write", str(file))
    for chosen in (found["recommended"], *found["alternatives"]):
        advised, expected = made(chosen["command"]), chosen["expected"]
        train = advised.data.dataset.open("train", root)
        clock = Ratio(steps_per_epoch(advised.data.order, train.labels, advised.batch), advised.accumulate)
        assert {advised.pictures: clock} == steps
        assert expected["steps"] == total_steps(advised.duration, clock)
        assert expected["pictures"] == expected["steps"] * advised.pictures <= advised.duration.count * len(train)
    assert recipe(str(file)) == made(found["recommended"]["command"])
    assert [one["about"] for one in found["choices"]][-1] == "batch"


def test_the_text_has_the_command_the_reasons_the_cost_and_the_alternatives(tmp_path: Path) -> None:
    root = folder(tmp_path / "pets", {"cat": 60, "dog": 4})
    (root / "cat" / "notes.jpg").write_text("no picture")
    text = good("advise", "--data", str(root), "--init", "none", *CPU)
    joined = " ".join(text.split())
    assert f"{root}: read as ImageFolder" in text
    assert "58 pictures to train on, 7 for validation; 2 classes, 3 to 55 pictures in each" in joined
    command = next(line.strip() for line in text.splitlines() if line.startswith("  frugalvit train"))
    assert made(command).data.order == recipe("vit.digits", "data.order=Balanced").data.order
    assert "every class equally often: the largest class has 55 pictures, the smallest 3" in joined
    assert "[Kang et al. 2020 (class-balanced sampling); the threshold of 10 times is ours]" in joined
    for word in ("Recommended", "Why", "Expected, on this machine", "Instead", "Note"):
        assert f"\n{word}\n" in text
    assert "measured: 1 step of 2 synthetic pictures after a first one, fp32" in joined
    assert "cannot be read (the first:" in joined
    assert "The smallest class has 3 pictures" in joined
    assert max(map(len, (line for line in text.splitlines() if "frugalvit" not in line))) <= 118


def test_hours_are_kept_and_what_was_given_up_is_said() -> None:
    text = good("advise", "--dataset", "Digits", "--hours", "0.001", *CPU)
    assert "Recommended, within 4 seconds" in text or "Nothing fits 4 seconds. The smallest that is worth it takes" in text
    assert "given up 60 epochs would take" in " ".join(text.split())
    found = asked("--dataset", "Digits", "--hours", "100")
    assert found["fits"] and not found["given_up"]


def test_what_else_there_is_says_where_it_is_over_the_hours() -> None:
    text = " ".join(good("advise", "--dataset", "Digits", "--hours", "0.001", *CPU).split())
    other = text.partition(" Instead ")[2]
    assert ", estimated, which is over the 4 seconds that you have; 99.4 of the 500 held-out digits" in other
    assert not asked("--dataset", "Digits", "--hours", "0.001")["alternatives"][0]["fits"]
    for hours in ((), ("--hours", "1000")):
        assert ", estimated; 99.4 of" in good("advise", "--dataset", "Digits", *hours, *CPU)
        assert asked("--dataset", "Digits", *hours)["alternatives"][0]["fits"]


def test_what_is_said_on_the_way_goes_to_the_error_stream() -> None:
    from tests.test_cli import run

    done = run("advise", "--dataset", "Digits", "--device", "cpu", "--json")
    assert "looking at Digits ..." in done.stderr
    assert "measuring a ViT of width 64 (vit.digits) ..." in done.stderr
    json.loads(done.stdout)


def test_a_written_recipe_is_the_one_that_was_advised_and_trains(tmp_path: Path) -> None:
    root, file = folder(tmp_path / "pets", {"cat": 12, "dog": 12}), tmp_path / "pets.json"
    text = good("advise", "--data", str(root), "--init", "none", "--write", str(file), *CPU)
    assert f"  frugalvit train {file} --data {root} --device cpu --out runs/pets" in text
    advised = asked("--data", str(root), "--init", "none")
    assert recipe(str(file)) == made(advised["recommended"]["command"])
    out = tmp_path / "run"
    words = ("batch=4", "duration=Steps(2)", "--data", str(root), "--out", str(out))
    summary = json.loads(good("train", str(file), *words, *CPU, "--json"))
    assert summary["step"] == 2
    kept = file.read_bytes()
    assert "exists already, and nothing is overwritten" in bad("advise", "--data", str(root), "--write", str(file), *CPU)
    assert file.read_bytes() == kept


def test_weights_can_be_named(tmp_path: Path) -> None:
    root = folder(tmp_path / "pets", {"cat": 12, "dog": 12})
    found = asked("--data", str(root), "--init", "deit_tiny_patch16_224")
    assert found["recommended"]["init"] == "deit_tiny_patch16_224.fb_in1k"
    assert found["recommended"]["overrides"] == ["model=deit_tiny_patch16_224", "epochs=100", "batch=7"]
    assert found["choices"][0]["why"] == "you named them"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "DataError: --data: which pictures?"),
        (("--data", "nowhere"), "DataError: nowhere: there is no such file or folder."),
        (("--dataset", "Digits", "--hours", "0"), "SpecError: --hours: 0 hours. Use a number above 0"),
        (("--dataset", "Digits", "--hours", "-3"), "SpecError: --hours: -3 hours."),
        (("--dataset", "Digits", "--hours", "nan"), "SpecError: --hours: nan hours."),
        (("--dataset", "Digits", "--hours", "inf"), "SpecError: --hours: inf hours."),
        (("--dataset", "Digits", "--device", "abacus"), "SpecError: --device: 'abacus' is no device."),
        (("--dataset", "Digits", "--init", "nobody"), "WeightsError: --init: no released weights are called 'nobody'"),
        (("--dataset", "Digits", "--init", "./file.npz"), "SpecError: --init ./file.npz: a file does not say which model"),
        (("--dataset", "Digits", "--write", "recipe.py"), "SpecError: --write recipe.py: `train` knows a recipe file"),
        (("--dataset", "Digits", "--write", "nowhere/a.json"), "SpecError: --write nowhere: there is no such folder."),
    ],
)
def test_what_cannot_be_advised_on_ends_in_one_message(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(bad("advise", "--quiet", *words, cwd=tmp_path).split())
    assert not list(tmp_path.iterdir())
