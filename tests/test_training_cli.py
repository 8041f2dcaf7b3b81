"""Training from the command line: own pictures from beginning to end, and what goes wrong on the way."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.test_cli import bad, good, run
from tests.training.runs import TINY, StopAt, Stopped, states, tiny

import frugalvit
from frugalvit.beginning import opened
from frugalvit.errors import SpecError
from frugalvit.run import train
from frugalvit.spec import encode

CLASSES = ("cloudy", "forest", "night")
DIGITS = ("train", "vit.digits", *TINY, "--quiet", "--device", "cpu")
FOLDER = ("model=deit_tiny_patch16_224", "image=32", "patch=16", "batch=16", "drop_path=0.0", "lr=0.02", "log_every=2")


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Two threads for such small products only wait for each other, where the cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def photograph(label: int, number: int) -> Pillow.Image:
    """Bright and smooth, green and striped, or dark with lights; never twice the same."""
    draw = np.random.default_rng((label, number))
    height, width = draw.integers(36, 60, 2).tolist()
    image_HWC = draw.normal((200.0, 60.0, 20.0)[label], 12, (height, width, 3))
    if label == 1:
        image_HWC[..., 1] += 90
        image_HWC[:, :: int(draw.integers(3, 7))] -= 40
    if label == 2:
        image_HWC[draw.random((height, width)) < 0.03] = 250
    return Pillow.fromarray(image_HWC.clip(0, 255).astype(np.uint8))


def photographs(root: Path, each: int) -> dict[str, set[str]]:
    """root/<class>/*.jpg with the oddities of real folders; the names of those that cannot be read, and of the odd ones."""
    for label, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for number in range(each):
            picture, path = photograph(label, number), root / name / f"{number:03d}.jpg"
            exif = Pillow.Exif()
            if number % 9 == 4:
                exif[0x0112] = 6
            picture.convert("CMYK" if number % 10 == 7 else "RGB").save(path, exif=exif, quality=90)
    for name in ("forest/001.jpg", "night/002.jpg"):
        content = (root / name).read_bytes()
        (root / name).write_bytes(content[: len(content) // 2])
    (root / "cloudy" / "notes.jpg").write_text("these are my pictures of clouds")
    odd = {f"{name}/{number:03d}.jpg" for name in CLASSES for number in range(each)}
    return {
        "broken": {"forest/001.jpg", "night/002.jpg"},
        "text": {"cloudy/notes.jpg"},
        "rotated": {name for name in odd if int(name[-7:-4]) % 9 == 4},
        "CMYK": {name for name in odd if int(name[-7:-4]) % 10 == 7},
    }


def end_to_end(root: Path, out: Path, each: int, epochs: int) -> dict[str, Any]:
    """Check, train, evaluate, predict; the summary."""
    odd = photographs(root, each)
    checked = run("data", "check", str(root), "--json")
    assert checked.returncode == 1
    findings = {
        one["problem"]: {Path(name).relative_to(root).as_posix() for name in one["places"]}
        for one in json.loads(checked.stdout)["findings"]
        if one["places"]
    }
    assert findings["2 pictures are broken or cut short"] == odd["broken"]
    assert findings["1 picture is of no format that is known, whatever the ending says"] == odd["text"]
    assert findings[f"{len(odd['CMYK'])} pictures are stored as CMYK"] == odd["CMYK"]
    assert findings[f"{len(odd['rotated'])} pictures are rotated by EXIF"] == odd["rotated"]
    assert "forest/001.jpg" in run("data", "check", str(root)).stdout

    words = ["train", "transfer.folder", *FOLDER, f"epochs={epochs}", "--data", str(root), "--out", str(out)]
    done = run(*words, "--json", "--quiet", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary.pop("out") == str(out)
    assert summary == json.loads((out / "summary.json").read_text())
    found = {Path(name).relative_to(root).as_posix() for name in summary["bad_pictures"]}
    assert found <= odd["broken"] | odd["text"]
    assert len(found) + summary["val_unreadable"] == 3

    measured = json.loads(good("evaluate", str(out), "--data", str(root), "--json", "--device", "cpu"))
    for name in ("top1", "top5", "loss", "calibration_error", "pictures", "unreadable"):
        assert measured[name] == pytest.approx(summary[f"val_{name}"], rel=1e-6)
    assert set(measured["classes"]) == set(CLASSES)
    text = good("evaluate", str(out), "--data", str(root), "--device", "cpu")
    for word in ("top1", "top5", "loss", "calibration_error", "recall", *CLASSES):
        assert word in text

    pictures = [str(root / name / "005.jpg") for name in CLASSES]
    rows = json.loads(good("predict", str(out), *pictures, "--json", "--device", "cpu"))
    assert rows["unreadable"] == {}
    assert {guess["name"] for guess in rows["predictions"][pictures[0]]} == set(CLASSES)
    assert sum(guess["probability"] for guess in rows["predictions"][pictures[0]]) == pytest.approx(1, abs=1e-5)
    lines = good("predict", str(out), *pictures, "--top", "1", "--device", "cpu").splitlines()
    assert [line.split(":")[0] for line in lines] == pictures
    assert all(any(name in line.split(": ")[1] for name in CLASSES) for line in lines)
    return summary


def test_a_folder_of_photographs_from_check_to_prediction(tmp_path: Path) -> None:
    end_to_end(tmp_path / "pictures", tmp_path / "run", 30, 2)
    done = run("predict", str(tmp_path / "run"), str(tmp_path / "pictures"), "--json", "--device", "cpu")
    assert done.returncode == 1
    rows = json.loads(done.stdout)
    assert len(rows["predictions"]) == 88
    assert {Path(name).name for name in rows["unreadable"]} == {"001.jpg", "002.jpg", "notes.jpg"}


@pytest.mark.slow
def test_six_hundred_photographs_are_told_apart(tmp_path: Path) -> None:
    summary = end_to_end(tmp_path / "pictures", tmp_path / "run", 200, 10)
    assert summary["val_top1"] > 90


def test_a_split_of_its_own_is_measured_at_the_end(tmp_path: Path) -> None:
    for split, count in (("train", 8), ("val", 3), ("test", 4)):
        for label, name in enumerate(CLASSES):
            (tmp_path / "pictures" / split / name).mkdir(parents=True)
            for number in range(count):
                photograph(label, number).save(tmp_path / "pictures" / split / name / f"{number}.png")
    words = ["train", "transfer.folder", *FOLDER, "epochs=1", "--data", "pictures", "--device", "cpu"]
    text = good(*words, "--out", "run", cwd=tmp_path)
    assert "val: top-1" in text
    assert "test: top-1" in text
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["val_pictures"], summary["test_pictures"]) == (9, 12)
    assert (
        json.loads(good("evaluate", "run", "--data", "pictures", "--split", "test", "--json", cwd=tmp_path))["pictures"] == 12
    )
    broken = tmp_path / "pictures" / "train" / CLASSES[0] / "0.png"
    broken.write_bytes(broken.read_bytes()[:40])
    known, fresh = (run("evaluate", "run", "--data", "pictures", "--split", one, cwd=tmp_path) for one in ("train", "test"))
    assert "23 pictures, and 1 that cannot be read" in known.stdout
    assert "`frugalvit data check` names the pictures that cannot be read" in known.stderr
    assert "learned from" not in known.stderr + fresh.stderr  # a file is another than it was
    (tmp_path / "pictures" / "test" / "night").rename(tmp_path / "pictures" / "test" / "nacht")
    text = bad(*words, "--out", "other", cwd=tmp_path)
    assert "test: its classes are not those of train (missing: night; extra: nacht)" in text


def test_training_says_that_pictures_are_resized(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for split, count in (("train", 16), ("val", 4), ("test", 4)):
        np.save(tmp_path / f"{split}_images.npy", generator.integers(0, 256, (count, 54, 54, 3), dtype=np.uint8))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(count) % 2)
    sizes = ["image=54", "dim=16", "heads=2", "depth=1", "early=1", "late=1", "batch=8", "passes=1"]
    words = ["train", "small.best_cifar10", *sizes, "data.dataset=ArrayFolder", "--data", str(tmp_path), "--device", "cpu"]
    done = run(*words, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("note: pictures of 54 x 54 pixels are resized to 48 x 48, which the model takes") == 1


# ------------------------------------------------------------------------------------------------ digits


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("digits") / "run"
    good(*DIGITS, "--out", str(out))
    return out


def test_a_run_folder_is_a_recipe_a_classifier_and_a_data_set(digits: Path, tmp_path: Path) -> None:
    measured = json.loads(good("evaluate", str(digits), "--json", "--device", "cpu"))
    summary = json.loads((digits / "summary.json").read_text())
    assert measured["top1"] == summary["val_top1"]
    done = json.loads(
        good("train", str(digits), "seed=3", "--out", str(tmp_path / "again"), "--json", "--quiet", "--device", "cpu")
    )
    assert done["step"] == 24
    assert json.loads((tmp_path / "again" / "recipe.json").read_text())["seed"] == 3
    assert frugalvit.load(digits).classes == tuple("0123456789")


def test_progress_goes_to_stderr_and_json_to_stdout(tmp_path: Path) -> None:
    done = run("train", "vit.digits", *TINY, "--out", str(tmp_path / "run"), "--json", "--device", "cpu")
    assert json.loads(done.stdout)["step"] == 24
    assert "note: 256 pictures, 500 for validation, 32 a step, 24 steps" in done.stderr
    assert "step 24/24" in done.stderr


def test_the_first_classes_can_be_evaluated_again(tmp_path: Path) -> None:
    words = ["data.subset=FirstClasses(3)", "duration=Steps(4)"]
    good("train", "vit.digits", "dim=16", "depth=1", *words, "--out", str(tmp_path / "run"), "--quiet", "--device", "cpu")
    found = json.loads(good("evaluate", str(tmp_path / "run"), "--json", "--device", "cpu"))
    assert set(found["classes"]) == set("012")


def test_resume_and_extend_from_the_command_line(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    good(*DIGITS, "--out", out)
    words = ["train", "vit.digits", *TINY, "epochs=4", "--out", out, "--device", "cpu", "--resume"]
    text = bad(*words)
    assert "duration.count was 3" in text
    done = run(*words, "--extend")
    assert done.returncode == 0
    assert "note: extended from 24 to 32 steps: the learning rate at step 24 goes from 0 to" in done.stderr


def test_a_folder_of_several_seeds_says_what_it_is_and_how_it_goes_on(tmp_path: Path) -> None:
    few = ("train", "vit.digits", "dim=16", "depth=1", "schedule.warmup=Steps(1)", "--device", "cpu", "--quiet")
    out = tmp_path / "my seeds"
    good(*few, "duration=Steps(3)", "--out", str(out), "--seeds", "2,10")
    for words in ((), ("--resume",), ("--resume", "seed=4")):
        text = bad(*few, "duration=Steps(3)", "--out", str(out), *words)
        assert f"DataError: {out}: was made by --seeds: it holds a run folder a seed (2, 10), and no single run" in text
        told = shlex.split(text.partition("go on with all: ")[2])
        assert told == ["frugalvit", *few[:5], "duration=Steps(3)", "--out", str(out), "--resume", "--seeds", "2,10",
                        "--device", "cpu", "--quiet"]  # fmt: skip
    assert json.loads(good(*told[1:], "--json"))["seeds"] == [2, 10]
    text = bad(*few, "duration=Steps(4)", "--out", str(out), "--resume", "--extend")
    told = shlex.split(text.partition("each by itself, as --extend and --log need it: ")[2])
    assert json.loads(good(*told[1:], "--json"))["step"] == 4
    assert json.loads((out / "seed-2" / "summary.json").read_text())["step"] == 4
    assert json.loads((out / "seed-10" / "summary.json").read_text())["step"] == 3


def test_a_folder_of_several_seeds_is_no_recipe_but_each_of_its_runs_is(tmp_path: Path) -> None:
    for seed in (0, 3):
        (tmp_path / "many" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "many" / f"seed-{seed}" / "recipe.json").write_text("{}")
    text = bad("train", "many", "--out", "other", cwd=tmp_path)
    assert "SpecError: many: was made by --seeds: it holds a run folder a seed (0, 3), and no recipe of its own." in text
    assert "Name one of them, as in many/seed-0." in text
    text = bad("train", "many", "--out", "many", "--resume", cwd=tmp_path)
    assert "go on with all: frugalvit train many/seed-0 --out many --resume --seeds 0,3" in text
    text = bad("train", "vit.digits", "--out", "many", "--log", "wandb", "--log", "mlflow", "--with", "mine", cwd=tmp_path)
    one = "frugalvit train vit.digits seed=0 --out many/seed-0 --resume --log wandb --log mlflow --with mine"
    assert f"go on with each by itself, as --extend and --log need it: {one}" in text


def test_a_training_that_explodes_ends_with_a_message_and_a_bundle(tmp_path: Path) -> None:
    wild = ["optimizer.lr=1e30", "schedule.warmup=Steps(0)", "nonfinite=3", "log_every=1"]
    text = bad(*DIGITS, *wild, "--out", str(tmp_path / "run"))
    assert "NonFinite: train: 3 steps in a row had a loss or gradient that is no number" in text
    assert list((tmp_path / "run" / "debug").glob("*/state.safetensors"))


