"""Classifiers as ONNX files: onnxruntime answers by them as PyTorch does, or there is no file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from tests.test_cli import bad, good, run
from torch import Tensor, nn

import frugalvit
from frugalvit.assign import override
from frugalvit.cli.distill import named
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy import export
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.deploy.export import export_onnx
from frugalvit.deploy.exported import ExportedClassifier
from frugalvit.deploy.verify import answers, noise_for
from frugalvit.errors import SpecError, WeightsError
from frugalvit.measure import onnx_file
from frugalvit.nn.model import Model
from frugalvit.nn.shape import Shape
from frugalvit.teaching import open_teacher
from frugalvit.training.devices import place_for
from frugalvit.training.teacher import OnnxTeacher, RunTeacher, Teaching
from frugalvit.zoo.deit import deit

for needed in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(needed)

NAMES = ("Äpfel", "b", "c", "d", "e")
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
SMALL = dict(dim=12, heads=3, depth=1, patch=4, image=(8, 12), classes=len(NAMES))
FAMILIES = (
    ("cait_xxs24_224+spt+lsa", "dim=12", "heads=3", "depth=1", "class_depth=1", "image=32x48"),
    ("convit_tiny", "dim=16", "heads=4", "depth=2", "local=1", "image=32x48"),
    ("pit_ti_224", "dim=8", "heads=[1,2]", "depths=[1,1]", "image=32"),
    ("swin_tiny_patch4_window7_224", "dim=8", "heads=[1,2]", "depths=[2,1]", "window=2", "image=16"),
    ("small_t2t_32+spt+lsa", "depth=1"),
    ("regnety_040", "depth=4", "start=16", "slope=8", "group=8", "image=32"),
    ("reactnet_a_32", "widths=[32,64]", "image=8"),
    ("binary_deit_tiny_patch4_32", "dim=16", "heads=2", "depth=1", "image=8"),
)
MORE = (
    ("vit_tiny_patch16_224", "dim=12", "heads=3", "depth=1", "image=16x32", "channels=1"),
    ("vit_tiny_r_s16_p8_224", "dim=12", "heads=3", "depth=1", "image=128"),
    ("resnet18", "depths=[1,1]", "image=32"),
    ("efficientnet_b0", "stages=[[1,1,1,16,3],[6,1,2,24,5]]", "width=32", "image=32"),
)


def classifier_of(model: Any) -> Classifier:
    image = model.image
    preprocess = Preprocess(image.height, image.width, MEAN[: image.channels], STD[: image.channels], 0.9, "bilinear")
    module = model.build(seed=0)
    draw = torch.Generator().manual_seed(0)
    for name, one in module.named_parameters():
        if name.startswith("readout.heads"):
            nn.init.normal_(one, std=0.3, generator=draw)  # some families begin with zeros
    return Classifier(ClassifierSpec(model, preprocess, NAMES), module).eval()


@pytest.fixture
def two_headed() -> Classifier:
    return classifier_of(deit(**SMALL, summary=("class", "distill")))


@pytest.fixture
def untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is written at once, and no runtime can read it."""
    monkeypatch.setattr(export, "traced", lambda classifier, part: part.write_bytes(b"no graph"))


def logits(file: Path, classifier: Classifier, count: int) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    pixels_BCHW = noise_for(classifier, count).transpose(0, 3, 1, 2).astype(np.float32) / 255
    return session.run(["logits"], {"image": pixels_BCHW})[0]


@pytest.mark.parametrize("head", ["class", "mean", "softmax"])
def test_a_file_answers_by_the_head_asked_for(tmp_path: Path, two_headed: Classifier, head: str) -> None:
    file = tmp_path / "new" / "model.onnx"
    done = export_onnx(two_headed, file, head)
    assert (done.file, done.bytes, done.head, done.notes) == (str(file), file.stat().st_size, head, ())
    assert done.difference is not None and done.difference < 1e-5
    wanted_BC = answers(two_headed.reading(head), noise_for(two_headed, 5))
    assert np.abs(logits(file, two_headed, 5) - wanted_BC).max() < 1e-5
    assert list(file.parent.iterdir()) == [file]


