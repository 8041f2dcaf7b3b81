"""What a training begins from: given weights or none, those of a run that is repeated, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.test_cli import bad, good, run
from tests.training.runs import TINY, Notes, tiny, trace

import frugalvit
from frugalvit.data.arrays import Arrays
from frugalvit.errors import DataError, WeightsError
from frugalvit.run import train
from frugalvit.weights.files import write_safetensors
from frugalvit.weights.load import export_weights
from frugalvit.weights.published import published

QUIET = (*TINY, "--quiet", "--device", "cpu")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of weights that does not say whose names it has."""
    file = tmp_path_factory.mktemp("weights") / "first.safetensors"
    write_safetensors(file, export_weights(tiny("model.classes=10").model.build(seed=9), "timm"))
    return file


def test_a_run_that_is_repeated_begins_from_the_weights_it_began_from(tmp_path: Path, weights: Path) -> None:
    good("train", "vit.digits", *QUIET, "--init", str(weights), "--origin", "timm", "--out", str(tmp_path / "first"))
    saved = json.loads((tmp_path / "first" / "recipe.json").read_text())
    assert (saved["init"], saved["origin"]) == (str(weights), "timm")
    for name in ("first", "first/recipe.json"):
        out = tmp_path / name.replace("/", "-again-")
        good("train", str(tmp_path / name), "--quiet", "--device", "cpu", "--out", f"{out}-new")
        assert trace(Path(f"{out}-new"))["state"] == trace(tmp_path / "first")["state"]
    good("train", str(tmp_path / "first"), "--quiet", "--device", "cpu", "--init", "none", "--out", str(tmp_path / "fresh"))
    good("train", "vit.digits", *QUIET, "--out", str(tmp_path / "plain"))
    assert trace(tmp_path / "fresh")["state"] == trace(tmp_path / "plain")["state"] != trace(tmp_path / "first")["state"]
    assert "init" not in json.loads((tmp_path / "fresh" / "recipe.json").read_text())


def test_a_run_that_began_from_weights_is_resumed_without_naming_them(tmp_path: Path, weights: Path) -> None:
    out = tmp_path / "run"
    good("train", "vit.digits", *QUIET, "--init", str(weights), "--origin", "timm", "--out", str(out))
    before = trace(out)
    good("train", "vit.digits", *QUIET, "--resume", "--out", str(out))
    good("train", "vit.digits", *QUIET, "--resume", "--init", str(weights), "--origin", "timm", "--out", str(out))
    saved = json.loads((out / "recipe.json").read_text())
    del saved["origin"]  # as an older version wrote it
    (out / "recipe.json").write_text(json.dumps(saved))
    good("train", "vit.digits", *QUIET, "--resume", "--origin", "timm", "--out", str(out))
    assert trace(out)["state"] == before["state"]


def test_seeds_of_a_repeated_run_all_begin_as_it_did_also_those_that_come_later(tmp_path: Path, weights: Path) -> None:
    good("train", "vit.digits", *QUIET, "--init", str(weights), "--origin", "timm", "--out", str(tmp_path / "first"))
    words = ("train", str(tmp_path / "first"), "--quiet", "--device", "cpu", "--out", str(tmp_path / "seeds"))
    good(*words, "--seeds", "0")
    good(*words, "--seeds", "0,1", "--resume")
    recipes = [json.loads((tmp_path / "seeds" / f"seed-{seed}" / "recipe.json").read_text()) for seed in (0, 1)]
    assert [(one["init"], one["origin"]) for one in recipes] == [(str(weights), "timm")] * 2
    assert trace(tmp_path / "seeds" / "seed-0")["state"] == trace(tmp_path / "first")["state"]


def test_weights_that_a_repeated_run_began_from_and_that_are_gone_are_told(tmp_path: Path, weights: Path) -> None:
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(weights.read_bytes())
    good("train", "vit.digits", *QUIET, "--init", str(mine), "--origin", "timm", "--out", str(tmp_path / "first"))
    mine.unlink()
    said = bad("train", str(tmp_path / "first"), "--quiet", "--device", "cpu", "--out", str(tmp_path / "again"))
    assert f"The run that is repeated began from {mine}; --init none begins without." in said