def test_steps_that_were_skipped_are_told_while_it_trains_and_at_the_end_for_each_seed(tmp_path: Path) -> None:
    words = ("train", "vit.digits", *TINY, "optimizer.lr=1e30", "nonfinite=99", "--device", "cpu")
    done = run(*words, "--out", str(tmp_path / "one"))
    assert done.returncode == 1  # the end has been reached, and the model is none
    skipped = json.loads((tmp_path / "one" / "summary.json").read_text())["nonfinite"]
    assert skipped > 9
    assert f"  {skipped} steps skipped" in done.stderr
    assert f"caution: {skipped} of 24 steps were skipped: their loss or gradient was no number" in done.stderr
    done = run(*words, "--out", str(tmp_path / "two"), "--seeds", "0,1", "--quiet")
    assert f"caution: seed-0: {skipped} of 24 steps were skipped" in done.stderr and "caution: seed-1: " in done.stderr
    assert done.returncode == 1 and done.stderr.count("the trained model answers with no numbers") == 2


# ------------------------------------------------------------------------------------------------ mistakes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--epochs", "3"], "No such option: --epochs. Settings are written as name=value, without dashes: epochs=..."),
        (["--batch-size=3"], "without dashes: batch_size=..."),
    ],
)
def test_settings_that_are_written_as_options_are_told_how_to_be_written(words: list[str], said: str) -> None:
    for verb in (["train", "vit.digits"], ["distill"]):
        done = run(*verb, *words, "--out", "run")
        assert done.returncode == 2
        assert said in " ".join(done.stderr.replace("│", " ").split())