def test_a_file_says_how_it_is_used_and_nothing_of_the_machine_that_wrote_it(tmp_path: Path, two_headed: Classifier) -> None:
    import onnxruntime

    file = tmp_path / "model.onnx"
    classifier = two_headed.reading("softmax").to(torch.bfloat16)
    assert export_onnx(classifier, file).head == "softmax"
    assert next(classifier.parameters()).dtype == torch.bfloat16  # the file's are copies
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (image,), (answer,) = session.get_inputs(), session.get_outputs()
    assert (image.name, image.type, image.shape) == ("image", "tensor(float)", ["batch", 3, 8, 12])
    assert (answer.name, answer.type, answer.shape) == ("logits", "tensor(float)", ["batch", 5])
    told = json.loads(session.get_modelmeta().custom_metadata_map["frugalvit"])
    pictures = {"height": 8, "width": 12, "mean": [*MEAN], "std": [*STD], "crop": 0.9, "interpolation": "bilinear"}
    assert told["preprocess"] == pictures and told["classes"] == [*NAMES] and told["head"] == "softmax"
    assert (told["format"], told["frugalvit"]) == (1, frugalvit.__version__) and told["input"].startswith("pixels / 255")
    assert str(Path(frugalvit.__file__).parent).encode() not in file.read_bytes()


@pytest.mark.parametrize(
    "words", [*FAMILIES, *(pytest.param(words, marks=pytest.mark.slow) for words in MORE)], ids=lambda words: words[0]
)
def test_every_family_exports(tmp_path: Path, words: tuple[str, ...]) -> None:
    classifier = classifier_of(frugalvit.model(*words, classes=len(NAMES)))
    done = export_onnx(classifier, tmp_path / "model.onnx")
    assert done.head == "class" and done.difference is not None and done.difference < 1e-4
    assert bool(done.notes) is (words[0].startswith(("binary", "reactnet")))
    assert any("frugalvit pack" in note for note in done.notes) is words[0].startswith("binary")


# ------------------------------------------------------------------------------------------------ what is refused


def test_names_that_are_taken_or_of_another_kind_are_refused(tmp_path: Path, two_headed: Classifier) -> None:
    (tmp_path / "there.onnx").write_text("mine")
    for name, message in (("there.onnx", "nothing is overwritten"), ("model.pt", r"ONNX files end in \.onnx")):
        with pytest.raises(SpecError, match=message):
            export_onnx(two_headed, tmp_path / name)
    assert (tmp_path / "there.onnx").read_text() == "mine"
    with pytest.raises(SpecError, match="the model has no head 'both'"):
        export_onnx(two_headed, tmp_path / "new.onnx", "both")


