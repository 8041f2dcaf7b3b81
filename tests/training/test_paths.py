"""Which way pictures take: plain, sent or kept; what is said of it; and that each can be resumed but not changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as Pillow

import frugalvit
from frugalvit.cautions import cautions
from frugalvit.data.arrays import Arrays
from frugalvit.data.augment import Augment, Flip, ResizedCrop
from frugalvit.data.batches import TrainingBatches
from frugalvit.data.numbered import NumberedBatches, stand_ins
from frugalvit.data.source import Source
from frugalvit.data.store import Store
from frugalvit.errors import DataError, SpecError
from frugalvit.recipes.find import recipe
from frugalvit.training.devices import Place, place_for
from frugalvit.training.duration import Epochs
from frugalvit.training.graph_step import GraphStep
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe, Stored
from frugalvit.training.step import Step

SIZES = ("dim=16", "depth=2", "batch=8", "schedule.warmup=Steps(2)", "log_every=1", "epochs=2", "drop_path=0.2")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))


class Photographs:
    """Gray pictures of given sizes; those of size 0 cannot be read."""

    def __init__(self, sides: list[int]):
        self.sides, self.classes = sides, tuple(map(str, range(10)))
        self.labels = np.arange(len(sides)) % 10

    def __len__(self) -> int:
        return len(self.sides)

    def picture(self, index: int) -> Pillow.Image:
        if not self.sides[index]:
            raise DataError("is no picture.", path=self.name(index))
        return Pillow.new("L", (self.sides[index], self.sides[index]), index % 256)

    def name(self, index: int) -> str:
        return f"photo-{index}.png"

    def fingerprint(self) -> str:
        return f"{sum(side * 31**at for at, side in enumerate(self.sides)) % 16**16:016x}"


def prepared(source: Source, *overrides: str, place: Place | None = None, made: Recipe | None = None) -> Training:
    made = made or recipe("vit.digits", *SIZES, *overrides)
    return prepare(made, {"train": source}, place or place_for("cpu", "fp32"))


def even(count: int = 40) -> Photographs:
    return Photographs([8] * count)


@pytest.mark.parametrize(
    ("path", "step", "batches"),
    [("auto", Step, TrainingBatches), ("sent", GraphStep, TrainingBatches), ("kept", GraphStep, NumberedBatches)],
)
def test_the_path_decides_who_steps(path: str, step: type, batches: type) -> None:
    training = prepared(even(), f"path={path}")
    assert type(training.step) is step and type(training.batches) is batches
    assert training.recipe.path == {"auto": "plain"}.get(path, path)  # a recipe that is run says which


def on_cuda(source: Source, monkeypatch: pytest.MonkeyPatch, **changes: object) -> Training:
    """As on CUDA, as far as choosing goes: the device's own memory, and no capture."""
    made = replace(recipe("vit.digits", *SIZES), **changes)  # type: ignore[arg-type]
    monkeypatch.setattr("frugalvit.training.paths.CUDA", "cpu")
    return prepared(source, made=made)


def test_on_cuda_pictures_of_one_size_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    training = on_cuda(even(), monkeypatch)
    assert training.recipe.path == "kept" and "kept on cpu" in training.note


def test_on_cuda_pictures_of_several_sizes_are_sent_and_it_is_said_why(monkeypatch: pytest.MonkeyPatch) -> None:
    sides, crop = [8, 9] * 20, Augment((ResizedCrop(), Flip(0.5)))
    data = replace(recipe("vit.digits", *SIZES).data, augment=crop)
    training = on_cuda(Photographs(sides), monkeypatch, data=data)
    assert training.recipe.path == "sent" and "differ in size. 'data.store=Stored(16)' decodes them once" in training.note
    training = on_cuda(Photographs(sides), monkeypatch)
    assert training.recipe.path == "sent" and "and here PadCrop is first" in training.note
    assert "path=auto" not in training.note  # which was not left


def test_on_cuda_photographs_in_a_store_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    data = replace(recipe("vit.digits", *SIZES).data, augment=Augment((ResizedCrop(), Flip(0.5))), store=Stored(16))
    training = on_cuda(Photographs([12, 40] * 20), monkeypatch, data=data)
    assert training.recipe.path == "kept" and "of pictures are kept on cpu" in training.note
    monkeypatch.setattr("frugalvit.training.paths.free_memory", lambda device: 1000)
    few = on_cuda(Photographs([12, 40] * 20), monkeypatch, data=data)
    assert few.recipe.path == "sent" and isinstance(few.batches.source, Store)  # type: ignore[union-attr]