def test_the_length_of_a_saved_recipe_has_another_name(tmp_path: Path) -> None:
    (tmp_path / "night.json").write_text(json.dumps(encode(frugalvit.recipe("vit.digits"))))
    text = bad("train", "night.json", "epochs=8", "--out", "run", cwd=tmp_path)
    assert "there is no parameter 'epochs'. Say 'duration=Epochs(2)' or 'duration=Steps(100)'." in text


OWN_RECIPES = """
import json
from frugalvit.recipes.vit import digits
from own_widths import width

def night(*, heads: int = 3): return digits(dim=width(heads))
def day(*, heads: int = 3): return json.loads("no JSON")
def bare(*, heads: "int" = 3) -> "Nothing": return digits()
"""


def test_an_error_inside_a_recipe_of_the_user_s_is_told_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the file beside it fails, or a library that it calls; for Python the cause is kept."""
    (tmp_path / "own_evenings.py").write_text(OWN_RECIPES)
    (tmp_path / "own_widths.py").write_text("def width(heads: int) -> int:\n    return {3: 48}[heads]\n")
    (tmp_path / "own_imports.py").write_text("import own_evenings\n\nraise LookupError('no such lab')\n")
    text = bad("train", "own_evenings:night", "heads=2", "batch=8", "--out", "run", cwd=tmp_path)
    assert text == (
        f"SpecError: own_evenings:night: the function fails at {tmp_path / 'own_widths.py'}, line 2, `return {{3: 48}}[heads]` "
        "(KeyError: 2). In Python, frugalvit.recipe('own_evenings:night', 'heads=2', "
        "'batch=8') shows the whole traceback.\n"
    )
    text = bad("show", "own_evenings:day", cwd=tmp_path)
    assert f"fails at {tmp_path / 'own_evenings.py'}, line 7, `def day" in text and "(JSONDecodeError: Expecting value" in text
    text = bad("train", "own_evenings:bare", "--out", "run", cwd=tmp_path)
    assert text == "SpecError: own_evenings:bare: the function fails (NameError: name 'Nothing' is not defined).\n"
    text = bad("train", "own_imports:night", "--out", "run", cwd=tmp_path)
    assert f"'own_imports' cannot be imported at {tmp_path / 'own_imports.py'}, line 3, `raise" in text
    assert "(LookupError: no such lab). In Python, frugalvit.recipe('own_imports:night') shows" in text
    assert not (tmp_path / "run").exists()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as error:
        frugalvit.recipe("own_evenings:night", "heads=2")
    assert isinstance(error.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["vit.digts"], "SpecError: no recipe is called 'vit.digts'. Did you mean 'vit.digits'?"),
        (["nowhere:night"], "SpecError: nowhere:night: 'nowhere' cannot be imported"),
        (["mine.py"], "SpecError: mine.py: is a file. A recipe of your own is named by its module and its function, mine:FUNC"),
        (["lab/mine.py:night"], "by its module and its function, mine:night, called in lab."),
        (["vit.digits", "epoch=3"], "SpecError: vit.digits: there is no parameter 'epoch'. Did you mean 'epochs'?"),
        (["vit.digits", "optimizer.larning=3"], "AdamW has no field 'larning'"),
        (["vit.digits", "data.augmnt.steps=3"], "Data has no field 'augmnt'. Did you mean 'augment'?"),
        (["vit.digits", "epochs=many"], "SpecError: vit.digits.epochs: 'many' does not fit here. Expected a whole number"),
        (["vit.digits", "average=0.9"], "average: '0.9' does not fit here"),
        (["vit.digits", "batch=0"], "batch: 0. Use 1 and more."),
        (["vit.digits", "epochs"], "'epochs' is not of the form name=value"),
        (["vit.digits", "model.classes=7"], "SpecError: recipe.model.classes: the model has 7 classes, the data 10"),
        (["vit.digits", "--log", "tensorbord"], "no logger is called 'tensorbord'. Did you mean 'tensorboard'?"),
        (["vit.digits", "--device", "gpu"], "SpecError: --device: 'gpu' is no device. Use auto, cpu, cuda"),
        (["vit.digits", "--device", "meta"], "SpecError: --device: 'meta' does not train. Use auto, cpu"),
        (["vit.digits", "precision=fp16", "--device", "cpu"], "recipe.precision: fp16 does not train on a CPU"),
        (["vit.digits", "--workers", "-1"], "--workers"),
        (["vit.digits", "--init", "gone.pth"], "WeightsError: gone.pth: there is no such file"),
        (["vit.digits", "--init", __file__], "--origin"),
        (["vit.digits", "--init", "gone.pth", "--origin", "timm"], "WeightsError: gone.pth: there is no such file"),
        (["transfer.folder"], "DataError: --data: where is the data? Say --data PATH: a folder with train/<class>/*.jpg"),
        (["transfer.folder", "--data", "gone"], "gone: there is no such file or folder. Expected a folder with train/<class>"),
    ],
)
def test_mistakes_end_in_a_message_that_names_place_and_cure(tmp_path: Path, words: list[str], message: str) -> None:
    text = bad("train", *words, "--out", "run", "--quiet", cwd=tmp_path)
    assert message in " ".join(text.split())
    assert list(tmp_path.iterdir()) == []


def test_where_to_must_be_said() -> None:
    assert "SpecError: --out: where to? Say --out FOLDER." in bad("train", "vit.digits")


def test_weights_without_an_origin_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "some.pth")
    text = bad("train", "vit.digits", "--init", "some.pth", "--out", "run", "--quiet", cwd=tmp_path)
    assert "some.pth" in text
    assert "Say --origin" in text
    assert not (tmp_path / "run").exists()


def test_folders_that_do_not_fit_are_named(tmp_path: Path) -> None:
    words = ("train", "transfer.folder", *FOLDER, "--quiet", "--device", "cpu", "--out", "run", "--data", "pictures")
    for label, name in enumerate(CLASSES):
        for split in ("train", "val"):
            (tmp_path / "pictures" / split / name).mkdir(parents=True)
            photograph(label, 0).save(tmp_path / "pictures" / split / name / "0.png")
    (tmp_path / "pictures" / "train" / "storm").mkdir()
    text = bad(*words, cwd=tmp_path)
    assert str(Path("pictures") / "train" / "storm") in text or str(Path("pictures") / "val") in text
    (tmp_path / "pictures" / "val" / "storm").mkdir()
    text = bad(*words, cwd=tmp_path)
    assert f"{Path('train') / 'storm'}: no pictures in this class folder" in text
    photograph(0, 1).save(tmp_path / "pictures" / "train" / "storm" / "1.png")
    (tmp_path / "pictures" / "val" / "storm").rmdir()
    text = bad(*words, cwd=tmp_path)
    assert "its classes are not those of train (missing: storm). Give every split the same classes" in text
    assert not (tmp_path / "run").exists()


def test_other_pictures_than_those_of_the_model_are_refused(digits: Path, tmp_path: Path) -> None:
    for name in CLASSES:
        (tmp_path / name).mkdir()
        photograph(0, 0).save(tmp_path / name / "0.png")
    assert "Expected" in bad("evaluate", str(digits / "model.safetensors"), "--data", str(tmp_path / "gone"))
    text = bad("evaluate", str(digits / "model.safetensors"), "--data", str(tmp_path), "--split", "train")
    assert "the data has 3 classes, and the model 10: cloudy, forest, night against 0, 1, 2, 3, ..." in text
    assert "Say --data PATH" in bad("evaluate", str(digits / "model.safetensors"))
    assert "there is no split 'vall'" in bad("evaluate", str(digits), "--split", "vall")
    (tmp_path / "ant").mkdir()
    photograph(0, 0).save(tmp_path / "ant" / "0.png")
    other = ("evaluate", str(digits), "--dataset", "TinyImageNet", "--data", str(tmp_path))
    assert "This is an ImageFolder: say --dataset ImageFolder." in bad(*other)


def test_predicting_what_is_not_there_is_named(digits: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "no picture is below this folder" in bad("predict", str(digits), str(tmp_path / "empty"))
    done = run("predict", str(digits), str(tmp_path / "gone.jpg"))
    assert done.returncode == 1
    assert "gone.jpg: there is no such file" in done.stderr
    assert "there is no such file or folder" in bad("predict", str(tmp_path / "no_run"), "a.jpg")
    assert "Traceback" not in done.stderr


def test_a_half_written_checkpoint_is_named(digits: Path, tmp_path: Path) -> None:
    good(*DIGITS, "--out", str(tmp_path / "run"))
    newest = states(tmp_path / "run")[-1]
    newest.write_bytes(newest.read_bytes()[:5000])
    text = bad(*DIGITS, "--resume", "--out", str(tmp_path / "run"))
    assert f"WeightsError: {newest}: the file cannot be read as .safetensors: it is truncated" in text


def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    code = "import sys, pathlib; from frugalvit.report.record import RunFolder as R; r = R.locked(pathlib.Path(sys.argv[1]))"
    code += "; print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        for words in ((), ("--resume",), ("--resume", "--extend")):
            text = bad(*DIGITS, "--out", str(tmp_path / "run"), *words)
            assert f"process {holder.pid} is writing a run here. Wait for it, stop it, or choose another --out." in text
        holder.communicate("")
    good(*DIGITS, "--out", str(tmp_path / "run"))


def test_a_full_disk_ends_in_a_message_and_leaves_the_earlier_checkpoint(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = (*DIGITS, "average=none", "save=Steps(4)", "--out", str(out), "--resume")
    code = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
sys.argv = ["frugalvit", *{words!r}]
from frugalvit.cli import main
main()
"""
    with pytest.raises(Stopped):
        train(tiny("average=none"), out=out, device="cpu", display=StopAt(12))
    before = states(out)[-1].read_bytes()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert str(out) in done.stderr
    assert f"WeightsError: {out}/state/step-000000012.safetensors: cannot be written" in done.stderr
    assert "File too large" in done.stderr
    assert states(out)[-1].read_bytes() == before
    assert not list(out.rglob(".*.part"))
    assert json.loads(good(*words, "--json"))["step"] == 24