def test_a_student_that_is_a_run_begins_as_it_did(tmp_path: Path, weights: Path) -> None:
    good("train", "vit.digits", *QUIET, "--init", str(weights), "--origin", "timm", "--out", str(tmp_path / "first"))
    words = ("--teacher", str(tmp_path / "first"), "--student", str(tmp_path / "first"), "--way", "hard", "--least", "0")
    good("distill", *words, "--quiet", "--device", "cpu", "--out", str(tmp_path / "taught"))
    assert json.loads((tmp_path / "taught" / "student" / "recipe.json").read_text())["init"] == str(weights)


def said_by(tmp_path: Path, *words: str, init: str = "", pictures: int = 40, side: int = 100) -> list[str]:
    image_NHWC = np.random.default_rng(0).integers(0, 256, (pictures, side, side, 3), dtype=np.uint8)
    source = Arrays(image_NHWC, np.arange(pictures) % 2, ["ant", "bee"], "noise")
    notes, sizes = Notes(), ("image=112", "patch=56", "batch=8", "duration=Steps(1)")
    made = frugalvit.recipe("transfer.folder", "model=deit_tiny_patch16_224", *sizes, *words)
    number = sum(1 for _ in tmp_path.iterdir())
    train(made, out=tmp_path / f"run-{number}", data={"train": source}, init=init, device="cpu", display=notes)
    return notes.said


def test_few_pictures_and_fresh_weights_at_a_large_side_are_told(tmp_path: Path) -> None:
    (said,) = (text for text in said_by(tmp_path) if "fresh weights at" in text)
    assert said.startswith("caution: 40 pictures are few for fresh weights at 112 pixels; --init takes")
    begun = str(tmp_path / "run-0")
    assert not any("few for fresh weights" in text for text in said_by(tmp_path, init=begun))


@pytest.mark.parametrize(
    ("optimizer", "told"),
    [("AdamW(0.005)", True), ("AdamW(1e-4)", False), ("Sgd(0.5)", True), ("Sgd(0.01)", False)],
)
def test_a_learning_rate_that_may_undo_given_weights_is_told(tmp_path: Path, optimizer: str, told: bool) -> None:
    rate = (f"optimizer={optimizer}", "optimizer.per=256")
    assert not any("may undo" in text for text in said_by(tmp_path, *rate))
    said = said_by(tmp_path, *rate, init=str(tmp_path / "run-0"))
    assert any("may undo what the given weights have learned" in text for text in said) == told


@pytest.mark.parametrize("tune", ["Everything", "HeadsOnly", "HeadsAndLastNorm"])
def test_heads_that_would_learn_on_fresh_features_are_told(tmp_path: Path, tune: str) -> None:
    words = (f"tune={tune}", "optimizer=AdamW(0.005)", "optimizer.per=256")
    said = said_by(tmp_path, *words)
    assert any(f"by tune={tune} all that is before the heads" in text for text in said) == (tune != "Everything")
    said = said_by(tmp_path, *words, init=str(tmp_path / "run-0"))
    assert not any("all that is before the heads" in text for text in said)
    assert any("may undo" in text for text in said) == (tune == "Everything")  # heads have nothing to undo


def test_released_weights_that_have_learned_from_other_colors_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    released = published("deit_tiny_patch16_224")
    monkeypatch.setattr("frugalvit.weights.fetch.published", lambda name: replace(released, sha256=""))
    file = tmp_path / "home" / "hub" / "checkpoints" / released.file
    file.parent.mkdir(parents=True)
    state = export_weights(frugalvit.model("deit_tiny_patch16_224", image=112, patch=56).build(seed=0), released.origin)
    torch.save({"model": state}, file)
    runs = tmp_path / "runs"
    runs.mkdir()
    words = ("data.mean=0.5,0.5,0.5", "data.std=0.5,0.5,0.5")
    said = said_by(runs, *words, init="deit_tiny_patch16_224")
    assert any(
        "has learned from pictures of other colors; say data.mean=0.485,0.456,0.406 data.std=0.229" in one for one in said
    )


def test_a_choice_by_the_test_pictures_is_told(tmp_path: Path) -> None:
    source = Arrays(np.zeros((20, 8, 8), dtype=np.uint8), np.arange(20) % 2, ["ant", "bee"], "noise")
    notes = Notes()
    made = frugalvit.recipe("vit.digits", "dim=8", "depth=1", "epochs=1", "batch=8", "data.validate=test")
    train(made, out=tmp_path / "chosen", data=dict.fromkeys(("train", "val", "test"), source), device="cpu", display=notes)
    assert "caution: validation reads the test pictures (data.validate=test), so the best epoch is chosen by them" in notes.said


