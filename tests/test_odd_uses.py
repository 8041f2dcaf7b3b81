"""What a newcomer tried, and tripped over once."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.test_cli import bad, good, run
from tests.training.runs import Notes
from torch import nn

import frugalvit
from frugalvit.assign import override
from frugalvit.data.arrays import Arrays
from frugalvit.data.preprocess import Preprocess, opened
from frugalvit.data.source import Source
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import DataError, FrugalError, SpecError, WeightsError, WeightsNotice
from frugalvit.nn.attention import Attention
from frugalvit.nn.layers import Join
from frugalvit.nn.model import Model
from frugalvit.nn.norm import LayerNorm
from frugalvit.nn.score import HideSelf
from frugalvit.nn.shape import Shape
from frugalvit.spec import check, swap
from frugalvit.training.devices import place_for
from frugalvit.training.prepare import prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.waiting import Waiting
from frugalvit.weights.files import write_npz
from frugalvit.zoo.change import resized, with_lsa
from frugalvit.zoo.deit import deit

TINY = "deit_tiny_patch16_224"
IMAGE = torch.randn(2, 3, 20, 28, generator=torch.Generator().manual_seed(1))


@dataclass(frozen=True)
class Sign:
    """A linear map of the user's own, as a subclass of torch's."""

    def build(self, fan_in: int, fan_out: int) -> nn.Module:
        return SignLinear(fan_in, fan_out)


class SignLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.sign(), self.bias)


@dataclass(frozen=True)
class NoBias:
    """A linear map without bias."""

    def build(self, fan_in: int, fan_out: int) -> nn.Module:
        return nn.Linear(fan_in, fan_out, bias=False)


def classifier(model: Model) -> Classifier:
    return Classifier(
        ClassifierSpec(model, Preprocess(20, 28, (0.5,) * 3, (0.5,) * 3), tuple("abcdefghi")), model.build(seed=0)
    )


def test_a_linear_map_of_ones_own_computes_q_k_and_v_too(toy: Model) -> None:
    module = swap(toy, Attention, lambda one: replace(one, linear=Sign())).build()
    kinds = {type(one) for one in module.layers[2].attention.qkv.children()}
    assert kinds == {type(Sign().build(1, 1))}
    assert module(IMAGE)["class"].shape == (2, 9)


def test_linear_maps_of_ones_own_that_are_plain_become_one_product(toy: Model) -> None:
    module = swap(toy, Attention, lambda one: replace(one, linear=NoBias())).build()
    assert module.layers[2].attention.qkv.bias is None
    assert module(IMAGE)["class"].shape == (2, 9)


def test_what_changes_the_result_is_not_exported_silently(toy: Model) -> None:
    hidden = swap(toy, Attention, lambda one: replace(one, before=(HideSelf(),)))
    with pytest.raises(WeightsError, match=r"layers\[2\]: timm has no name for HideSelf"):
        frugalvit.export_weights(hidden.build())
    with pytest.warns(WeightsNotice, match="the model has TanhGelu, which is not what timm computes"):
        frugalvit.export_weights(override(toy, "layers[*].mlp.activation=TanhGelu").build())
    with pytest.warns(WeightsNotice, match="eps=0.001 in a norm"):
        frugalvit.export_weights(swap(toy, LayerNorm, lambda _: LayerNorm(1e-3)).build())


def test_a_grid_that_could_be_two_is_asked_for() -> None:
    model = deit(dim=12, heads=3, depth=1, patch=4, image=(8, 32), classes=9)  # 2 x 8 patches: also 4 x 4
    state = frugalvit.export_weights(model.build(seed=1))
    with pytest.raises(WeightsError, match=r"16 patch positions may be 4 x 4, .* or 2 x 8.* grid=\(4, 4\) or grid=\(2, 8\)"):
        frugalvit.load_weights(model.build(), state)
    assert str(frugalvit.load_weights(model.build(), state, grid=(2, 8))) == ""
    with pytest.warns(WeightsNotice, match="resampled from 4 x 4 to 2 x 8"):
        frugalvit.load_weights(model.build(), state, grid=(4, 4))
    for grid in (2, "2x8", (-2, -8)):
        with pytest.raises(FrugalError, match="grid"):
            frugalvit.load_weights(model.build(), state, grid=grid)


def test_blocks_put_into_evaluation_do_not_drop(toy: Model) -> None:
    module = override(toy, "layers[*].residual.drop=0.5").build(seed=0).train()
    for layer in module.layers:
        layer.eval()
    torch.testing.assert_close(module(IMAGE), module(IMAGE, torch.ones(4, 2)), atol=0, rtol=0)


def test_two_names_of_one_tap_both_come(toy: Model) -> None:
    outputs = toy.build(taps=("tokens[1]", "tokens[-1]"))(IMAGE)
    assert torch.equal(outputs["tokens[1]"], outputs["tokens[-1]"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_trains_saves_loads_and_predicts(tmp_path: Path, toy: Model, dtype: torch.dtype) -> None:
    module = override(toy, "layers[*].residual.drop=0.5").build().to(dtype).train()
    assert module(IMAGE.to(dtype), module.random_draws(2))["class"].dtype == dtype
    one = classifier(toy).to(dtype)
    again = frugalvit.load(one.save(tmp_path / "half"))
    assert next(again.parameters()).dtype == dtype
    assert again.predict(np.zeros((20, 28, 3), np.uint8))[0].name in "abcdefghi"


def test_bfloat16_goes_into_npz_as_fp32(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", {"a": torch.ones(3, dtype=torch.bfloat16)})
    assert np.load(tmp_path / "a.npz")["a"].dtype == np.float32


def test_a_classifier_with_stochastic_depth_trains(toy: Model) -> None:
    one = classifier(override(toy, "layers[*].residual.drop=0.5")).train()
    one(IMAGE, one.module.random_draws(2)).sum().backward()


def test_weights_go_into_and_out_of_a_classifier(toy: Model) -> None:
    one = classifier(toy)
    frugalvit.load_weights(one, frugalvit.export_weights(one))
    with pytest.raises(WeightsError, match="Linear is no model of ours"):
        frugalvit.export_weights(nn.Linear(1, 1))


def test_names_of_wrappers_in_any_order_are_taken_off(toy: Model) -> None:
    state = frugalvit.export_weights(toy.build())
    for prefix in ("_orig_mod.module.", "module._orig_mod.", "model."):
        frugalvit.load_weights(toy.build(), {prefix + name: value for name, value in state.items()})
    with pytest.raises(WeightsError, match=r"holds torch\.int64, not weights"):
        frugalvit.load_weights(toy.build(), {name: value.long() for name, value in state.items()})


def test_preprocessing_must_fit_the_model(toy: Model) -> None:
    for made in (Preprocess(20, 20, (0.5,) * 3, (0.5,) * 3), Preprocess(20, 28, (0.5,), (0.5,))):
        with pytest.raises(SpecError, match="preprocess: pictures of"):
            ClassifierSpec(toy, made, tuple("abcdefghi"))
    with pytest.raises(SpecError, match="pictures of -5 x 3"):
        Preprocess(-5, 3, (0.5,), (0.5,))


def test_pictures_of_fractions_are_not_black() -> None:
    gray = np.asarray(opened(Pillow.fromarray(np.full((4, 6), 0.5, np.float32))))
    assert gray.min() == 128


def test_a_part_named_like_one_of_ours_is_refused(toy: Model) -> None:
    mine = dataclass(frozen=True)(type("Attention", (), {"__annotations__": {}, "build": lambda self, shape: None}))
    with pytest.raises(SpecError, match=r"'Attention' is the name of a part of the package. Give yours another"):
        frugalvit.decode(frugalvit.encode(toy), Model, parts=[mine])


@dataclass(frozen=True)
class Careless:
    """A part whose build returns the wrong kind of thing."""

    def build(self, shape: Shape) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class OtherName:
    """A part whose argument is called otherwise."""

    def build(self, size: Shape) -> nn.Module:
        return nn.Identity()


def test_parts_that_do_not_keep_their_contract_are_told_so(toy: Model) -> None:
    with pytest.raises(SpecError, match=r"layers\[0\]: Careless\.build must return \(module, the Shape"):
        replace(toy, layers=(Careless(),)).build()
    with pytest.raises(SpecError, match=r"attention: .*called as AttentionPart\.build\(shape\), with arguments of these names"):
        swap(toy, Attention, lambda _: OtherName()).build()
    with pytest.raises(SpecError, match=r"Write a tuple, \(a, b\) or \(a,\), where you have a list"):
        replace(toy, layers=(Join(["class"]),)).build()
    with pytest.raises(SpecError, match=r"Write \('tokens\[0\]',\)"):
        toy.build(taps="tokens[0]")


@pytest.mark.parametrize("image", ["32x48", 64.0, np.int64(64), (32, 48, 3)])
def test_sizes_of_other_types_are_refused(image: object) -> None:
    with pytest.raises(SpecError, match=f"{TINY}.image: .* does not fit here"):
        frugalvit.model(TINY, image=image)
    with pytest.raises(SpecError):
        resized(frugalvit.model(TINY), image)


@pytest.mark.parametrize("mistake", [lambda: frugalvit.fuse({}), lambda: frugalvit.fuse(IMAGE), lambda: with_lsa("name")])
def test_mistaken_arguments_are_refused(mistake) -> None:
    with pytest.raises(SpecError):
        mistake()


@pytest.mark.parametrize("picture", [IMAGE, None, b"bytes", np.zeros((0, 3, 3), np.uint8), Pillow.new("RGB", (0, 4))])
def test_what_is_no_picture_is_refused(toy: Model, picture: object) -> None:
    with pytest.raises(DataError):
        classifier(toy).predict(picture)
    with pytest.raises(SpecError, match="whole numbers"):
        classifier(toy).predict("x.png", top=1.5)


def test_deep_and_huge_json_is_refused(toy: Model) -> None:
    data = frugalvit.encode(toy)
    data["layers"][2]["residual"]["drop"] = 10**400
    with pytest.raises(SpecError, match="drop"):
        frugalvit.decode(data, Model)
    with pytest.raises(SpecError, match="is not the name of a part"):
        frugalvit.decode({**frugalvit.encode(toy), "tokenizer": {"part": {}}}, Model)
    check(1, float)


@pytest.mark.parametrize(
    "words",
    [
        ["layers[--2].mlp.ratio=2"],
        ["image=²"],
        ["summary=keys"],
        ["summary=a.b"],
        ["summary="],
        ["layers[1].init.std=-1"],
        ["dim=99999999999999"],
        ["classes=99999999999999999999999"],
        ["layers[2].mlp.ratio=1e300"],
        ["layers[2].norm.eps=-1"],
        ["--with", ""],
        ["layers[*].nothing=1"],
    ],
)
def test_odd_words_on_the_command_line_end_in_a_message(words: list[str]) -> None:
    assert "SpecError" in bad("show", TINY, *words)


def test_odd_names_and_places_end_in_a_message(tmp_path: Path, toy: Model) -> None:
    folder = classifier(toy).save(tmp_path / "saved")
    (tmp_path / "file").write_text("")
    (tmp_path / "broken.py").write_text("1 / 0")
    assert "no model is called" in bad("show", "x" * 5000)
    assert "no model is called" in bad("show", "")
    assert "ZeroDivisionError" in bad("show", TINY, "--with", "broken", cwd=tmp_path)
    assert "cannot be written" in bad("export", str(folder), "--out", str(tmp_path / "file" / "a.safetensors"))
    (folder / "config.json").write_bytes(b"\xff\xfe")
    assert "config.json: cannot be read" in bad("show", str(folder))
    (folder / "model.safetensors").write_bytes(b"x")
    assert bad("export", str(folder), "--out", "a.safetensors").count(str(folder)) == 1


def test_a_folder_called_like_a_model_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / TINY).mkdir()
    assert "5,717,416" in good("show", TINY, cwd=tmp_path)


def test_a_head_of_another_size_is_kept_or_asked_about(tmp_path: Path) -> None:
    from frugalvit.weights.files import write_safetensors

    file = tmp_path / "ten.safetensors"
    write_safetensors(file, frugalvit.export_weights(frugalvit.model(TINY, "depth=1", classes=10).build()))
    words = ["import", TINY, "depth=1", "--init", str(file), "--origin", "timm", "--out", str(tmp_path / "out")]
    assert "the file has 10 classes, the model 1000. Set classes=..." in bad(*words)
    done = run(*words, "classes=10")
    assert done.returncode == 0
    assert done.stderr.count("note: ") == done.stderr.count("it is not known how pictures were shown") == 1
    (tmp_path / "names").write_text("\n".join(["ant"] * 10))
    assert "names 'ant' more than once" in bad(*words[:-1], "again", "classes=10", "--classes", str(tmp_path / "names"))
    assert "no patch" not in bad("import", TINY, "--init", str(file), "--origin", "timm", "--grid=-14x-14", "--out", "x")


def photographs(root: Path, *more: tuple[bytes, bytes]) -> Path:
    """Two classes of twelve pictures, and files of those names and contents in the first."""
    for number in range(24):
        place = root / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(number).integers(0, 256, (40 + number, 36, 3), dtype=np.uint8)
        Pillow.fromarray(noise).save(place / f"{number:02d}.png")
    for name, content in more:
        with open(os.path.join(os.fsencode(root / "a"), name), "wb") as file:  # noqa: PTH118, PTH123  # names of bytes
            file.write(content)
    return root


FEW = ("model=deit_tiny_patch16_224", "image=32", "epochs=1", "batch=4", "--quiet", "--device", "cpu")


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes")
def test_a_broken_picture_whose_name_is_not_utf_8_is_told_in_the_results(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos", ("Fahrräder.png".encode("latin-1"), b"\x89PNG\r\n\x1a\n"))
    words = ("data.dataset=ImageFolder(0.0)", "epochs=3", "--data", str(root), "--out", str(tmp_path / "run"))
    good("train", "transfer.folder", *(one for one in FEW if one != "epochs=1"), *words)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert [Path(name).name for name in summary["bad_pictures"]] == ["Fahrr\udce4der.png"]


def test_one_picture_that_is_too_thin_ends_no_training(tmp_path: Path) -> None:
    root = photographs(tmp_path / "photos")
    Pillow.new("RGB", (1 << 15, 1)).save(root / "a" / "strip.png")
    words = ("small.cifar10", "model.classes=none", "data.dataset=ImageFolder(0.0)", "passes=1", "batch=5")
    said = good(
        "train", *words, "duration=Steps(4)", "--quiet", "--device", "cpu", "--data", str(root), "--out", str(tmp_path / "run")
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["step"] == 4 and all("strip" in name for name in summary["bad_pictures"]), said


def test_photographs_one_of_which_cannot_be_read_are_kept_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the advice on waiting is by those that can be read."""
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))
    root = photographs(tmp_path / "photos", (b"zz.png", b"\x89PNG\r\n\x1a\n"))
    made = frugalvit.recipe("transfer.folder", *FEW[:4], "path=kept", "data.store=Stored(34)", "data.dataset=ImageFolder(0.0)")
    place = place_for("cpu", "fp32")
    kept = prepare(filled(made), everything(made, root), place)
    assert kept.recipe.path == "kept"
    sent = prepare(filled(replace(made, path="sent")), everything(made, root), place)
    assert Waiting(sent, 1).reading.side == 34