def test_a_validation_that_lacks_pictures_and_a_training_without_one_are_told(tmp_path: Path) -> None:
    """Classes of three hold some out, all broken but one; classes of one hold nothing out."""
    few = (*(one for one in FOLDER if not one.startswith("batch")), "batch=2", "epochs=1", "data.dataset.holdout=0.4")
    words = ["transfer.folder", *few, "--device", "cpu"]
    for folder, each in (("three", 3), ("one", 1)):
        for name in CLASSES:
            (tmp_path / folder / name).mkdir(parents=True)
            for number in range(each):
                Pillow.new("RGB", (40, 40), (9 * number, 0, 0)).save(tmp_path / folder / name / f"{number}.png")
    first = run("train", *words, "--data", str(tmp_path / "three"), "--out", str(tmp_path / "a"))
    assert first.returncode == 0 and "cannot be read" not in first.stderr, first.stderr
    broken = held_out(tmp_path / "three", few)[1:]
    for one in broken:
        one.write_bytes(one.read_bytes()[:40])
    second = run("train", *words, "--data", str(tmp_path / "three"), "--out", str(tmp_path / "b"))
    assert f"caution: {len(broken)} val pictures cannot be read, and val is without; `frugalvit data check`" in second.stderr
    third = run("train", *words, "--data", str(tmp_path / "one"), "--out", str(tmp_path / "c"))
    assert third.returncode == 0 and "no pictures are held out, so none will say how good the model is" in third.stderr


def held_out(data: Path, overrides: tuple[str, ...]) -> list[Path]:
    source = opened(frugalvit.recipe("transfer.folder", *overrides), data)["val"]
    return [Path(source.name(index)) for index in range(len(source))]
