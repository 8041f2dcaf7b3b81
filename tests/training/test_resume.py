from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow
from tests.training.runs import Notes, StopAt, Stopped, column, states, tiny, trace

from frugalvit.errors import DataError, SpecError, WeightsError
from frugalvit.report.record import RunFolder
from frugalvit.run import fit, train
from frugalvit.weights.files import write_safetensors
from frugalvit.weights.load import export_weights
from frugalvit.zoo.vit import vit

DIGITS = dict(dim=16, heads=4, depth=2, patch=2, image=8, channels=1, classes=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    train(tiny(), out=out, device="cpu")
    return out


def stopped(out: Path, step: int, *overrides: str, workers: int = 0) -> None:
    with pytest.raises(Stopped):
        train(tiny(*overrides), out=out, device="cpu", display=StopAt(step), workers=workers)


def test_n_steps_and_n_more_are_2n_steps(tmp_path: Path, whole: Path) -> None:
    stopped(tmp_path / "run", 12)
    assert [one.stem for one in states(tmp_path / "run")] == ["step-000000004", "step-000000008"]
    notes = Notes()
    done = train(tiny(), out=tmp_path / "run", resume=True, device="cpu", display=notes)
    assert notes.said[0] == "resumed at step 8 of 24"
    assert trace(tmp_path / "run") == trace(whole)
    assert done.summary["step"] == 24


def test_every_step_can_be_the_last_before_a_stop(tmp_path: Path, whole: Path) -> None:
    for step in (3, 4, 8, 16, 20, 24):
        with pytest.raises(Stopped):
            train(tiny(), out=tmp_path / "run", resume=True, device="cpu", display=StopAt(step))
    train(tiny(), out=tmp_path / "run", resume=True, device="cpu")
    assert trace(tmp_path / "run") == trace(whole)


def test_dropout_resumes_bit_by_bit(tmp_path: Path) -> None:
    dropping = replace(tiny(), model=vit(**DIGITS, dropout=0.2, drop_path=0.1))
    train(dropping, out=tmp_path / "whole", device="cpu")
    for step in (3, 10, 17):
        with pytest.raises(Stopped):
            train(dropping, out=tmp_path / "run", resume=True, device="cpu", display=StopAt(step))
    notes = Notes()
    train(dropping, out=tmp_path / "run", resume=True, device="cpu", display=notes)
    assert notes.said[0] == "resumed at step 16 of 24"
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path, whole: Path) -> None:
    before = trace(whole)
    train(tiny(), out=whole, resume=True, device="cpu")
    assert trace(whole) == before


def test_another_number_of_workers_and_another_working_directory_change_nothing(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stopped(Path("run"), 12, workers=2)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    train(tiny(), out=Path("../run"), resume=True, device="cpu", workers=1)
    assert trace(tmp_path / "run") == trace(whole)


def test_an_unreadable_picture_is_counted_once_though_the_data_is_named_in_two_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for index in range(10):
            picture = Pillow.fromarray(np.full((8, 8), 100 * label + index, dtype=np.uint8))
            picture.save(tmp_path / "pictures" / name / f"{index}.png")
    for index in (2, 3):
        (tmp_path / "pictures" / "dark" / f"{index}.png").write_text("no picture")
    made = tiny("data.dataset=ImageFolder", "data.subset=none", "batch=18", "epochs=8", "save=Steps(2)", "log_every=1")
    train(made, out=tmp_path / "whole", data=tmp_path / "pictures", device="cpu")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stopped):
        train(made, out="run", data="pictures", device="cpu", display=StopAt(5))
    monkeypatch.chdir(tmp_path / "pictures")
    train(made, out="../run", data="../pictures/../pictures", device="cpu", resume=True)
    found = RunFolder(tmp_path / "run").results()
    assert {Path(name).name for name in found["bad_pictures"]} <= {"2.png", "3.png"}
    assert len(found["bad_pictures"]) + found["val_unreadable"] == 2