def everything(made: Recipe, root: Path) -> dict[str, Source]:
    return {"train": made.data.dataset.open("train", root)}


def filled(made: Recipe) -> Recipe:
    return replace(made, model=replace(made.model, classes=2))


@pytest.mark.parametrize(
    ("images", "labels", "classes", "said"),
    [
        (np.zeros((4, 3, 8, 8), np.uint8), [0, 1, 0, 1], "ab", r"shape \(4, 3, 8, 8\)\. Channels come last: images\.transpose"),
        (np.zeros((4, 8), np.uint8), [0, 1, 0, 1], "ab", r"shape \(4, 8\)\. Give N x H x W"),
        (
            np.zeros((4, 8, 8), np.uint8),
            [0.5, 1.5, 0, 1],
            "ab",
            r"labels of shape \(4,\) and type float64\. Give one whole number",
        ),
        (np.zeros((4, 8, 8), np.uint8), np.eye(4), "ab", r"labels of shape \(4, 4\)"),
        (np.zeros((4, 8, 8), np.uint8), ["a", "b", "a", "b"], "ab", r"labels of shape \(4,\) and type <U1"),
        ([np.zeros((8, 8), np.uint8)] * 4, [0, 1, 0, 1], "ab", "list in place of pictures"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], range(2), "Give a different name to each, as text"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1], "aa", "Give a different name to each"),
    ],
)
def test_arrays_of_another_kind_are_refused_where_they_are_given(images: Any, labels: Any, classes: Any, said: str) -> None:
    with pytest.raises(DataError, match=f"mine: .*{said}"):
        Arrays(images, labels, classes, "mine")