def test_several_processes_for_one_training_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")  # as a batch system may, of its own
    train(tiny(), out=tmp_path / "run", device="cpu")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    words = ("vit.digits", *QUIET, "--out", str(tmp_path / "other"))
    assert "torchrun: it has started 2 processes, and a training takes one on one device" in bad("train", *words)
    assert not (tmp_path / "other").exists()
    monkeypatch.setenv("WORLD_SIZE", "1")
    good("train", *words)
    found = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert found["device"] == "cpu" and found["device_name"] and found["cuda"] is None


# ------------------------------------------------------------------------------------------------ other pictures


@pytest.fixture(scope="module")
def ants_and_bees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Two folders of pictures, and a run on the first."""
    root = tmp_path_factory.mktemp("insects")
    for folder, count in (("old", 20), ("new", 15)):
        for number in range(2 * count):
            place = root / folder / ("ant", "bee")[number % 2]
            place.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng((count, number)).integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Pillow.fromarray(noise).save(place / f"{number}.png")
    words = ("model=deit_tiny_patch16_224", "image=32", "patch=16", "batch=8", "epochs=1")
    good(
        "train",
        "transfer.folder",
        *words,
        "--data",
        str(root / "old"),
        "--out",
        str(root / "run"),
        "--quiet",
        "--device",
        "cpu",
    )
    return root / "run", root / "old", root / "new"


def test_all_of_a_new_folder_is_measured_where_that_is_asked_for(ants_and_bees: tuple[Path, Path, Path]) -> None:
    trained, old, new = map(str, ants_and_bees)
    done = run("evaluate", trained, "--data", new, "--device", "cpu")
    assert "val: 3 pictures" in done.stdout
    assert (
        "note: 3 of 30 pictures, those that a training would hold out of these; `--split all` takes all of them" in done.stderr
    )
    done = run("evaluate", trained, "--data", new, "--split", "all", "--device", "cpu")
    assert "all: 30 pictures" in done.stdout and "note" not in done.stderr
    for split, which in (("train", "these"), ("all", "most of these")):
        done = run("evaluate", trained, "--data", old, "--split", split, "--device", "cpu")
        assert f"note: {trained} has learned from {which} pictures, which flatters it" in done.stderr
    done = run("evaluate", trained, "--data", old, "--device", "cpu")
    assert "val: 4 pictures" in done.stdout and "note" not in done.stderr  # the others were learned from


def test_what_was_held_out_of_some_classes_is_known_again(ants_and_bees: tuple[Path, Path, Path], tmp_path: Path) -> None:
    _, old, _ = ants_and_bees
    for name in ("ant", "bee"):
        (tmp_path / "three" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "three" / name).symlink_to(old / name)
    (tmp_path / "three" / "wasp").symlink_to(old / "bee")
    words = ("model=deit_tiny_patch16_224", "image=32", "patch=16", "batch=8", "epochs=1", "data.subset=FirstClasses(2)")
    run_words = ("--data", str(tmp_path / "three"), "--out", str(tmp_path / "run"), "--quiet", "--device", "cpu")
    good("train", "transfer.folder", *words, *run_words)
    done = run("evaluate", str(tmp_path / "run"), "--data", str(tmp_path / "three"), "--device", "cpu")
    assert "val: 4 pictures" in done.stdout and "note" not in done.stderr


def test_all_is_refused_where_there_are_splits(ants_and_bees: tuple[Path, Path, Path], tmp_path: Path) -> None:
    trained, old, new = ants_and_bees
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "train").symlink_to(old)
    (tmp_path / "both" / "val").symlink_to(new)
    said = bad("evaluate", str(trained), "--data", str(tmp_path / "both"), "--split", "all", "--device", "cpu")
    assert "DataError: --split all: there is a val split. All pictures are measured where there is none; name one." in said


def test_pictures_of_some_classes_are_measured_by_the_names_of_these(
    ants_and_bees: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    trained, _, new = ants_and_bees
    whole = json.loads(good("evaluate", str(trained), "--data", str(new), "--split", "all", "--device", "cpu", "--json"))
    (tmp_path / "later").mkdir()
    for name in ("bee", "nothing"):
        (tmp_path / "later" / name).symlink_to(new / "bee")
    assert "class 0 is bee there, and ant here" in bad(
        "evaluate", str(trained), "--data", str(tmp_path / "later"), "--split", "all", "--device", "cpu"
    )
    (tmp_path / "later" / "nothing").unlink()
    done = run("evaluate", str(trained), "--data", str(tmp_path / "later"), "--split", "all", "--device", "cpu", "--json")
    assert "note: the data has 1 of the model's 2 classes; the model still chooses among all" in done.stderr
    found = json.loads(done.stdout)
    assert (found["pictures"], found["top1"]) == (15, pytest.approx(whole["classes"]["bee"]["recall"]))


def test_where_the_data_of_a_run_lay_is_told(ants_and_bees: tuple[Path, Path, Path]) -> None:
    trained, old, _ = ants_and_bees
    said = bad("evaluate", str(trained), "--device", "cpu")
    assert "where is the data? Say --data PATH" in said and f"The run was trained with --data {old}." in said


def test_a_training_that_ends_in_no_numbers_has_failed(tmp_path: Path) -> None:
    done = run(
        "train", "vit.digits", *QUIET, "epochs=1", "lr=1e30", "clip=none", "average=none", "--out", str(tmp_path / "run")
    )
    said = "the trained model answers with no numbers: train again with a lower learning rate"
    loss = json.loads((tmp_path / "run" / "summary.json").read_text())["val_loss"]
    assert (loss, done.returncode) == ("nan", 1) and said in done.stderr
    assert "steps were skipped: their loss or gradient was no number; a lower learning rate helps" in done.stderr


def test_a_folder_that_holds_a_run_is_refused_before_pictures_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny(), out=tmp_path / "run", device="cpu")
    monkeypatch.setattr("frugalvit.run.prepare", None)
    with pytest.raises(DataError, match="holds a run already"):
        train(tiny(), out=tmp_path / "run", device="cpu")


def test_an_onnx_file_begins_no_run(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"onnx")
    with pytest.raises(WeightsError, match="is a computation, whose weights have lost their names"):
        train(tiny(), out=tmp_path / "run", init=str(tmp_path / "model.onnx"), device="cpu")


def test_classes_that_differ_are_told_by_their_count_or_by_the_first(
    ants_and_bees: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    trained, old, _ = ants_and_bees
    assert "the data has 10 classes, and the model 2: 0, 1, 2, 3, ... against ant, bee" in bad(
        "evaluate", str(trained), "--dataset", "Digits", "--device", "cpu"
    )
    (tmp_path / "wasps").mkdir()
    (tmp_path / "wasps" / "ant").symlink_to(old / "ant")
    (tmp_path / "wasps" / "wasp").symlink_to(old / "bee")
    said = bad("evaluate", str(trained), "--data", str(tmp_path / "wasps"), "--device", "cpu")
    assert "class 1 is wasp there, and bee here" in said


def test_a_run_without_a_checkpoint_begins_anew_and_says_so(tmp_path: Path) -> None:
    good("train", "vit.digits", *QUIET, "--out", str(tmp_path / "run"))
    for one in [*(tmp_path / "run" / "state").iterdir(), tmp_path / "run" / "summary.json"]:
        one.unlink()
    notes = Notes()
    words = [one for one in QUIET if "=" in one]
    train(frugalvit.recipe("vit.digits", *words), out=tmp_path / "run", resume=True, device="cpu", display=notes)
    assert "there is no checkpoint yet, so it begins anew" in notes.said


def test_seeds_that_are_added_join_the_printed_mean_and_a_folder_of_runs_is_no_recipe(tmp_path: Path) -> None:
    words = ("train", "vit.digits", *QUIET, "--out", str(tmp_path / "seeds"))
    good(*words, "--seeds", "0")
    said = good(*words, "--seeds", "1", "--resume")
    told = json.loads((tmp_path / "seeds" / "seeds.json").read_text())
    assert "(n = 2)" in said and "with seed 0 of before" in said and told["seeds"] == [0, 1]
    found = json.loads(good(*words, "--seeds", "1", "--resume", "--json"))
    assert found["seeds"] == [0, 1] and found["val_top1"] == told["val_top1"]
    (tmp_path / "seeds").rename(tmp_path / "several")
    (tmp_path / "several" / "seed-0").rename(tmp_path / "several" / "teacher")
    (tmp_path / "several" / "seed-1").rename(tmp_path / "several" / "student")
    refused = bad("train", str(tmp_path / "several"), "--out", str(tmp_path / "x"))
    assert "holds several runs: student, teacher. Name one of them" in refused