def test_another_kind_of_device_or_another_precision_must_be_asked_for(tmp_path: Path, whole: Path) -> None:
    stopped(tmp_path / "run", 12)
    place = tmp_path / "run" / "environment.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"device": "cuda:1", "precision": "bf16"}))
    before = {one.name: one.read_bytes() for one in (tmp_path / "run").rglob("*") if one.is_file()}
    problem = r"was trained on cuda in bf16; here it would go on cpu in fp32, to other weights\. Say --device cpu"
    with pytest.raises(DataError, match=problem):
        train(tiny(), out=tmp_path / "run", resume=True)
    assert {one.name: one.read_bytes() for one in (tmp_path / "run").rglob("*") if one.is_file()} == before
    with pytest.raises(DataError, match=problem):
        train(tiny("epochs=5"), out=tmp_path / "run", resume=True, extend=True)
    assert {one.name: one.read_bytes() for one in (tmp_path / "run").rglob("*") if one.is_file()} == before
    notes = Notes()
    train(tiny(), out=tmp_path / "run", resume=True, device="cpu", display=notes)
    assert notes.said[1].startswith("caution: the run was trained on cuda in bf16, and goes on cpu in fp32")
    assert trace(tmp_path / "run") == trace(whole)  # since it was trained here after all
    train(tiny(), out=tmp_path / "run", resume=True)  # as it was the last time


def test_a_finished_run_without_its_checkpoints_is_not_trained_over(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "state")
    before = (tmp_path / "run" / "model.safetensors").read_bytes()
    with pytest.raises(DataError, match="is finished, and its checkpoints are gone"):
        train(tiny(), out=tmp_path / "run", resume=True, device="cpu")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == before


def test_a_damaged_checkpoint_says_which_one_is_left(tmp_path: Path, whole: Path) -> None:
    stopped(tmp_path / "run", 12)
    newest = states(tmp_path / "run")[-1]
    newest.write_bytes(newest.read_bytes()[:1000])
    with pytest.raises(WeightsError, match=r"truncated, or .*Remove it: --resume then goes on from step-000000004"):
        train(tiny(), out=tmp_path / "run", resume=True, device="cpu")
    newest.unlink()
    train(tiny(), out=tmp_path / "run", resume=True, device="cpu")
    assert trace(tmp_path / "run")["weights"] == trace(whole)["weights"]


def test_a_run_is_not_extended_to_less_than_it_has_taken(tmp_path: Path, whole: Path) -> None:
    shutil.copytree(whole, tmp_path / "run")
    before = (tmp_path / "run" / "recipe.json").read_bytes()
    with pytest.raises(DataError, match="has taken 24 steps, more than the 8 that are asked for"):
        train(tiny("epochs=1"), out=tmp_path / "run", resume=True, extend=True, device="cpu")
    assert (tmp_path / "run" / "recipe.json").read_bytes() == before
    with pytest.raises(DataError, match=r"holds a run of another length: .*say --extend to change it"):
        train(tiny("epochs=1"), out=tmp_path / "run", resume=True, device="cpu")


def test_a_run_without_a_checkpoint_starts_with_another_length_if_it_is_extended(tmp_path: Path) -> None:
    stopped(tmp_path / "run", 3)
    assert not states(tmp_path / "run")
    with pytest.raises(DataError, match=r"holds a run of another length: .*say --extend to change it"):
        train(tiny("epochs=1"), out=tmp_path / "run", resume=True, device="cpu")
    assert train(tiny("epochs=1"), out=tmp_path / "run", resume=True, extend=True, device="cpu").summary["step"] == 8
    shutil.rmtree(tmp_path / "run" / "state")
    before = (tmp_path / "run" / "recipe.json").read_bytes()
    with pytest.raises(DataError, match="is finished, and its checkpoints are gone"):
        train(tiny(), out=tmp_path / "run", resume=True, extend=True, device="cpu")
    assert (tmp_path / "run" / "recipe.json").read_bytes() == before


def test_resume_without_a_checkpoint_starts_at_step_0(tmp_path: Path, whole: Path) -> None:
    notes = Notes()
    train(tiny(), out=tmp_path / "new", resume=True, device="cpu", display=notes)
    assert notes.said[0] == "256 pictures, 500 for validation, 32 a step, 24 steps; peak learning rate 0.004; cpu, fp32"
    assert trace(tmp_path / "new") == trace(whole)
    stopped(tmp_path / "early", 3)
    assert not states(tmp_path / "early")
    train(tiny(), out=tmp_path / "early", resume=True, device="cpu")
    assert trace(tmp_path / "early") == trace(whole)


