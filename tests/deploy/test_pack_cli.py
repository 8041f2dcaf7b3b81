"""Packing from the command line, and packed files where other verbs expect a run."""

from __future__ import annotations

import io
import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import packed_agreement
from PIL import Image as Pillow
from tests.deploy.packing import MODELS, classifier_of, native_only
from tests.test_cli import bad, good, run

import frugalvit
from frugalvit.cli import evaluating, main
from frugalvit.cli.console import console
from frugalvit.data import preprocess
from frugalvit.data.files import ENDINGS
from frugalvit.deploy import native, verify
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import SpecError
from frugalvit.recipes.find import recipe
from frugalvit.report.files import read_json
from frugalvit.spec import encode
from frugalvit.weights.files import write_json
from frugalvit.zoo.binaryvit import binary_deit
from frugalvit.zoo.deit import deit

pytestmark = pytest.mark.filterwarnings("ignore::frugalvit.deploy.native.SimulationNotice")
DIGITS = binary_deit(dim=16, heads=2, depth=1, patch=4, image=8, channels=1, classes=10, summary=("class", "distill"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run on digits leaves, and a packed file in it."""
    made = tmp_path_factory.mktemp("runs") / "night"
    one = classifier_of(DIGITS)
    Classifier(ClassifierSpec(DIGITS, one.preprocess, tuple("0123456789")), one.module).save(made)
    write_json(made / "recipe.json", encode(recipe("vit.digits")))
    done = run("pack", str(made))
    assert done.returncode == 0, done.stderr
    assert "comparing answers on 256 pictures: val of the data of the run" in done.stderr
    for words in ("same best class", "of 256 pictures", "signs that differ", "largest difference of logits", "Written to"):
        assert words in done.stdout
    return made


def test_pack_writes_into_the_run_and_overwrites_nothing(folder: Path) -> None:
    assert native.load_packed(folder / "model.fvit").name == "night"
    assert "model.fvit: exists already" in bad("pack", str(folder))
    assert "is packed already" in bad("pack", str(folder / "model.fvit"))
    assert "binaryvit_tiny_patch2_32: is a model without weights" in bad("pack", "binaryvit_tiny_patch2_32")
    before = (folder / "model.fvit").read_bytes()
    with pytest.raises(SpecError, match="exists already"):
        verify.pack(frugalvit.load(folder), folder / "model.fvit")
    assert (folder / "model.fvit").read_bytes() == before
    assert "packed files end in .fvit" in bad("pack", str(folder), "--out", str(folder / "model.bin"))


def test_a_packed_file_is_known_by_what_it_holds_and_takes_threads(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "renamed.bin").write_bytes((folder / "model.fvit").read_bytes())
    Pillow.fromarray(np.full((8, 8), 200, np.uint8)).save(tmp_path / "a.png")
    words = str(tmp_path / "a.png"), "--top", "1", "--threads", "2"
    assert good("predict", str(tmp_path / "renamed.bin"), *words) == good("predict", str(folder / "model.fvit"), *words)
    assert "goes with a packed file" in bad("predict", str(folder), *words)


def test_what_cannot_be_begun_from_or_measured_on_is_said(folder: Path, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"))
    assert "no such file or folder" in bad("train", "binaryvit.digits", "--init", str(tmp_path / "none"), *out)
    assert "is a packed model" in bad("train", "binaryvit.digits", "--init", str(folder / "model.fvit"), *out)
    for verb, words in (("evaluate", ()), ("pack", ("--out", str(tmp_path / "a.fvit")))):
        assert "--dataset ImageFolder" in bad(verb, str(folder), "--data", str(tmp_path), *words)


def test_a_place_for_the_digits_that_come_along_is_refused(folder: Path, tmp_path: Path) -> None:
    for verb, words in (("evaluate", ()), ("pack", ("--out", str(tmp_path / "a.fvit")))):
        text = bad(verb, str(folder), "--dataset", "Digits", "--data", str(tmp_path / "mine"), *words)
        assert "DataError: --data: the digits come with the package. Leave --data out, or name your own with --dataset" in text
    assert not (tmp_path / "a.fvit").exists()


def test_json_has_every_number(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "half.fvit"
    words = ("--out", str(out), "--half", "--pictures", "40", "--head", "distill", "--json")
    found = json.loads(good("pack", str(folder / "model.safetensors"), *words))
    assert found["pictures"] == 40 and found["bytes"] == out.stat().st_size < (folder / "model.fvit").stat().st_size
    assert found["agreement"] > 0.94 and 0 <= found["sign_flip_rate"] < 0.01 and found["signs"] > 1000
    assert found["pictures_of"] == "val of the data of the run"


def test_the_pictures_to_compare_on_may_be_another_data_set_s(folder: Path, tmp_path: Path) -> None:
    classifier_of(binary_deit(dim=16, heads=2, depth=1, patch=4, image=8, channels=1, classes=7)).save(tmp_path / "saved")
    found = json.loads(good("pack", str(tmp_path / "saved"), "--dataset", "Digits", "--pictures", "20", "--json"))
    assert found["pictures_of"] == "val of Digits" and found["pictures"] == 20
    pictures = tmp_path / "pictures"
    for place in ("val/a", "val/b"):
        (pictures / place).mkdir(parents=True)
        Pillow.fromarray(np.full((9, 12), 200, np.uint8)).save(pictures / place / "0.png")
    words = ("--out", str(tmp_path / "a.fvit"), "--dataset", "ImageFolder")
    found = json.loads(good("pack", str(folder), *words, "--data", str(pictures), "--json"))
    assert found["pictures_of"] == f"val of ImageFolder at {pictures}, 46 of noise" and found["pictures"] == 48
    for number in range(9):
        place = pictures / "train" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(np.full((9, 12), 20 * number, np.uint8)).save(place / f"{number}.png")
    words = ("--dataset", "ImageFolder", "--data", str(pictures), "--json")
    found = json.loads(good("pack", str(folder), "--out", str(tmp_path / "c.fvit"), *words))
    assert found["pictures_of"] == f"val of ImageFolder at {pictures}, 9 of train, 37 of noise" and found["pictures"] == 48
    found = json.loads(good("pack", str(folder), "--out", str(tmp_path / "d.fvit"), "--pictures", "5", *words))
    assert found["pictures_of"] == f"val of ImageFolder at {pictures}, 3 of train" and found["pictures"] == 5
    words = ("--out", str(tmp_path / "b.fvit"), "--dataset")
    assert "--dataset.--data: where is the data?" in bad("pack", str(folder), *words, "ImageFolder")
    assert "--dataset: 'Digit' does not fit here" in bad("pack", str(folder), *words, "Digit")


def test_the_pictures_to_compare_on_may_be_another_split_s(folder: Path, tmp_path: Path) -> None:
    for split in ("test", "train"):
        words = ("--split", split, "--pictures", "100", "--out", str(tmp_path / f"{split}.fvit"), "--json")
        found = json.loads(good("pack", str(folder), *words))
        assert (found["pictures_of"], found["pictures"]) == (f"{split} of the data of the run", 100)
    for number in range(20):
        place = tmp_path / "pictures" / "train" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        Pillow.fromarray(np.full((9, 12), 10 * number, np.uint8)).save(place / f"{number}.png")
    words = ("--dataset", "ImageFolder", "--data", str(tmp_path / "pictures"), "--out", str(tmp_path / "a.fvit"))
    found = json.loads(good("pack", str(folder), "--split", "train", *words, "--json"))
    assert found["pictures_of"].startswith("train of ImageFolder") and found["pictures_of"].endswith(" of noise")
    words = ("--dataset", "ImageFolder", "--data", str(tmp_path / "pictures"), "--out", str(tmp_path / "b.fvit"))
    assert "there is no split 'test'" in bad("pack", str(folder), "--split", "test", *words)  # and none instead
    assert "there is no split 'vall'" in bad("pack", str(folder), "--split", "vall", "--out", str(tmp_path / "b.fvit"))
    assert not (tmp_path / "b.fvit").exists()


def test_a_refusal_of_data_is_of_the_split_that_would_be_used_first(folder: Path, tmp_path: Path) -> None:
    said = bad("pack", str(folder), "--dataset", "ImageFolder", "--data", str(tmp_path), "--out", str(tmp_path / "a.fvit"))
    assert "no class folders here" in said and "split 'test'" not in said  # which nobody asked for


def test_the_command_that_is_printed_can_be_typed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "small ü.fvit"
    text = good("pack", str(folder), "--pictures", "20", "--out", str(out))
    assert shlex.split(text.rpartition(".fvit: ")[2]) == ["frugalvit", "predict", str(out), "PICTURE"]


def test_a_packed_file_stands_where_a_run_does(folder: Path, tmp_path: Path) -> None:
    measured = [json.loads(good("evaluate", str(one), "--json")) for one in (folder, folder / "model.fvit")]
    assert measured[0]["pictures"] == measured[1]["pictures"] > 100
    assert measured[0]["top1"] == pytest.approx(measured[1]["top1"], abs=1)
    assert measured[0]["loss"] == pytest.approx(measured[1]["loss"], abs=0.01)
    assert "head" not in measured[1]
    picture = tmp_path / "a.png"
    Pillow.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(picture)
    named = [json.loads(good("predict", str(one), str(picture), "--json")) for one in (folder, folder / "model.fvit")]
    best = [one["predictions"][str(picture)][0] for one in named]
    assert best[0]["name"] == best[1]["name"] and best[0]["probability"] == pytest.approx(best[1]["probability"], abs=1e-3)


def pictures_in(folder: Path, count: int) -> list[str]:
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(count):
        Pillow.fromarray(draw.integers(0, 256, (9 + number, 12), dtype=np.uint8)).save(folder / f"{number:03}.png")
    return [str(one) for one in sorted(folder.iterdir())]


@pytest.mark.parametrize("file", ["", "model.fvit"], ids=["in PyTorch", "packed"])
def test_every_picture_that_is_given_has_a_line_and_is_read_once(
    file: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = pictures_in(tmp_path / "pictures", 5)
    Path(names[1]).write_text("no picture")
    events: list[str] = []
    read, shown = preprocess.opened, console.print
    monkeypatch.setattr(preprocess, "opened", lambda path: [events.append(f"reads {path}"), read(path)][1])
    monkeypatch.setattr(console, "print", lambda text, markup: [events.append(text), shown(text, markup=markup)])
    monkeypatch.setattr(evaluating, "BATCH", 3)
    given = [names[0], names[0], names[1], *names[2:]]
    done = run("predict", str(folder / file), *given, "--top", "1")
    assert done.returncode == 1 and f"{names[1]}: not a picture" in done.stderr
    wanted = [given[place] for place in (0, 1, 3, 4, 5)]
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == wanted
    assert [event for event in events if event.startswith("reads")] == [f"reads {name}" for name in given]
    assert [event.startswith("reads") for event in events] == [True] * 3 + [False] * 2 + [True] * 3 + [False] * 3
    classifier = frugalvit.load(folder) if not file else native.load_packed(folder / file)
    (best,) = classifier.predict(names[2], top=1)
    assert done.stdout.splitlines()[2] == f"{names[2]}: {best.name} {100 * best.probability:.1f} %"


@pytest.mark.parametrize("file", ["", "model.fvit"], ids=["in PyTorch", "packed"])
def test_a_folder_without_pictures_is_told_and_the_others_are_answered(file: str, folder: Path, tmp_path: Path) -> None:
    first, second = pictures_in(tmp_path / "pictures", 2)
    empty = tmp_path / "empty"
    empty.mkdir()
    given = first, str(empty), second
    done = run("predict", str(folder / file), *given, "--top", "1")
    assert done.returncode == 1 and f"{empty}: no picture is below this folder (.jpg" in done.stderr
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == [first, second]
    done = run("predict", str(folder / file), *given, "--json")
    found = json.loads(done.stdout)
    assert done.returncode == 1 and [*found["predictions"]] == [first, second] and [*found["unreadable"]] == [str(empty)]


def test_predicting_many_pictures_as_json_shows_how_far_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = pictures_in(tmp_path / "pictures", 5)
    assert run("predict", str(folder / "model.fvit"), *names, "--json").stderr == ""
    monkeypatch.setattr(evaluating, "BATCH", 2)
    done = run("predict", str(folder / "model.fvit"), *names, "--json")
    assert done.stderr == "pictures: 5 of 5\n" and list(json.loads(done.stdout)["predictions"]) == names


def test_a_folder_s_pictures_are_those_that_data_sets_take(folder: Path, tmp_path: Path) -> None:
    for ending in ENDINGS:
        Pillow.fromarray(np.full((9, 12), 90, np.uint8)).save(tmp_path / f"a{ending}")
    (tmp_path / "notes.txt").write_text("no picture")
    found = json.loads(good("predict", str(folder / "model.fvit"), str(tmp_path), "--json"))["predictions"]
    assert sorted(found) == sorted(str(tmp_path / f"a{ending}") for ending in ENDINGS)


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_labels_that_the_terminal_has_no_letters_for_are_escaped(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify.pack(classifier_of(MODELS["gray"]), tmp_path / "a.fvit")
    (picture,) = pictures_in(tmp_path / "pictures", 1)
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "argv", ["frugalvit", "predict", str(tmp_path / "a.fvit"), picture, "--top", "1", *words])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    text = out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
    assert "\\U0001f600" in text if not words else "\\ud83d\\ude00" in text


def test_a_packed_file_away_from_its_run_is_told_its_data_by_name_or_path(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alone.fvit").write_bytes((folder / "model.fvit").read_bytes())
    said = bad("evaluate", str(tmp_path / "alone.fvit"))
    assert "which pictures? Only a run folder, or a packed file in one, can tell. Say --data PATH, or --dataset Digits" in said
    alone = good("evaluate", str(tmp_path / "alone.fvit"), "--dataset", "Digits")
    assert alone == good("evaluate", str(folder / "model.fvit"))


def test_what_a_packed_file_cannot_do_is_said(folder: Path) -> None:
    packed = str(folder / "model.fvit")
    assert "--head: a packed file answers as it was packed" in bad("evaluate", packed, "--head", "class")
    assert "--device: packed files run on the CPU" in bad("evaluate", packed, "--device", "cuda")
    assert "there is no such file" in bad("evaluate", str(folder / "other.fvit"))


def test_without_data_it_compares_on_noise_and_says_so(tmp_path: Path) -> None:
    classifier_of(binary_deit(dim=16, heads=2, depth=1, patch=4, image=8, channels=1, classes=7)).save(tmp_path / "saved")
    done = run("pack", str(tmp_path / "saved"), "--pictures", "20")
    assert done.returncode == 0, done.stderr
    assert "20 pictures: noise, since no data could be opened; say --data PATH" in done.stderr
    missing = str(tmp_path / "nowhere")
    assert "nowhere" in bad("pack", str(tmp_path / "saved"), "--out", str(tmp_path / "a.fvit"), "--data", missing)


def test_a_model_that_cannot_be_packed_ends_in_a_message(tmp_path: Path) -> None:
    classifier_of(deit(dim=12, heads=3, depth=1, patch=4, image=8, classes=7)).save(tmp_path / "saved")
    message = bad("pack", str(tmp_path / "saved"))
    assert "SpecError: model.layers[2]: Block computes" in message and "binarized" in message
    assert not (tmp_path / "saved" / "model.fvit").exists()


@native_only
def test_without_the_runtime_one_line_says_that_it_is_simulated(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = good("evaluate", str(folder / "model.fvit"), "--json")
    monkeypatch.setattr(native, "MODULE", "frugalvit.deploy._not_built")
    done = run("evaluate", str(folder / "model.fvit"), "--json")
    assert done.returncode == 0 and done.stdout == compiled
    assert done.stderr.count("simulated in PyTorch") == 1 and done.stderr.count("\n") == 1


def test_a_script_compares_classes_accuracy_and_signs_on_pictures_of_a_split(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(folder / "environment.json", {"commit": "abc1234"})
    words = [str(folder), "--split", "val", "--pictures", "40", "--watched", "3", "--out", str(tmp_path), "--commit", "def5678"]
    monkeypatch.setattr(sys, "argv", ["packed_agreement.py", *words])
    packed_agreement.main()
    (row,) = read_json(tmp_path / "packed_agreement.json")["rows"]
    assert (row["pictures"], row["watched"], row["trained_at"]) == (40, 3, "abc1234")
    assert row["same"] >= 39 and abs(row["trained_top1"] - row["packed_top1"]) <= 2.5
    assert row["signs"] > 0 and row["flips"] / row["signs"] < 0.01
    page = capsys.readouterr().out
    assert page.endswith((tmp_path / "packed_agreement.md").read_text() + "\n")
    assert f"| {row['same'] / 40:.2%} |" in page and "in 3 pictures" in page
    for words, said in ((["--split", "train", "--pictures", "0"], "1 or more"), (["--split", "tset"], "invalid choice")):
        monkeypatch.setattr(sys, "argv", ["packed_agreement.py", str(folder), *words])
        with pytest.raises(SystemExit):
            packed_agreement.main()
        assert said in capsys.readouterr().err