def test_a_size_that_only_decoding_finds_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [8] * 40
    sides[3] = 9  # not among those that are looked at first
    assert on_cuda(Photographs(sides), monkeypatch).recipe.path == "sent"
    with pytest.raises(SpecError, match=r"that the device keeps must be cropped first .*, and here PadCrop is first"):
        prepared(Photographs(sides), "path=kept")


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        ([8] * 40, []),
        ([12] * 40, ["pictures of 12 x 12 pixels are resized to 8 x 8, which the model takes"]),
        ([0] + [12] * 39, ["pictures of 12 x 12 pixels are resized to 8 x 8, which the model takes"]),
        ([9, 12] * 20, []),  # photographs: resizing is what everybody expects
    ],
)
def test_pictures_of_another_size_than_the_model_s_are_said_to_be_resized(sides: list[int], said: list[str]) -> None:
    assert [text for text in cautions(prepared(Photographs(sides))) if "resized" in text] == said


def test_pictures_that_do_not_fit_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.training.paths.free_memory", lambda device: 1000)
    training = on_cuda(even(), monkeypatch)
    assert training.recipe.path == "sent" and "more than 50% of the" in training.note


def test_fp16_goes_the_plain_way_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.training.paths.CUDA", "cpu")
    training = prepared(even(), place=Place(torch.device("cpu"), "fp16"))
    assert type(training.step) is Step and "fp16 scales its loss" in training.note
    with pytest.raises(SpecError, match=r"recipe\.path: fp16 scales its loss"):
        prepared(even(), "path=kept", place=Place(torch.device("cpu"), "fp16"))


def test_an_unreadable_picture_is_replaced_by_the_next_and_named() -> None:
    sides = [8] * 40
    sides[5] = sides[6] = sides[39] = 0
    training = prepared(Photographs(sides), "path=kept")
    seen = [training.batches[number] for number in range(5)]
    index = torch.cat([one.index_B for one in seen]).tolist()
    assert sorted(index) == sorted({**{i: i for i in range(40)}, 5: 7, 6: 7, 39: 0}.values())
    assert sorted({name for one in seen for name in one.bad}) == ["photo-39.png", "photo-5.png", "photo-6.png"]
    for one in seen:
        assert one.label_B.tolist() == [place % 10 for place in one.index_B.tolist()]


def test_stand_ins_by_hand() -> None:
    readable = np.array([False, True, False, False, True, False])
    assert stand_ins(readable).tolist() == [1, 1, 4, 4, 4, 1]


def test_an_unreadable_picture_can_be_refused() -> None:
    with pytest.raises(DataError, match=r"photo-5\.png: cannot be read"):
        prepared(Photographs([8] * 5 + [0] + [8] * 34), "path=kept", "data.unreadable=refused")


def test_a_store_gives_the_batches_of_its_source() -> None:
    made = recipe("vit.digits", *SIZES)
    source = Photographs([8, 9, 12] * 10)
    plain = prepared(source, made=made)
    stored = prepared(source, made=replace(made, data=replace(made.data, store=Stored())))
    assert isinstance(stored.batches, TrainingBatches) and isinstance(stored.batches.source, Store)
    for number in range(3):
        assert torch.equal(plain.batches[number].image_BCHW, stored.batches[number].image_BCHW)
    small = prepared(source, made=replace(made, data=replace(made.data, store=Stored(8))))
    assert isinstance(small.batches, TrainingBatches)
    assert {small.batches.source.picture(index).size for index in range(30)} == {(8, 8)}
    with pytest.raises(SpecError, match=r"limit: 0 pixels"):
        Stored(0)


def test_a_run_keeps_its_path_when_it_is_resumed(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (48, 8, 8), dtype=np.uint8)
    sources = {"train": Arrays(images, np.arange(48) % 10, [str(i) for i in range(10)], "noise")}
    made = recipe("vit.digits", *SIZES, "path=kept")
    done = frugalvit.train(made, out=tmp_path / "run", data=sources)
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["path"] == "kept"
    assert done.summary["step"] == 12
    (tmp_path / "run" / "state" / "step-000000012.safetensors").unlink()
    (tmp_path / "run" / "summary.json").unlink()  # as of one that was killed
    again = frugalvit.train(replace(made, path="auto"), out=tmp_path / "run", data=sources, resume=True)  # as it was begun
    assert again.summary == done.summary
    with pytest.raises(DataError, match="path was 'kept', now 'plain'"):
        frugalvit.train(replace(made, path="plain"), out=tmp_path / "run", data=sources, resume=True)