@pytest.mark.parametrize("name", ["onnx", "onnxscript"])
def test_without_the_exporter_the_error_says_what_to_install(
    tmp_path: Path, two_headed: Classifier, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(SpecError, match=rf"{name} is not installed: pip install 'frugalvit\[onnx\]'"):
        export_onnx(two_headed, tmp_path / "new" / "model.onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("untraced")
def test_without_onnxruntime_the_file_is_written_and_not_checked(
    tmp_path: Path, two_headed: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = export_onnx(two_headed, tmp_path / "model.onnx")
    assert done.difference is None and "was not checked: onnxruntime is not installed" in done.notes[0]
    assert (tmp_path / "model.onnx").read_bytes() == b"no graph"


@pytest.mark.usefixtures("untraced")
def test_a_file_that_cannot_be_run_is_not_kept(tmp_path: Path, two_headed: Classifier) -> None:
    with pytest.raises(WeightsError, match=r"model\.onnx: onnxruntime cannot run it \(.*\)\. Nothing was written"):
        export_onnx(two_headed, tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("untraced")
@pytest.mark.parametrize("off", [0.05, float("nan")])
def test_a_file_that_answers_otherwise_is_not_kept(
    tmp_path: Path, two_headed: Classifier, monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    asked: list[int] = []

    def wrong(file: Path, threads: int) -> export.Predict:
        def predict(pixels_BCHW: np.ndarray) -> np.ndarray:
            asked.append(len(pixels_BCHW))
            with torch.inference_mode():
                return export.FromPixels(two_headed)(torch.from_numpy(pixels_BCHW)).numpy() + off

        return predict

    monkeypatch.setattr(export, "onnx_runtime", wrong)
    with pytest.raises(WeightsError, match=r"differ from PyTorch's by up to (0\.05|nan), where they spread over .* report it"):
        export_onnx(two_headed, tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()] and asked == [1, 3]


@pytest.mark.usefixtures("untraced")
def test_signs_that_roundings_turn_around_are_allowed_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = classifier_of(frugalvit.model(*FAMILIES[-1], classes=len(NAMES)))
    image_BHWC = noise_for(classifier, 4)
    wanted_BC = answers(classifier, image_BHWC)
    assert export.own_difference(classifier, image_BHWC, wanted_BC) < 1e-3  # so few signs are far from zero
    monkeypatch.setattr(export, "in_batches", lambda predict, image_BHWC: wanted_BC + 0.5)
    monkeypatch.setattr(export, "onnx_runtime", lambda file, threads: None)
    with pytest.raises(WeightsError, match="differ from PyTorch's"):
        export_onnx(classifier, tmp_path / "model.onnx")
    monkeypatch.setattr(export, "own_difference", lambda classifier, image_BHWC, wanted_BC: 0.2)
    done = export_onnx(classifier, tmp_path / "model.onnx")
    assert done.difference == pytest.approx(0.5) and "move the logits of the model itself by up to 0.2" in done.notes[1]


def test_what_has_no_form_in_onnx_is_refused(tmp_path: Path, two_headed: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    eight = frugalvit.model("deit_tiny_patch16_224+fp8_linears", "dim=48", "heads=3", "depth=1", "image=16", classes=5)
    with pytest.raises(SpecError, match=r"model: products of 8-bit floats .* Go on training the model without them"):
        export_onnx(classifier_of(eight), tmp_path / "model.onnx")
    monkeypatch.setattr(export, "LARGEST", 1000)
    with pytest.raises(SpecError, match=r"GB of weights\. An ONNX file holds 2 GB at most"):
        export_onnx(two_headed, tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


@dataclass(frozen=True)
class Wavering:
    """A layer of the user's that decides by what it sees."""

    def build(self, shape: Shape) -> tuple[nn.Module, Shape]:
        return Waver(), shape


class Waver(nn.Module):
    def forward(self, x_BND: Tensor) -> Tensor:
        return x_BND if x_BND.sum() > 0 else -x_BND


def test_a_part_that_cannot_be_traced_is_an_error_of_ours(tmp_path: Path) -> None:
    plain = deit(**SMALL)
    model = Model(plain.tokenizer, (*plain.layers, Wavering()), plain.readout, plain.classes, plain.image)
    with pytest.raises(SpecError, match=r"model: PyTorch's exporter cannot write this model as ONNX \(.+\)"):
        export_onnx(classifier_of(model), tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


# ------------------------------------------------------------------------------------------------ the verb, and teaching


def trips_over(first: BaseException) -> Callable[..., None]:
    """An exporter whose imports fail as torch's do: what is reported is not what happened."""

    def export(*_: object, **__: object) -> None:
        try:
            try:
                raise first
            except ValueError:
                pass
            finally:
                raise AttributeError("module 'torch._dynamo' has no attribute 'exc'")
        except AttributeError as error:
            raise RuntimeError("Failed to export the model") from error

    return export


def test_an_interrupted_export_ends_as_interrupted_and_blames_no_model(
    tmp_path: Path, two_headed: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_headed.save(tmp_path / "run")
    monkeypatch.setattr(torch.onnx, "export", trips_over(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        export_onnx(two_headed, tmp_path / "a.onnx")
    done = run("export", str(tmp_path / "run"), "--origin", "onnx", "--out", str(tmp_path / "a.onnx"))
    assert done.returncode and "Error" not in done.stderr
    monkeypatch.setattr(torch.onnx, "export", trips_over(ImportError()))
    blamed = r"^model: PyTorch's exporter cannot write this model as ONNX \(module 'torch\._dynamo' has no attribute 'exc'\)"
    with pytest.raises(SpecError, match=blamed):
        export_onnx(two_headed, tmp_path / "a.onnx")
    try:
        raise KeyboardInterrupt  # training, say, and what it has learned so far is to be exported
    except KeyboardInterrupt:
        with pytest.raises(SpecError, match=blamed):
            export_onnx(two_headed, tmp_path / "a.onnx")
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_a_package_whose_import_is_interrupted_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "try:\n    raise {}\nexcept BaseException:\n    raise ImportError('cannot import name')\n"
    (tmp_path / "stopped_halfway.py").write_text(source.format("KeyboardInterrupt"))
    (tmp_path / "broken_halfway.py").write_text(source.format("OSError"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        onnx_file.package("stopped_halfway")
    with pytest.raises(onnx_file.Missing, match="broken_halfway is not installed"):
        onnx_file.package("broken_halfway")


def test_the_verb_writes_a_file_that_can_teach(tmp_path: Path, two_headed: Classifier) -> None:
    folder, file = tmp_path / "saved", tmp_path / "model.onnx"
    two_headed.save(folder)
    words = ("export", str(folder), "--origin", "onnx", "--out", str(file))
    found = json.loads(good(*words, "--head", "distill", "--json"))
    assert found.pop("largest_difference") < 1e-5
    assert found == {"out": str(file), "bytes": file.stat().st_size, "head": "distill", "notes": []}
    assert "nothing is overwritten" in bad(*words)

    part = {"part": "OnnxTeacher", "path": str(file), "mean": [0, 0, 0], "std": [1, 1, 1]}
    teaching = override(Teaching(RunTeacher(str(file))), f"teacher={json.dumps(part)}")
    assert isinstance(teaching.teacher, OnnxTeacher)
    student = Preprocess(8, 12, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    teacher = open_teacher(teaching.teacher, student, NAMES, place_for("cpu", "fp32"))
    pictures = [*noise_for(two_headed, 3)]
    own_BCHW, their_BCHW = (
        torch.stack([made.normalized(one) for one in pictures]) for made in (two_headed.preprocess, student)
    )
    with torch.inference_mode():
        wanted_BC = two_headed.heads(own_BCHW)["distill"]
    torch.testing.assert_close(teacher(their_BCHW)["logits"], wanted_BC, atol=1e-5, rtol=1e-5)
    own = named(str(file), tmp_path)
    assert own == OnnxTeacher(str(file), (0.0,) * 3, (1.0,) * 3, NAMES, interpolation="bilinear")


def test_a_file_from_elsewhere_says_nothing_of_its_pictures(tmp_path: Path) -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sum((2, 3))

    file = tmp_path / "foreign.onnx"
    onnx_file.write_onnx(Sum(), torch.zeros(1, 3, 4, 4), file)
    assert export.read_description(file) is None
    with pytest.raises(WeightsError, match=r"is a computation for onnxruntime.*OnnxTeacher"):
        frugalvit.load(file)
    told: list[str | dict[str, Any]] = ["no JSON", {}, {"preprocess": {}, "classes": []}, {"preprocess": {"height": 8}}]
    for wrong in told:
        odd = tmp_path / "odd.onnx"
        metadata = {export.KEY: wrong if isinstance(wrong, str) else json.dumps(wrong)}
        onnx_file.write_onnx(Sum(), torch.zeros(1, 3, 4, 4), odd, metadata=metadata)
        with pytest.raises(WeightsError, match=r"odd\.onnx: what it says of its pictures cannot be read"):
            named(str(odd), tmp_path)
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(WeightsError, match=r"foreign\.onnx: onnxruntime cannot read it"):
        named(str(file), tmp_path)


def test_the_verb_says_what_it_wrote(tmp_path: Path, two_headed: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    two_headed.save(tmp_path / "saved")
    monkeypatch.setattr(export, "traced", lambda classifier, part: part.write_bytes(bytes(1_500_000)))
    monkeypatch.setattr(export, "compared", lambda classifier, part, file: (1.5e-6, ""))
    words = ("export", str(tmp_path / "saved"), "--origin", "onnx", "--out")
    text = good(*words, str(tmp_path / "one.onnx"))
    assert "1.5 MB, from pixels / 255 to logits; head: mean." in text and "in onnxruntime: 1.5e-06." in text
    monkeypatch.setattr(export, "compared", lambda classifier, part, file: (None, "the file was not checked"))
    done = run(*words, str(tmp_path / "two.onnx"))
    assert "note: the file was not checked" in done.stderr and "Largest difference" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "nowhere", "--origin", "onnx", "--out", "x.pt"], "SpecError: x.pt: ONNX files end in .onnx."),
        (["export", "nowhere", "--origin", "onnx"], "SpecError: --out: where to? Say --out FILE.onnx."),
        (["export", "nowhere", "--origin", "onnx", "--out", "x.onnx"], "WeightsError: nowhere: there is no such file"),
        (["import", "resnet18", "--init", "x.onnx", "--origin", "onnx"], "SpecError: --origin: an ONNX file is a computation"),
        (["import", "resnet18", "--init", "x.onnx", "--out", "x"], "SpecError: --init: an ONNX file is a computation"),
        (
            ["export", "nowhere", "--origin", "onx", "--out", "x"],
            "SpecError: --origin: nothing is written for 'onx'. Did you mean",
        ),
    ],
    ids=str,
)
def test_mistakes_end_in_one_message(words: list[str], message: str) -> None:
    assert message in bad(*words)


@pytest.mark.parametrize("head", ["class", "distill", "mean"])
def test_a_file_predicts_and_is_measured_as_the_classifier_it_was_made_of(tmp_path: Path, head: str) -> None:
    run = tmp_path / "run"
    words = ("dim=12", "depth=1", "epochs=1", "batch=64", "--quiet", "--device", "cpu")
    good("train", "deit.digits", *words, "--out", str(run))
    file = run / "model.onnx"
    good("export", str(run), "--origin", "onnx", "--head", head, "--out", str(file))
    whole = json.loads(good("evaluate", str(run), "--head", head, "--device", "cpu", "--json"))
    found = json.loads(good("evaluate", str(file), "--json"))
    for name in ("top1", "top5", "loss", "calibration_error", "pictures"):
        assert found[name] == pytest.approx(whole[name], rel=1e-4, abs=1e-4)
    picture = tmp_path / "digit.png"
    Pillow.fromarray(np.arange(35, dtype=np.uint8).reshape(5, 7) * 7).save(picture)
    (ours,), (theirs,) = (
        json.loads(good("predict", str(who), str(picture), "--json", *more))["predictions"].values()
        for who, more in ((file, ()), (run, ("--head", head, "--device", "cpu")))
    )
    assert [one["name"] for one in ours] == [one["name"] for one in theirs]
    assert [one["probability"] for one in ours] == pytest.approx([one["probability"] for one in theirs], abs=1e-5)
    exported = ExportedClassifier(file)
    assert exported.head == head and len(exported.predict([picture] * 3, top=2, batch=2)) == 3
    for wrong, said in ((("--head", "class"), "Export the run again"), (("--threads", "2"), "takes all cores")):
        assert said in bad("evaluate", str(file), *wrong)
    assert "there is no such file" in bad("predict", str(tmp_path / "none.onnx"), str(picture))