def test_an_existing_run_is_not_overwritten(whole: Path) -> None:
    before = trace(whole)
    with pytest.raises(
        DataError, match=r"run: holds a run already\. Use --resume \(in Python resume=True\) to continue it, or another --out"
    ):
        train(tiny(), out=whole, device="cpu")
    assert trace(whole) == before


def test_another_recipe_is_refused_by_what_differs(whole: Path) -> None:
    before = trace(whole)
    with pytest.raises(DataError, match=r"another recipe: optimizer\.lr was 0\.004, now 0\.01\. Resume with the recipe it has"):
        train(tiny("optimizer.lr=0.01"), out=whole, resume=True, device="cpu")
    with pytest.raises(DataError, match=r"duration\.count was 3(\.0)?, now 5"):
        train(tiny("epochs=5"), out=whole, resume=True, device="cpu")
    with pytest.raises(DataError, match=r"data_fingerprint\.train was"):
        train(tiny("data.subset=SeededFraction(0.2, 1)"), out=whole, resume=True, device="cpu")
    assert trace(whole) == before


def test_extend_goes_on_and_says_what_happens_to_the_learning_rate(tmp_path: Path) -> None:
    train(tiny(), out=tmp_path / "run", device="cpu")
    rates = column(tmp_path / "run", "lr")
    notes = Notes()
    done = train(tiny("epochs=5"), out=tmp_path / "run", resume=True, extend=True, device="cpu", display=notes)
    total = done.summary["step"]
    assert total == 40
    assert notes.said[0] == "extended from 24 to 40 steps: the learning rate at step 24 goes from 0 to 0.00165"
    assert column(tmp_path / "run", "lr")[: len(rates)] == rates
    assert column(tmp_path / "run", "step")[-1] == total
    assert RunFolder(tmp_path / "run").recipe()["duration"]["count"] == 5


def test_an_extension_that_is_refused_leaves_the_run_as_it_was(tmp_path: Path, whole: Path) -> None:
    before = trace(whole)
    with pytest.raises(DataError, match=r"another recipe: optimizer\.lr was"):
        train(tiny("epochs=5", "optimizer.lr=0.01"), out=whole, resume=True, extend=True, device="cpu")
    assert trace(whole) == before


def test_the_records_of_a_recipe_can_be_taken_one_by_one() -> None:
    first = list(itertools.islice(fit(tiny("log_every=1"), device="cpu"), 3))
    assert [record.step for record in first] == [1, 2, 3]
    again = list(itertools.islice(fit(tiny("log_every=1"), device="cpu"), 2))
    assert [record.values["loss"] for record in again] == [record.values["loss"] for record in first[:2]]
    assert {"loss", "gradient_norm", "lr", "epoch", "nonfinite"} <= set(first[0].values)


def test_early_stopping_needs_something_to_validate_on(tmp_path: Path) -> None:
    from frugalvit.data.digits import Digits

    with pytest.raises(SpecError, match=r"recipe\.stop: early stopping needs a validation split"):
        train(tiny("stop=EarlyStop"), out=tmp_path / "run", data={"train": Digits().open("train", None)}, device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_run_remembers_the_weights_it_began_from(tmp_path: Path) -> None:
    """Resumed before its first checkpoint, and without naming them again, it still begins from them."""
    first = train(tiny(), out=tmp_path / "first", device="cpu")
    assert first.classifier is not None
    file = tmp_path / "weights.safetensors"
    write_safetensors(file, export_weights(first.classifier))
    train(tiny(), out=tmp_path / "on", device="cpu", init=str(file), origin="timm")
    for state in (tmp_path / "on" / "state").iterdir():
        state.unlink()
    (tmp_path / "on" / "summary.json").unlink()
    expected = (tmp_path / "on" / "model.safetensors").read_bytes()
    train(tiny(), out=tmp_path / "on", device="cpu", origin="timm", resume=True)
    assert (tmp_path / "on" / "model.safetensors").read_bytes() == expected
    assert json.loads((tmp_path / "on" / "recipe.json").read_text())["init"] == str(file)