def test_validation_on_test_pictures_reports_last_and_best_epoch(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (80, 8, 8), dtype=np.uint8)
    classes = [str(i) for i in range(10)]
    sources = {
        name: Arrays(images[part], np.arange(40) % 10, classes, name)
        for name, part in (("train", slice(0, 40)), ("test", slice(40, 80)))
    }
    made = recipe("vit.digits", *SIZES, "data.validate=test", "evaluate=Epochs(1)")
    done = frugalvit.train(made, out=tmp_path / "run", data=sources)
    assert done.summary["val_top1"] == done.summary["test_top1"]
    assert done.summary["best_val_top1"] >= done.summary["val_top1"]
    with pytest.raises(SpecError, match="there is no test split"):
        frugalvit.train(made, out=tmp_path / "other", data={"train": sources["train"]})


def test_seeds_are_runs_of_their_own(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (48, 8, 8), dtype=np.uint8)
    classes = [str(i) for i in range(10)]
    sources = {name: Arrays(images, np.arange(48) % 10, classes, "noise") for name in ("train", "val")}
    made = recipe("vit.digits", *SIZES, "path=kept")
    runs = frugalvit.train_seeds(made, [3, 1], out=tmp_path / "several", data=sources)
    alone = frugalvit.train(replace(made, seed=1), out=tmp_path / "alone", data=sources)
    assert runs[1].summary == alone.summary and runs[0].summary != alone.summary
    assert (tmp_path / "several" / "seed-1" / "model.safetensors").read_bytes() == (
        tmp_path / "alone" / "model.safetensors"
    ).read_bytes()
    found = json.loads((tmp_path / "several" / "seeds.json").read_text())
    assert found["seeds"] == [3, 1] and found["val_top1"]["n"] == 2
    assert found["val_top1"]["mean"] == pytest.approx(sum(run.summary["val_top1"] for run in runs) / 2)
    assert found["val_top1"]["values"] == [run.summary["val_top1"] for run in runs]
    for wrong in ([], [1, 1], "0,1", [1.5], [-1], 3):
        with pytest.raises(SpecError, match="each once"):
            frugalvit.train_seeds(made, wrong, out=tmp_path / "wrong", data=sources)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="a Recipe is needed, not str"):
        frugalvit.train_seeds("vit.digits", [0], out=tmp_path / "wrong", data=sources)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="holds runs of seed 1, 3 already"):
        frugalvit.train_seeds(made, [7, 3], out=tmp_path / "several", data=sources)
    assert not (tmp_path / "several" / "seed-7").exists()
    with pytest.raises(DataError, match="holds a run of one seed"):
        frugalvit.train_seeds(made, [7], out=tmp_path / "alone", data=sources)


def test_a_stream_of_bf16_is_rounded_between_blocks_and_trains() -> None:
    training = prepared(even(), "precision=bf16_stream", place=place_for("cpu", "bf16_stream"))
    module = training.state.module
    assert module.stream == torch.bfloat16
    seen = []
    for layer in module.layers:
        layer.register_forward_hook(lambda layer, given, x: seen.append(given[0].dtype))
    with training.place.autocast():
        module.eval()(torch.randn(2, 1, 8, 8))
    assert seen[1:] == [torch.bfloat16] * (len(seen) - 1)


def test_a_run_of_an_older_version_is_resumed(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (48, 8, 8), dtype=np.uint8)
    sources = {"train": Arrays(images, np.arange(48) % 10, [str(i) for i in range(10)], "noise")}
    made = recipe("vit.digits", *SIZES)
    whole = frugalvit.train(made, out=tmp_path / "whole", data=sources)
    frugalvit.train(made, out=tmp_path / "old", data=sources)
    (tmp_path / "old" / "state" / "step-000000012.safetensors").unlink()
    (tmp_path / "old" / "summary.json").unlink()  # as of one that was killed
    path = tmp_path / "old" / "recipe.json"
    saved = json.loads(path.read_text())
    for name in ("path", "deterministic"):
        del saved[name]
    del saved["data"]["store"], saved["data"]["validate"]
    path.write_text(json.dumps(saved))
    again = frugalvit.train(made, out=tmp_path / "old", data=sources, resume=True)
    assert again.summary == whole.summary
    with pytest.raises(DataError, match=r"holds a run of another recipe: .*batch was 8, now 16"):
        frugalvit.train(replace(made, batch=16), out=tmp_path / "old", data=sources, resume=True)
    longer = replace(made, duration=Epochs(4))
    with pytest.raises(DataError, match=r"holds a run of another length: .*say --extend to change it"):
        frugalvit.train(longer, out=tmp_path / "old", data=sources, resume=True)
    assert "path" not in json.loads(path.read_text())
    assert frugalvit.train(longer, out=tmp_path / "old", data=sources, resume=True, extend=True).summary["step"] == 24