def test_a_class_that_validation_never_sees_is_told(tmp_path: Path) -> None:
    notes = Notes()
    images, data = np.zeros((21, 8, 8), np.uint8), {}
    data["train"] = Arrays(images, [0] * 20 + [1], ("ant", "bee"), "mine")
    data["val"] = Arrays(images[:5], [0] * 5, ("ant", "bee"), "mine")
    frugalvit.train(frugalvit.recipe("vit.digits", "duration=Steps(1)", "schedule.warmup=Steps(1)"), data=data,
                    out=tmp_path / "run", device="cpu", display=notes)  # fmt: skip
    assert "caution: no validation picture is of bee: what is learned of it is not measured" in notes.said


def test_a_model_that_answers_with_no_numbers_is_no_success(tmp_path: Path) -> None:
    few = ("vit.digits", "dim=8", "depth=1", "duration=Steps(1)", "schedule.warmup=Steps(1)", "--quiet", "--device", "cpu")
    good("train", *few, "--out", str(tmp_path / "run"))
    classifier = frugalvit.load(tmp_path / "run")
    with torch.no_grad():
        next(classifier.module.parameters()).fill_(float("nan"))
    classifier.save(tmp_path / "broken")
    done = run("evaluate", str(tmp_path / "broken"), "--dataset", "Digits", "--device", "cpu")
    assert done.returncode == 1 and "the model answers with no numbers" in done.stderr
    done = run("evaluate", str(tmp_path / "broken"), "--dataset", "Digits", "--device", "cpu", "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["loss"] == "nan"
