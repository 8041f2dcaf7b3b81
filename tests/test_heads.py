"""Which head answers: in Python, in a saved classifier, on the command line, and in the files of other libraries."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.test_cli import bad, good, run
from tests.weights.test_origins import EPS, SIZES
from timm.models.deit import VisionTransformerDistilled
from torch import Tensor, nn
from transformers import DeiTConfig, DeiTForImageClassification, DeiTForImageClassificationWithTeacher

import frugalvit
from frugalvit.data.digits import Digits
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import SpecError
from frugalvit.nn.model import Model
from frugalvit.nn.readout import MeanLogits, OneHead, SumSoftmax, fuse, fusion_named, word_for
from frugalvit.recipes.find import recipe
from frugalvit.spec import decode, encode
from frugalvit.teaching import open_teacher
from frugalvit.training.devices import place_for
from frugalvit.weights.load import load_weights
from frugalvit.zoo.pit import pit

HEADS = ("class", "distill")
NAMES = tuple("abcdefghi")
PICTURES = Preprocess(20, 28, (0.5,) * 3, (0.5,) * 3)
IMAGE = torch.randn(2, 3, 20, 28, generator=torch.Generator().manual_seed(1))
EXPECTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # the probabilities_BC of the readings
    "class": lambda one, two: one.softmax(-1),
    "distill": lambda one, two: two.softmax(-1),
    "mean": lambda one, two: ((one + two) / 2).softmax(-1),
    "softmax": lambda one, two: (one.softmax(-1) + two.softmax(-1)) / 2,
}


def lively(module: nn.Module) -> Any:
    for one in module.parameters():
        nn.init.normal_(one, std=0.3)
    return module.eval()


@pytest.fixture
def two_headed(toy: Model) -> Classifier:
    return Classifier(ClassifierSpec(toy, PICTURES, NAMES), lively(toy.build())).eval()


@pytest.fixture
def one_headed(toy_vit: Model) -> Classifier:
    return Classifier(ClassifierSpec(toy_vit, PICTURES, NAMES), lively(toy_vit.build())).eval()


# ------------------------------------------------------------------------------------------------ in Python


def test_one_head_is_its_logits_and_another_name_is_refused() -> None:
    outputs = {"class": torch.randn(2, 9), "distill": torch.randn(2, 9), "tokens[1]": torch.zeros(1)}
    assert fuse(outputs, OneHead("distill")) is outputs["distill"]
    for name in ("teacher", "tokens[1]"):
        with pytest.raises(SpecError, match=r"has no head '.*'\. It has: class, distill\."):
            fuse(outputs, OneHead(name))
    with pytest.raises(SpecError, match="a rule such as"):
        fuse(outputs, "class")  # type: ignore[arg-type]


def test_words_name_heads_and_rules_and_go_both_ways() -> None:
    found = {word: fusion_named(word, HEADS) for word in EXPECTED}
    assert list(found.values()) == [OneHead("class"), OneHead("distill"), MeanLogits(), SumSoftmax()]
    assert [word_for(fusion) for fusion in found.values()] == list(EXPECTED)
    assert fusion_named("mean", ("mean", "distill")) == OneHead("mean")  # a head's own name comes first
    with pytest.raises(SpecError, match=r"It has: class, distill; or all of them by mean or softmax\."):
        fusion_named("both", HEADS)


@pytest.mark.parametrize("word", EXPECTED)
def test_a_reading_shares_the_module_and_is_saved(two_headed: Classifier, tmp_path: Path, word: str) -> None:
    heads = two_headed.heads(IMAGE)
    expected = EXPECTED[word](heads["class"], heads["distill"])
    read = two_headed.reading(word)
    assert read.module is two_headed.module and not read.training
    torch.testing.assert_close(read(IMAGE).softmax(-1), expected)
    assert two_headed.spec.fusion == MeanLogits()  # as it was
    again = frugalvit.load(read.save(tmp_path / "saved"))
    assert again.spec == read.spec == decode(json.loads(json.dumps(encode(read.spec))), ClassifierSpec)
    assert torch.equal(again(IMAGE), read(IMAGE))
    assert torch.equal(frugalvit.load(tmp_path / "saved" / "model.safetensors")(IMAGE), read(IMAGE))
    picture = np.random.default_rng(0).integers(0, 256, (20, 28, 3), dtype=np.uint8)
    probabilities = EXPECTED[word](*(one for one in again.heads(again.preprocess(picture)[None]).values()))[0]
    assert again.predict(picture)[0].probability == pytest.approx(probabilities.max().item(), abs=1e-6)


def test_features_are_those_of_the_head_that_answers(two_headed: Classifier) -> None:
    both = two_headed.module.features(IMAGE)
    assert torch.equal(two_headed.reading("distill").features(IMAGE), both["distill"])
    torch.testing.assert_close(two_headed.features(IMAGE), (both["class"] + both["distill"]) / 2)
    assert not torch.equal(both["class"], both["distill"])


def test_a_model_with_one_head_accepts_its_name(one_headed: Classifier) -> None:
    assert torch.equal(one_headed.reading("class")(IMAGE), one_headed(IMAGE))
    assert torch.equal(one_headed.alone("class")(IMAGE), one_headed(IMAGE))
    with pytest.raises(SpecError, match=r"no head 'distill'\. It has: class; or all"):
        one_headed.reading("distill")
    with pytest.raises(SpecError, match=r"fusion\.name: the model has no head 'distill'\. It has: class\."):
        replace(one_headed.spec, fusion=OneHead("distill"))


@pytest.mark.parametrize("name", HEADS)
def test_a_head_alone_keeps_both_tokens_and_its_logits(two_headed: Classifier, name: str) -> None:
    alone = two_headed.alone(name)
    assert alone.spec.model.heads == (name,)
    assert torch.equal(alone(IMAGE), two_headed.heads(IMAGE)[name])
    gone = set(two_headed.module.state_dict()) - set(alone.module.state_dict())
    (other,) = set(HEADS) - {name}
    assert gone == {f"readout.heads.{other}.weight", f"readout.heads.{other}.bias"}
    with torch.no_grad():
        alone.module.layers[0].tokens[other] += torch.randn(12)
    assert not torch.allclose(alone(IMAGE), two_headed.heads(IMAGE)[name])  # its token is attended to
    with pytest.raises(SpecError, match="'softmax' cannot stand alone"):
        two_headed.alone("softmax")


def test_a_teacher_answers_as_it_was_saved(two_headed: Classifier) -> None:
    teacher = open_teacher(two_headed.reading("distill"), PICTURES, NAMES, place_for("cpu", "fp32"))
    assert torch.equal(teacher(IMAGE)["logits"], two_headed.heads(IMAGE)["distill"])
    other = open_teacher(two_headed.reading("class"), PICTURES, NAMES, place_for("cpu", "fp32"))
    assert teacher.fingerprint() != other.fingerprint()


# ------------------------------------------------------------------------------------------------ measuring, predicting


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "deit"
    frugalvit.train(recipe("deit.digits", "dim=16", "depth=2", "duration=Steps(12)", "schedule.warmup=Steps(2)"), out=out)
    return out


def test_evaluate_measures_every_reading_and_the_one_that_is_asked_for(digits: Path, tmp_path: Path) -> None:
    summary = json.loads((digits / "summary.json").read_text())
    plain = json.loads(good("evaluate", str(digits), "--json", "--device", "cpu"))
    assert plain["head"] == "mean"
    assert plain["top1"] == plain["top1_mean"] == pytest.approx(summary["val_top1"])
    assert summary["val_top1_class"] != summary["val_top1_distill"]  # or the rest would show nothing
    for name in HEADS:
        found = json.loads(good("evaluate", str(digits), "--head", name, "--json", "--device", "cpu"))
        assert found["head"] == name
        assert found["top1"] == found[f"top1_{name}"] == pytest.approx(summary[f"val_top1_{name}"])
        assert found["loss"] != plain["loss"]
        assert sum(row["recall"] * row["pictures"] for row in found["classes"].values()) == pytest.approx(found["top1"] * 500)
    saved = str(tmp_path / "saved")
    good("export", str(digits), "--origin", "frugalvit", "--head", "softmax", "--out", saved)
    again = good("evaluate", saved, "--dataset", "Digits", "--device", "cpu")
    assert "val: 500 pictures; head: softmax" in again
    text = bad("evaluate", str(digits), "--head", "clas", "--device", "cpu")
    assert "--head: the model has no head 'clas'. It has: class, distill; or all of them by mean or softmax" in text


def test_predict_answers_by_the_head_that_is_asked_for(digits: Path, tmp_path: Path) -> None:
    picture = tmp_path / "digit.png"
    Digits().open("val", None).picture(0).save(picture)
    classifier = frugalvit.load(digits)
    found = {}
    for word in EXPECTED:
        rows = json.loads(good("predict", str(digits), str(picture), "--head", word, "--json", "--device", "cpu"))
        found[word] = rows["predictions"][str(picture)][0]
        assert found[word]["probability"] == pytest.approx(classifier.reading(word).predict(picture)[0].probability, abs=1e-6)
    assert len({one["probability"] for one in found.values()}) == 4
    assert "no head 'teacher'" in bad("predict", str(digits), str(picture), "--head", "teacher")


# ------------------------------------------------------------------------------------------------ export and import


@pytest.fixture
def folder(two_headed: Classifier, tmp_path: Path) -> Path:
    return two_headed.save(tmp_path / "both")


def test_hf_holds_the_class_head_behind_both_tokens(two_headed: Classifier, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "class.safetensors"
    done = run("export", str(folder), "--origin", "hf", "--head", "class", "--out", str(file))
    assert done.returncode == 0
    assert "note: the head distill is left out" in done.stderr
    config = DeiTConfig(**SIZES, **EPS)
    theirs, told = DeiTForImageClassification.from_pretrained(
        None, config=config, state_dict=load_file(file), output_loading_info=True
    )
    assert not told["missing_keys"] and not told["unexpected_keys"]
    expected = two_headed.heads(IMAGE)["class"]
    torch.testing.assert_close(theirs.eval()(IMAGE).logits, expected, atol=1e-5, rtol=0)
    alone = two_headed.alone("class")
    again = alone.spec.model.build(seed=5).eval()
    load_weights(again, file, "hf")
    assert torch.equal(again(IMAGE)["class"], expected)
    both = tmp_path / "both.safetensors"
    good("export", str(folder), "--origin", "hf", "--head", "mean", "--out", str(both))
    pair = DeiTForImageClassificationWithTeacher.from_pretrained(None, config=config, state_dict=load_file(both)).eval()
    torch.testing.assert_close(pair(IMAGE).logits, two_headed(IMAGE), atol=1e-5, rtol=0)


def test_timm_holds_the_mean_alone_and_says_so(two_headed: Classifier, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "mean.safetensors"
    good("export", str(folder), "--head", "mean", "--out", str(file))
    theirs = VisionTransformerDistilled(
        img_size=(20, 28), patch_size=4, embed_dim=12, depth=2, num_heads=3, num_classes=9, weight_init="skip"
    )
    theirs.load_state_dict(load_file(file))
    torch.testing.assert_close(theirs.eval()(IMAGE), two_headed(IMAGE), atol=1e-5, rtol=0)
    gone = str(tmp_path / "gone.safetensors")
    refused = [("timm", "class"), ("timm", "distill"), ("timm", "softmax"), ("hf", "distill"), ("hf", "softmax")]
    for origin, word in refused:
        text = bad("export", str(folder), "--origin", origin, "--head", word, "--out", gone)
        assert (
            f"--head: {origin} has no model with the heads class, distill that answers by '{word}', only by their mean" in text
        )
        assert ("--origin hf, whose DeiT" in text) is (word == "class")
    assert not Path(gone).exists()
    read = two_headed.reading("softmax").save(tmp_path / "read")
    done = run("export", str(read), "--out", str(tmp_path / "kept.safetensors"), "--json")
    assert "answers by 'softmax', only by their mean. All heads are written" in json.loads(done.stdout)["notes"][0]
    assert load_file(tmp_path / "kept.safetensors").keys() == load_file(file).keys()


def test_families_without_a_place_for_one_head_refuse_it_too(tmp_path: Path) -> None:
    spec = pit(dim=12, heads=(1, 2, 4), depths=(1, 1, 1), image=64, classes=9, summary=HEADS)
    made = Classifier(ClassifierSpec(spec, replace(PICTURES, height=64, width=64), NAMES), spec.build(seed=0))
    folder = made.save(tmp_path / "pit")
    assert "only by their mean" in bad("export", str(folder), "--head", "class", "--out", str(tmp_path / "x.safetensors"))
    assert "tensors under the names of timm" in good("export", str(folder), "--out", str(tmp_path / "y.safetensors"))


def test_our_own_files_hold_every_reading(two_headed: Classifier, folder: Path, tmp_path: Path) -> None:
    for word in EXPECTED:
        for out in (tmp_path / f"v1.{word}", tmp_path / f"{word}.safetensors"):
            good("export", str(folder), "--origin", "frugalvit", "--head", word, "--out", str(out))
            again = frugalvit.load(out)
            assert torch.equal(again(IMAGE), two_headed.reading(word)(IMAGE))
            assert again.spec.model.heads == HEADS  # nothing is lost
    saved = json.loads((tmp_path / "v1.distill" / "config.json").read_text())
    assert saved["fusion"] == {"part": "OneHead", "name": "distill"}
    text = bad("export", str(folder), "--origin", "frugalvit", "--out", str(tmp_path / "x.pth"))
    assert "Say --out FILE.safetensors or FOLDER; no pickle is written" in text


def test_import_chooses_the_head_too(tmp_path: Path) -> None:
    name, small = "deit_tiny_distilled_patch16_224", ("depth=1", "image=32", "classes=9")
    source = lively(frugalvit.model(name, *small).build(seed=0))
    file = tmp_path / "file.pth"
    torch.save(frugalvit.export_weights(source, "timm"), file)
    words = ["import", name, *small, "--init", str(file), "--origin", "timm", "--out", str(tmp_path / "out")]
    assert "say the same thing" in bad(*words, "fusion=SumSoftmax", "--head", "class")
    assert "--head: the model has no head 'both'" in bad(*words, "--head", "both")
    assert not (tmp_path / "out").exists()
    good(*words, "--head", "distill")
    again, image = frugalvit.load(tmp_path / "out"), torch.randn(2, 3, 32, 32)
    assert again.spec.fusion == OneHead("distill")
    assert torch.equal(again(image), source(image)["distill"])
