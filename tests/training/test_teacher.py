from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as Pillow
from torch import Tensor, nn

from frugalvit.data.arrays import Arrays
from frugalvit.data.digits import Digits
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.adopt import imagenet_names
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import SpecError, WeightsError
from frugalvit.nn.readout import SumSoftmax
from frugalvit.recipes.find import recipe
from frugalvit.run import train
from frugalvit.spec import decode, encode
from frugalvit.teaching import in_words_of, open_teacher
from frugalvit.training.adapt import Seen, class_order
from frugalvit.training.devices import Place
from frugalvit.training.evaluate import Framed
from frugalvit.training.recipe import preprocess_of
from frugalvit.training.teacher import Ensemble, OnnxTeacher, ReadyTeacher, RunTeacher, Teacher, Teaching, ZooTeacher, told
from frugalvit.training.teacher_check import check_teacher, own_top1
from frugalvit.weights.files import write_safetensors
from frugalvit.weights.load import export_weights
from frugalvit.zoo.deit import deit
from frugalvit.zoo.find import model
from frugalvit.zoo.vit import vit

CPU = Place(torch.device("cpu"), "fp32")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NAMES = ("ant", "bee", "cat", "dog", "eel")
STUDENT = Preprocess(32, 32, *IMAGENET)
HALF = Preprocess(64, 64, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), 0.9, "bilinear")


def lively(module: nn.Module) -> Any:
    for one in module.parameters():
        nn.init.normal_(one, std=0.3)
    return module


@pytest.fixture
def classifier() -> Classifier:
    """Two heads, 64 pixels, (x − 0.5) / 0.5."""
    spec = deit(dim=12, heads=3, depth=2, patch=16, image=64, classes=5, summary=("class", "distill"))
    return Classifier(ClassifierSpec(spec, HALF, NAMES), lively(spec.build(seed=1))).eval()


def pictures(size: int = 32, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, size, size)


def logits(teacher: Teacher, image_BCHW: Tensor) -> Tensor:
    return teacher(image_BCHW)["logits"]


# ------------------------------------------------------------------------------------------------ what it sees


def test_a_teacher_with_the_students_pictures_sees_them_to_the_bit() -> None:
    image = pictures()
    assert Seen(STUDENT, replace(STUDENT, crop=0.95, interpolation="bilinear"))(image) is image


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [64, 20])
def test_pictures_are_resized_as_pillow_does_and_normalized_the_teachers_way(size: int, interpolation: Any) -> None:
    image_BCHW = pictures() * 3
    own = Preprocess(size, size + 4, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), interpolation=interpolation)
    found_BCHW = Seen(STUDENT, own)(image_BCHW)
    assert found_BCHW.shape == (2, 3, size, size + 4)
    for channel in range(3):
        plane_HW = image_BCHW[1, channel].numpy() * STUDENT.std[channel] + STUDENT.mean[channel]
        filter_ = Pillow.Resampling.BICUBIC if interpolation == "bicubic" else Pillow.Resampling.BILINEAR
        made = np.asarray(Pillow.fromarray(plane_HW.astype(np.float32)).resize((size + 4, size), filter_))
        expected = (made - own.mean[channel]) / own.std[channel]
        assert np.abs(found_BCHW[1, channel].numpy() - expected).max() < 2e-5
    assert found_BCHW.min() < (0 - 0.5) / 0.2  # nothing is clamped


def test_gray_becomes_rgb_and_rgb_becomes_pillows_gray() -> None:
    gray = Preprocess(8, 8, (0.3,), (0.4,))
    image = pictures(8, 1)
    colored = Seen(gray, Preprocess(8, 8, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)))(image)
    assert torch.allclose(colored[:, 1:2], (image * 0.4 + 0.3 - 0.2) / 0.6)
    array = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    color = Preprocess(8, 8, *IMAGENET, crop=1.0)
    seen = Seen(color, gray)(color.normalized(Pillow.fromarray(array))[None])
    levels = (seen * 0.4 + 0.3) * 255
    assert np.abs(levels[0, 0].numpy() - np.asarray(Pillow.fromarray(array).convert("L"))).max() <= 1
    with pytest.raises(SpecError, match="4 channels, the teacher's 3"):
        Seen(Preprocess(8, 8, (0.5,) * 4, (0.5,) * 4), color)


def test_a_teacher_of_64_pixels_answers_for_a_student_of_32(classifier: Classifier, tmp_path: Path) -> None:
    teacher = open_teacher(RunTeacher(str(classifier.save(tmp_path / "run"))), STUDENT, NAMES, CPU)
    assert (teacher.size, teacher.mean, teacher.std, teacher.interpolation) == ((64, 64), HALF.mean, HALF.std, "bilinear")
    assert (teacher.classes, teacher.notes, teacher.captured) == (NAMES, (), True)
    image = pictures()
    assert torch.equal(logits(teacher, image), classifier(Seen(STUDENT, HALF)(image)))
    assert torch.equal(teacher.answers(pictures(64))["logits"].isfinite(), torch.ones(2, 5, dtype=torch.bool))
    assert teacher.shapes() == {"logits": (5,)}


def test_another_size_resamples_positions_and_says_so(classifier: Classifier, tmp_path: Path) -> None:
    path = str(classifier.save(tmp_path / "run"))
    teacher = open_teacher(RunTeacher(path, size=(96, 64)), STUDENT, NAMES, CPU)
    assert teacher.size == (96, 64)
    assert teacher.shapes() == {"logits": (5,)}
    assert "positions resampled from 4 x 4 to 6 x 4" in teacher.notes[0]


def test_the_fusion_of_a_classifier_is_kept(classifier: Classifier) -> None:
    classifier.spec = replace(classifier.spec, fusion=SumSoftmax())
    teacher = open_teacher(classifier, HALF, NAMES, CPU)
    image = pictures(64)
    assert torch.equal(logits(teacher, image), classifier(image))


# ------------------------------------------------------------------------------------------------ its classes


def test_classes_in_another_order_are_put_into_the_students(classifier: Classifier) -> None:
    mixed = ("dog", "ant", "eel", "bee", "cat")
    image = pictures()
    straight, turned = (open_teacher(classifier, STUDENT, names, CPU) for names in (NAMES, mixed))
    assert torch.equal(logits(turned, image), logits(straight, image)[:, [3, 0, 4, 1, 2]])
    assert turned.classes == mixed
    assert "in another order" in turned.notes[0]


def test_a_teacher_that_knows_more_is_refused_unless_asked_for(classifier: Classifier) -> None:
    few = ("eel", "bee")
    with pytest.raises(SpecError, match=r"teacher\.classes: the teacher knows 5 classes, the student's 2 among them"):
        open_teacher(classifier, STUDENT, few, CPU)
    image = pictures()
    teacher = open_teacher(classifier, STUDENT, few, CPU, known="included")
    assert torch.equal(logits(teacher, image), logits(open_teacher(classifier, STUDENT, NAMES, CPU), image)[:, [4, 1]])
    assert teacher.notes == ("of the teacher's 5 classes the student's 2 are read",)


def test_other_classes_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match=r"5 classes, the student 6.* alone: fox; of the teacher alone: none"):
        class_order(NAMES, (*NAMES, "fox"))
    with pytest.raises(SpecError, match=r"student alone: a, b, c, \.\.\.; of the teacher alone: ant, bee, cat, \.\.\."):
        class_order(NAMES, tuple("abcde"))
    with pytest.raises(SpecError, match="several classes are called crane"):
        class_order(("crane", "crane", "bee"), ("bee", "crane", "crane"))
    with pytest.raises(SpecError, match="several classes are called bee"):
        class_order(("bee", "crane"), ("bee", "bee", "crane"))


def test_numbers_stand_for_as_many_names() -> None:
    assert class_order(NAMES, NAMES) == (None, "")
    order, note = class_order(("0", "1", "2"), ("a", "b", "c"))
    assert (order, note) == (
        None,
        "the teacher's classes are numbers only; they are taken to be the student's, in the same order",
    )
    assert class_order(("0", "1", "2"), ("1", "0", "2"))[0] == (1, 0, 2)  # the same names, numbers or not
    assert class_order(("a", "b", "c"), ("0", "1", "2"))[1].startswith("the student's classes are numbers only")


def numbers(count: int) -> tuple[str, ...]:
    return tuple(map(str, range(count)))


def test_numbers_are_names_where_the_user_says_that_they_are_included() -> None:
    order, note = class_order(numbers(12), numbers(10), "included")
    assert (order, note) == (tuple(range(10)), "of the teacher's 12 classes the student's 10 are read, by number")
    assert class_order(numbers(10), ("7", "3"), "included")[0] == (7, 3)
    among = r"student's 10 among them, if a number means the same to both\. Say teaching\.classes=included"
    with pytest.raises(SpecError, match=among):  # which they may mean to nobody
        class_order(numbers(1000), numbers(10))
    with pytest.raises(SpecError, match=r"Of the student alone: ant, bee, cat, \.\.\.; of the teacher alone: 0, 1, 2, \.\.\."):
        class_order(numbers(1000), NAMES, "included")
    with pytest.raises(SpecError, match=r"Of the student alone: 0, 1, 2; of the teacher alone: ant, bee, cat"):
        class_order(NAMES, numbers(3), "included")


@pytest.mark.parametrize("known", ["same", "included"])
def test_no_name_is_listed_on_both_sides(known: Any) -> None:
    with pytest.raises(SpecError, match=r"Of the student alone: 5, 6, 7, \.\.\.; of the teacher alone: none\."):
        class_order(numbers(5), numbers(10), known)


def test_imagenets_words_are_its_wordnet_ids() -> None:
    ids = tuple(f"n{number:08d}" for number in range(1000))
    assert in_words_of(imagenet_names(), ids)[0] == ids
    assert in_words_of(imagenet_names(), ids[::-1])[0] == imagenet_names()
    assert in_words_of(NAMES, ids) == (NAMES, "")


# ------------------------------------------------------------------------------------------------ frozen


def test_it_is_frozen_and_never_trains(classifier: Classifier) -> None:
    spec = vit(dim=12, heads=3, depth=2, patch=16, image=64, classes=5, drop_path=0.5, dropout=0.5)
    teacher = open_teacher(Classifier(ClassifierSpec(spec, HALF, NAMES), spec.build(seed=0)), STUDENT, NAMES, CPU)
    holder = nn.ModuleDict({"teacher": teacher, "student": nn.Linear(2, 2)}).train()
    assert holder["student"].training
    assert not any(one.training for one in teacher.modules())
    assert not any(one.requires_grad for one in teacher.parameters())
    image = pictures().requires_grad_()
    assert not logits(teacher, image).requires_grad
    assert torch.equal(logits(teacher, image), logits(teacher, image))
    assert all(name.startswith("network.") for name in teacher.state_dict())


def test_its_answers_can_take_part_in_a_loss_and_stay_fp32_under_autocast(classifier: Classifier) -> None:
    teacher = open_teacher(classifier, STUDENT, NAMES, Place(torch.device("cpu"), "bf16"))
    image, student = pictures(), torch.zeros(2, 5, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = logits(teacher, image)
    assert torch.equal(found, logits(teacher, image))
    (found.softmax(-1) * student.log_softmax(-1)).sum().backward()
    assert student.grad is not None


def test_a_whole_teacher_compiles_without_a_break(classifier: Classifier) -> None:
    teacher = open_teacher(classifier, STUDENT, NAMES[::-1], CPU, taps=("tokens[1]",))
    compiled = torch.compile(teacher, fullgraph=True, dynamic=False, backend="aot_eager")
    image = pictures()
    for name, value in compiled(image).items():
        assert torch.allclose(value, teacher(image)[name], atol=1e-5)


def test_taps_of_our_own_models_are_among_the_answers(classifier: Classifier, tmp_path: Path) -> None:
    taps = ("tokens[1]", "attention[0]")
    path = str(classifier.save(tmp_path / "run"))
    teacher = open_teacher(RunTeacher(path), STUDENT, NAMES, CPU, taps=taps)
    assert teacher.shapes() == {"logits": (5,), "tokens[1]": (18, 12), "attention[0]": (3, 18, 18)}
    outputs = classifier.spec.model.build(taps=taps)
    outputs.load_state_dict(classifier.module.state_dict())
    image = pictures()
    assert torch.equal(teacher(image)["tokens[1]"], outputs.eval()(Seen(STUDENT, HALF)(image))["tokens[1]"])
    refused: list[tuple[Any, str]] = [
        (Ensemble((RunTeacher(path),)), "an ensemble has no places to tap"),
        (ReadyTeacher(classifier), "of your own has no places to tap"),
        (OnnxTeacher("a.onnx", *IMAGENET), "an ONNX file has no places to tap"),
    ]
    for one, message in refused:
        with pytest.raises(SpecError, match=rf"teacher\.taps: .*{message}"):
            open_teacher(one, STUDENT, NAMES, CPU, taps=taps)


def test_the_fingerprint_follows_weights_pictures_and_classes(classifier: Classifier) -> None:
    first = open_teacher(classifier, STUDENT, NAMES, CPU).fingerprint()
    assert open_teacher(classifier, STUDENT, NAMES, CPU).fingerprint() == first
    found = {open_teacher(classifier, HALF, NAMES, CPU).fingerprint()}
    found.add(open_teacher(classifier, STUDENT, NAMES[::-1], CPU).fingerprint())
    with torch.no_grad():
        next(classifier.module.parameters()).view(-1)[0] += 1
    found.add(open_teacher(classifier, STUDENT, NAMES, CPU).fingerprint())
    assert len(found | {first}) == 4


def fingerprint(answer: Any, gives: Any = "logits") -> str:
    return open_teacher(ReadyTeacher(answer, gives=gives), STUDENT, NAMES, CPU).fingerprint()


class Turned(nn.Sequential):
    """The same layers and weights, and something else that is computed."""

    def forward(self, image_BCHW: Tensor) -> Tensor:
        return -super().forward(image_BCHW)


class Shifted(nn.Module):
    """A buffer that is not saved, and an address where its words are."""

    def __init__(self, inner: nn.Module, mean: float):
        super().__init__()
        self.inner = inner
        self.register_buffer("mean", torch.tensor(mean), persistent=False)

    def extra_repr(self) -> str:
        return repr(object())

    def forward(self, image_BCHW: Tensor) -> Tensor:
        return self.inner(image_BCHW - self.mean)


def test_the_fingerprint_follows_what_modules_and_functions_compute() -> None:
    linear = nn.Linear(32 * 32 * 3, 5)
    relu, tanh, likely = (nn.Sequential(nn.Flatten(), linear, last) for last in (nn.ReLU(), nn.Tanh(), nn.Softmax(-1)))
    answers = (relu, tanh, likely, Turned(*relu), Shifted(relu, 0.25), Shifted(relu, 0.5))
    answers += (lambda x: x.mean((1, 2))[:, :5], lambda x: -x.mean((1, 2))[:, :5], lambda x: x.mean((1, 2))[:, 5:10])
    found = [fingerprint(one) for one in answers]
    assert len({*found, fingerprint(likely, "probabilities")}) == len(answers) + 1
    assert [fingerprint(one) for one in answers] == found


def test_the_fingerprint_follows_the_model_that_the_weights_are_of(classifier: Classifier) -> None:
    other = deit(dim=12, heads=4, depth=2, patch=16, image=64, classes=5, summary=("class", "distill"))
    module = other.build(seed=0)
    module.load_state_dict(classifier.module.state_dict())
    both = classifier, Classifier(ClassifierSpec(other, HALF, NAMES), module).eval()
    first, second = (open_teacher(one, STUDENT, NAMES, CPU) for one in both)
    image = pictures()
    assert not torch.allclose(logits(first, image), logits(second, image))
    assert first.fingerprint() != second.fingerprint()


def test_a_field_that_comes_with_its_default_leaves_fingerprints_as_they_were() -> None:
    old = dataclasses.make_dataclass("Part", ["dim"], frozen=True)
    new = dataclasses.make_dataclass("Part", ["dim", ("drop", float, 0.0)], frozen=True)
    assert told((old(12),)) == told((new(12),)) != told((new(12, 0.5),))


ELSEWHERE = """
import sys
import torch
from torch import nn
from frugalvit.data.preprocess import Preprocess
from frugalvit.teaching import open_teacher
from frugalvit.training.devices import Place
from frugalvit.training.teacher import ReadyTeacher, RunTeacher

torch.manual_seed(0)
module = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32 * 3, 5))
function = lambda x: x.mean((1, 2))[:, : 5 if str(x) in {"a", "b"} else 5]
student = Preprocess(32, 32, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
for one in (RunTeacher(sys.argv[1]), ReadyTeacher(module), ReadyTeacher(function)):
    print(open_teacher(one, student, ("ant", "bee", "cat", "dog", "eel"), Place(torch.device("cpu"), "fp32")).fingerprint())
"""


def test_a_fingerprint_is_the_same_in_every_process_and_of_a_copy(classifier: Classifier, tmp_path: Path) -> None:
    run = classifier.save(tmp_path / "run")
    shutil.copytree(run, tmp_path / "copy")
    commands = [[sys.executable, "-c", ELSEWHERE, str(tmp_path / one)] for one in ("run", "copy")]
    said = [
        subprocess.run(one, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for one, seed in zip(commands, ("1", "2"), strict=True)
    ]
    assert said[0] == said[1]
    assert said[0].split()[0] == open_teacher(classifier, STUDENT, NAMES, CPU).fingerprint()


# ------------------------------------------------------------------------------------------------ other kinds


def test_a_model_of_the_zoo_with_a_file_of_weights(tmp_path: Path) -> None:
    spec = model("deit_tiny_patch16_224", "depth=12", image=32, classes=5)
    module = lively(spec.build(seed=0))
    file = tmp_path / "tiny.safetensors"
    write_safetensors(file, export_weights(module, "timm"))
    teacher = open_teacher(ZooTeacher("deit_tiny_patch16_224", str(file), "timm", size=32), STUDENT, NAMES, CPU)
    image = pictures()
    assert torch.equal(logits(teacher, image), module.eval()(image)["class"])
    assert (teacher.mean, teacher.std, teacher.own.crop) == (*IMAGENET, 0.875)
    assert teacher.notes == ("its classes have no names; they are taken to be the student's, in the same order",)
    named = ZooTeacher("deit_tiny_patch16_224", str(file), "timm", NAMES[::-1], (0.1, 0.2, 0.3), (0.3, 0.2, 0.1), 32)
    other = open_teacher(named, STUDENT, NAMES, CPU)
    assert (other.order, other.mean, other.std) == ((4, 3, 2, 1, 0), (0.1, 0.2, 0.3), (0.3, 0.2, 0.1))
    assert (teacher.interpolation, other.interpolation) == ("bicubic", "bicubic")
    assert open_teacher(replace(named, interpolation="bilinear"), STUDENT, NAMES, CPU).interpolation == "bilinear"
    with pytest.raises(SpecError, match=r"teacher\.classes: head 'class' is fresh: the file has 5 classes, the model 3"):
        open_teacher(ZooTeacher("deit_tiny_patch16_224", str(file), "timm", size=32), STUDENT, ("a", "b", "c"), CPU)
    with pytest.raises(SpecError, match=r"teacher\.origin: whose names has .*tiny.safetensors\? One of: timm, "):
        open_teacher(ZooTeacher("deit_tiny_patch16_224", str(file)), STUDENT, NAMES, CPU)
    with pytest.raises(SpecError, match=r"teacher\.model: no model is called 'deit_tini'"):
        open_teacher(ZooTeacher("deit_tini", str(file), "timm"), STUDENT, NAMES, CPU)


def test_a_model_of_timm_by_name_with_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    theirs = timm.create_model("test_resnet").eval()
    with pytest.raises(WeightsError, match="cannot be downloaded"):
        open_teacher(ZooTeacher("timm:test_resnet"), STUDENT, imagenet_names(), CPU)
    place = tmp_path / "models--timm--test_resnet.r160_in1k" / "snapshots" / "placed"
    write_safetensors(place / "model.safetensors", theirs.state_dict())
    (place / "config.json").write_text(json.dumps({"architecture": "test_resnet", "num_classes": 1000}))
    teacher = open_teacher(ZooTeacher("timm:test_resnet"), STUDENT, imagenet_names(), CPU)
    assert (teacher.size, teacher.mean, teacher.own.crop, teacher.interpolation) == ((160, 160), (0.5,) * 3, 0.95, "bilinear")
    image = pictures()
    with torch.no_grad():
        assert torch.equal(logits(teacher, image), theirs(teacher.seen(image)))
    file = place / "model.safetensors"
    own = open_teacher(ZooTeacher("timm:test_resnet", str(file), size=96), STUDENT, imagenet_names(), CPU)
    assert (own.size, own.mean) == ((96, 96), (0.5,) * 3)
    with pytest.raises(SpecError, match=r"teacher\.model\.taps: a model of timm has no places to tap"):
        open_teacher(ZooTeacher("timm:test_resnet"), STUDENT, imagenet_names(), CPU, taps=("maps[0]",))


def test_a_model_of_torchvision_by_name_with_its_own_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hashlib

    from torchvision import models

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    theirs = models.get_model("shufflenet_v2_x0_5", weights=None).eval()
    cache = tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    torch.save(theirs.state_dict(), cache / "file.pth")
    digits = hashlib.sha256((cache / "file.pth").read_bytes()).hexdigest()[:8]
    file = (cache / "file.pth").rename(cache / f"shuffle-{digits}.pth")
    known = models.get_model_weights("shufflenet_v2_x0_5").DEFAULT
    stand_in = SimpleNamespace(url=f"https://nowhere.invalid/{file.name}", meta=known.meta, transforms=known.transforms)
    monkeypatch.setattr(models, "get_model_weights", lambda name: SimpleNamespace(DEFAULT=stand_in))
    teacher = open_teacher(ZooTeacher("torchvision:shufflenet_v2_x0_5"), STUDENT, imagenet_names(), CPU)
    assert (teacher.size, teacher.interpolation, teacher.own.crop) == ((224, 224), "bilinear", 0.875)
    image = pictures()
    with torch.no_grad():
        assert torch.equal(logits(teacher, image), theirs(teacher.seen(image)))


def test_an_ensemble_is_the_mean_by_its_rule(classifier: Classifier, tmp_path: Path) -> None:
    first = str(classifier.save(tmp_path / "first"))
    spec = vit(dim=8, heads=2, depth=1, patch=8, image=32, classes=5)
    other = Classifier(ClassifierSpec(spec, STUDENT, NAMES[::-1]), lively(spec.build(seed=2))).eval()
    second = str(other.save(tmp_path / "second"))
    image = pictures()
    one_BC, two_BC = classifier(Seen(STUDENT, HALF)(image)), other(image).flip(1)
    members = (RunTeacher(first), RunTeacher(second))
    mean = open_teacher(Ensemble(members), STUDENT, NAMES, CPU)
    assert torch.allclose(logits(mean, image), (one_BC + two_BC) / 2, atol=1e-6)
    likely = open_teacher(Ensemble(members, "mean_probabilities"), STUDENT, NAMES, CPU)
    expected = (one_BC.softmax(-1) + two_BC.softmax(-1)) / 2
    assert torch.allclose(logits(likely, image).exp(), expected, atol=1e-6)
    assert mean.notes[0].startswith(f"{second}: the teacher has the student's classes in another order")
    assert mean.captured
    assert mean.fingerprint() != likely.fingerprint()
    with pytest.raises(WeightsError, match=r"teacher\.members\[1\].*: there is no such file or folder"):
        open_teacher(Ensemble((RunTeacher(first), RunTeacher("nowhere"))), STUDENT, NAMES, CPU)
    with pytest.raises(SpecError, match="nobody is in it"):
        Ensemble(())


class Holding(nn.Module):
    """Answers as HF transformers do."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, image_BCHW: Tensor) -> Any:
        return SimpleNamespace(logits=self.inner(image_BCHW))


def test_a_module_of_ones_own_is_copied_and_a_function_is_not_captured(classifier: Classifier) -> None:
    classifier.train()
    own = Holding(classifier)
    teacher = open_teacher(ReadyTeacher(own, HALF, NAMES), STUDENT, NAMES, CPU)
    image = pictures()
    expected = classifier.eval()(Seen(STUDENT, HALF)(image))
    assert torch.equal(logits(teacher, image), expected)
    assert teacher.captured
    assert all(one.requires_grad for one in own.parameters())
    called = open_teacher(ReadyTeacher(lambda given: classifier(given).double(), HALF, NAMES[::-1]), STUDENT, NAMES, CPU)
    assert not called.captured
    assert torch.equal(logits(called, image), expected.flip(1))
    assert logits(called, image).dtype == torch.float32
    likely = open_teacher(
        ReadyTeacher(lambda given: classifier(given).softmax(-1), HALF, gives="probabilities"), STUDENT, NAMES, CPU
    )
    assert torch.allclose(logits(likely, image), expected.log_softmax(-1), atol=1e-4)
    assert "have no names" in likely.notes[0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda image: image.mean((2, 3)), r"lambda>: logits of shape \(1, 3\) for 5 classes\. Use a teacher of 5 classes\.$"),
        (
            lambda image: image.mean((1, 2)),
            r"logits of shape \(1, 32\) for 5 classes\. Use a teacher of 5 classes, or name all 32 that it knows: "
            r"ReadyTeacher\(module, classes=\(\.\.\.\)\) with Teaching\(classes='included'\)",
        ),
        (
            lambda image: image[:, :1, :5],
            r"logits of shape \(1, 1, 5, 32\) for 5 classes and 1 picture\. Return one row of 5 for",
        ),
        (lambda image: (image, image), "it answers with tuple. Return a tensor of logits"),
        (lambda image: image[:, 7], "it fails on a blank picture of 3 x 32 x 32 .index 7 is out of bounds"),
    ],
)
def test_a_function_that_does_not_fit_is_refused_before_training(answer: Callable[[Tensor], Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        open_teacher(ReadyTeacher(answer), STUDENT, NAMES, CPU)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (5, "classes: 5 is no tuple of names. Write them in the order of the logits: classes=('ant', 'bee')."),
        ("ab", "classes: 'ab' is no tuple of names."),
        ((0, 1), "classes: (0, 1) is no tuple of names."),
        (("a", "b", "a"), "classes: several are called a. Give each a name of its own."),
    ],
)
def test_what_is_no_list_of_names_is_refused_where_it_is_written(classes: Any, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        ReadyTeacher(len, classes=classes)


def test_a_list_of_names_is_as_good_as_a_tuple() -> None:
    named: Any = list(NAMES)
    teacher = open_teacher(ReadyTeacher(lambda image: image.mean((1, 2))[:, :5], classes=named), STUDENT, NAMES, CPU)
    assert (teacher.order, teacher.notes) == (None, ())


def test_a_misspelled_kind_of_answer_is_refused_where_it_is_written() -> None:
    wrong: Any = "probs"
    with pytest.raises(SpecError, match=r"^gives: 'probs' is .*\. Use logits or probabilities\.$"):
        ReadyTeacher(len, gives=wrong)


@pytest.mark.parametrize(
    ("row", "found"),
    [
        ([-2.0, 1.0, 3.0, 0.0, -1.0], "one is -2"),
        ([4.0, 1.0, 3.0, 0.0, 1.0], "they add up to 9"),
        ([-0.1, 0.6, 0.3, 0.1, 0.1], "one is -0.1"),
        ([0.1] * 5, "they add up to 0.5"),
    ],
)
def test_logits_in_place_of_probabilities_are_refused_before_training(row: list[float], found: str) -> None:
    def answer(image_BCHW: Tensor) -> Tensor:
        return torch.tensor(row).expand(len(image_BCHW), 5)

    said = rf"^teacher\.gives: the teacher, answer, is said to give probabilities, but for a blank picture {found}\. "
    with pytest.raises(SpecError, match=rf"{said}.*say gives=logits: ReadyTeacher\(module, gives='logits'\)"):
        open_teacher(ReadyTeacher(answer, gives="probabilities"), STUDENT, NAMES, CPU)


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
def test_probabilities_may_be_rounded_and_of_more_classes_than_are_read(kind: torch.dtype) -> None:
    def answer(image_BCHW: Tensor) -> Tensor:
        return torch.arange(12.0).softmax(-1).to(kind).expand(len(image_BCHW), 12)

    wide = ReadyTeacher(answer, classes=(*NAMES, *numbers(7)), gives="probabilities")
    teacher = open_teacher(wide, STUDENT, NAMES, CPU, known="included")
    expected_BC = torch.arange(12.0).log_softmax(-1)[:5].expand(2, 5)
    assert torch.allclose(logits(teacher, pictures()), expected_BC, atol=0.05)


# ------------------------------------------------------------------------------------------------ ONNX


class Session:
    """What onnxruntime's has, for a file that takes two pictures at a time."""

    def __init__(self, path: str, providers: list[str]):
        assert providers == ["CPUExecutionProvider"]
        if Path(path).read_bytes() != b"onnx":
            raise RuntimeError("[ONNXRuntimeError] : 7 : INVALID_PROTOBUF\nmore")

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name="image", shape=[2, 3, "height", 8], type="tensor(float)")]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=name, shape=[2, 3]) for name in ("logits", "turned", "likely")]

    def run(self, outputs: list[str], given: dict[str, np.ndarray]) -> list[np.ndarray]:
        assert outputs[0] in ("logits", "turned", "likely")
        assert given["image"].shape[0] == 2
        assert given["image"].dtype == np.float32
        mean_BC = given["image"].mean((2, 3)) * (-1 if outputs == ["turned"] else 1)
        return [np.exp(mean_BC) / np.exp(mean_BC).sum(1, keepdims=True) if outputs == ["likely"] else mean_BC]


def test_a_file_that_onnxruntime_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = SimpleNamespace(InferenceSession=Session, get_available_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    file, broken = tmp_path / "a.onnx", tmp_path / "b.onnx"
    file.write_bytes(b"onnx")
    broken.write_bytes(b"?")
    spec = OnnxTeacher(str(file), *IMAGENET, ("c", "a", "b"), 8, output="logits")
    student = Preprocess(8, 8, *IMAGENET)
    teacher = open_teacher(spec, student, ("a", "b", "c"), CPU)
    assert not teacher.captured
    image = torch.randn(5, 3, 8, 8)
    assert torch.allclose(logits(teacher, image), image.mean((2, 3))[:, [1, 2, 0]], atol=1e-6)
    wrong: list[tuple[OnnxTeacher, str]] = [
        (replace(spec, output=""), r"teacher\.output: the file gives logits, turned, likely"),
        (replace(spec, gives="probabilities"), r"teacher\.gives: .* teaching\.teacher\.gives=logits for an ONNX file"),
        (replace(spec, size=None), r"teacher\.size: the file takes pictures of any size"),
        (replace(spec, size=9), r"teacher\.size: 9 x 9 for a file that takes None x 8"),
        (replace(spec, classes=("a", "b")), r"teacher\.classes: 2 names for a teacher of 3 classes"),
        (replace(spec, mean=(0.5,), std=(0.5,)), r"teacher\.mean: 1 means for a file of 3 channels"),
        (replace(spec, path=str(broken)), r"b\.onnx: onnxruntime cannot open it .*INVALID_PROTOBUF"),
        (replace(spec, path=str(tmp_path)), "there is no such file"),
    ]
    for one, message in wrong:
        with pytest.raises((SpecError, WeightsError), match=message):
            open_teacher(one, student, ("a", "b", "c"), CPU)
    with pytest.raises(SpecError, match=r"teacher\.classes: the teacher has 3 classes without names, the student 2"):
        open_teacher(replace(spec, classes=()), student, ("a", "b"), CPU)


def test_a_file_of_16_bit_floats_is_given_such_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Session):
        def get_inputs(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(**{**vars(one), "type": "tensor(float16)"}) for one in super().get_inputs()]

        def run(self, outputs: list[str], given: dict[str, np.ndarray]) -> list[np.ndarray]:
            assert given["image"].dtype == np.float16
            return [one.astype(np.float16) for one in super().run(outputs, {"image": given["image"].astype(np.float32)})]

    runtime = SimpleNamespace(InferenceSession=Half, get_available_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    (tmp_path / "a.onnx").write_bytes(b"onnx")
    spec = OnnxTeacher(str(tmp_path / "a.onnx"), *IMAGENET, ("a", "b", "c"), 8, output="logits")
    teacher, image = open_teacher(spec, Preprocess(8, 8, *IMAGENET), ("a", "b", "c"), CPU), torch.randn(5, 3, 8, 8)
    assert logits(teacher, image).dtype == torch.float32
    assert torch.allclose(logits(teacher, image), image.mean((2, 3)), atol=2e-3)


def test_the_fingerprint_of_a_file_follows_its_output_and_the_weights_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = SimpleNamespace(InferenceSession=Session, get_available_providers=lambda: ["CPUExecutionProvider"])
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    file = tmp_path / "a.onnx"
    file.write_bytes(b"onnx")
    spec = OnnxTeacher(str(file), *IMAGENET, ("c", "a", "b"), 8, output="logits")

    def opened(one: OnnxTeacher) -> str:
        return open_teacher(one, Preprocess(8, 8, *IMAGENET), ("a", "b", "c"), CPU).fingerprint()

    likely = replace(spec, output="likely")
    found = [opened(one) for one in (spec, replace(spec, output="turned"), likely, replace(likely, gives="probabilities"))]
    assert opened(spec) == found[0]
    (tmp_path / "a.onnx.data").write_bytes(b"weights")
    assert len({*found, opened(spec)}) == 5


def test_without_onnxruntime_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SpecError, match=r"onnxruntime is not installed\. Run: pip install onnxruntime"):
        open_teacher(OnnxTeacher("a.onnx", *IMAGENET), STUDENT, NAMES, CPU)


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_a_real_onnx_file_agrees_with_its_module(tmp_path: Path) -> None:
    for one in ("onnxruntime", "onnx", "onnxscript"):
        pytest.importorskip(one)
    parts = nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, len(NAMES))
    module, file = nn.Sequential(*parts).eval(), tmp_path / "teacher.onnx"
    torch.onnx.export(module, (torch.zeros(2, 3, 64, 64),), str(file), dynamo=True)
    teacher = open_teacher(OnnxTeacher(str(file), HALF.mean, HALF.std, NAMES, interpolation="bilinear"), STUDENT, NAMES, CPU)
    with pytest.raises(
        SpecError, match=r"teacher\.mean: .*teacher.onnx does not say how its pictures are normalized\. Say mean"
    ):
        open_teacher(OnnxTeacher(str(file)), STUDENT, NAMES, CPU)
    image = pictures()
    assert teacher.size == (64, 64) and not teacher.captured
    with torch.no_grad():
        assert torch.allclose(logits(teacher, image), module(teacher.seen(image)), atol=1e-6)


# ------------------------------------------------------------------------------------------------ worth learning from


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "teacher"
    train(recipe("digits.resnet", "epochs=2", "batch=32"), out=out)
    return out


def framed(preprocess: Preprocess) -> Framed:
    return Framed(Digits().open("val", None), preprocess, CPU)


def test_a_run_teaches_a_student_of_other_pictures_and_is_measured_first(digits: Path) -> None:
    small = replace(preprocess_of(recipe("digits.resnet")), height=16, width=16)
    classes = tuple(map(str, range(10)))
    teacher = open_teacher(RunTeacher(str(digits)), small, classes, CPU)
    found = check_teacher(teacher, framed(small), least=50.0)
    assert found.pictures == 500
    assert found.top1 > 60
    assert f"{found.top1:.1f} % of 500 validation pictures right" in found.note
    summary = json.loads((digits / "summary.json").read_text())
    assert own_top1(teacher, framed(small)) == pytest.approx(summary["val_top1"])
    with pytest.raises(SpecError, match=r"asked for are 99\.9 %\. Of pictures framed for it, at 8 x 8 pixels, it gets"):
        check_teacher(teacher, framed(small), least=99.9)


def test_a_teacher_near_chance_is_refused_unless_it_is_let_in(digits: Path) -> None:
    own = preprocess_of(recipe("digits.vit"))
    classes = tuple(map(str, range(10)))
    constant = open_teacher(ReadyTeacher(lambda image: torch.arange(10.0).expand(len(image), 10)), own, classes, CPU)
    with pytest.raises(SpecError, match=r"chance is 10\.0 %\. Are its classes in the order"):
        check_teacher(constant, framed(own))
    assert check_teacher(constant, framed(own), least=0.0).top1 < 12
    wrong = open_teacher(RunTeacher(str(digits)), own, (*classes[1:], "0"), CPU)  # a permutation that the labels do not have
    with pytest.raises(SpecError, match=r"chance is 10\.0 %"):
        check_teacher(wrong, framed(own))


def test_a_teacher_that_says_one_class_to_all_is_refused_and_one_that_is_no_better_told() -> None:
    own, names, labels_N = Preprocess(4, 4, (0.0,), (1.0,)), ("ant", "bee"), np.array([0] * 36 + [1] * 4)
    seen = Framed(
        Arrays(np.arange(40, dtype=np.uint8)[:, None, None].repeat(16, 1).reshape(40, 4, 4), labels_N, names, "x"), own, CPU
    )

    def answering(said_N: Tensor) -> Teacher:
        def answer(image_BCHW: Tensor) -> Tensor:
            return 3.0 * nn.functional.one_hot(said_N[(image_BCHW[:, 0, 0, 0] * 255).round().long()], 2).float()

        return open_teacher(ReadyTeacher(answer), own, names, CPU)

    constant = answering(torch.zeros(40, dtype=torch.long))
    with pytest.raises(SpecError, match=r"says ant to each of 40 validation pictures, which is right for 90\.0 %.*--least 0"):
        check_teacher(constant, seen)
    assert "to say the most frequent class to all would be right for 90.0 %" in check_teacher(constant, seen, least=0.0).note
    one_wrong = torch.from_numpy(labels_N).clone()
    one_wrong[:5] = 1
    assert "most frequent class" in check_teacher(answering(one_wrong), seen).note
    assert "most frequent class" not in check_teacher(answering(torch.from_numpy(labels_N)), seen).note


def test_those_who_answer_together_are_measured_one_by_one(digits: Path) -> None:
    own, classes = preprocess_of(recipe("digits.resnet")), tuple(map(str, range(10)))
    both = open_teacher(Ensemble((RunTeacher(str(digits)), RunTeacher(str(digits), size=16))), own, classes, CPU)
    single = check_teacher(open_teacher(RunTeacher(str(digits)), own, classes, CPU), framed(own)).top1
    assert f"({digits} {single:.1f} %, {digits} " in check_teacher(both, framed(own), least=0.0).note
    turned = RunTeacher(str(digits), classes=(*classes[1:], "0"))  # whose first class is the data's second
    bad = open_teacher(Ensemble((RunTeacher(str(digits)), turned)), own, classes, CPU)
    with pytest.raises(SpecError, match=rf"the teacher, {digits}, gets .* chance is 10\.0 %"):
        check_teacher(bad, framed(own))
    assert f"{digits} {single:.1f} %" in check_teacher(bad, framed(own), least=0.0).note


def test_a_run_may_be_told_the_datas_names_for_its_classes(digits: Path) -> None:
    own, names = preprocess_of(recipe("digits.resnet")), tuple(f"digit {one}" for one in range(10))
    with pytest.raises(SpecError, match=r"teacher\.classes: 2 names for a teacher of 10 classes"):
        open_teacher(RunTeacher(str(digits), classes=("a", "b")), own, names, CPU)
    renamed = RunTeacher(str(digits), classes=names)
    image = torch.randn(3, 1, 8, 8)
    plain = open_teacher(RunTeacher(str(digits)), own, tuple(map(str, range(10))), CPU)
    assert torch.equal(logits(open_teacher(renamed, own, names, CPU), image), logits(plain, image))
    turned = logits(open_teacher(renamed, own, names[::-1], CPU), image)
    assert torch.equal(turned, logits(plain, image).flip(1))


class Working(nn.Module):
    """A network that works on what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 32 * 32, len(NAMES))

    def forward(self, image_BCHW: Tensor) -> Tensor:
        return self.linear(image_BCHW.mul_(2).sub_(1).flatten(1))


def test_a_teacher_that_works_in_place_leaves_the_students_pictures_alone() -> None:
    module = Working().eval()
    for one in (module, lambda image: module(image)):
        teacher, image = open_teacher(one, STUDENT, NAMES, CPU), pictures()
        before = image.clone()
        with torch.no_grad():
            assert torch.equal(logits(teacher, image), module(before.clone()))
        assert torch.equal(image, before)


def test_one_row_for_all_pictures_is_no_answer() -> None:
    teacher = open_teacher(lambda image: torch.arange(5.0)[None], STUDENT, NAMES, CPU)
    with pytest.raises(
        SpecError, match=r"logits of shape \(1, 5\) for 5 classes and 4 pictures\. Return one row of 5 for each"
    ):
        teacher(torch.randn(4, 3, 32, 32))


def test_scripted_modules_teach_and_what_cannot_be_copied_says_what_to_do() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5)).eval()
    image = pictures()
    with pytest.warns(FutureWarning):
        scripted = torch.jit.trace(module, image)
    assert torch.allclose(logits(open_teacher(scripted, STUDENT, NAMES, CPU), image), module(image), atol=1e-5)
    assert all(one.requires_grad for one in module.parameters())
    module.lock = threading.Lock()
    with pytest.raises(SpecError, match=r"Sequential: it cannot be copied .*Give a function that calls it"):
        open_teacher(module, STUDENT, NAMES, CPU)


def right_for(share: float, labels_N: np.ndarray, classes: int) -> tuple[Teacher, Framed]:
    """A teacher that gets that share of the pictures right, whose first pixel is the number of the picture."""
    own, names = Preprocess(4, 4, (0.0,), (1.0,)), tuple(f"class {one}" for one in range(classes))
    number_N = np.arange(len(labels_N), dtype=np.uint8)
    source = Arrays(np.broadcast_to(number_N[:, None, None], (len(labels_N), 4, 4)).copy(), labels_N, names, "numbered")
    said_N = torch.from_numpy(np.where(number_N < share * len(labels_N), labels_N, (labels_N + 1) % classes))

    def answer(image_BCHW: Tensor) -> Tensor:
        number_B = (image_BCHW[:, 0, 0, 0] * 255).round().long()
        return 3.0 * nn.functional.one_hot(said_N[number_B], classes).float()

    return open_teacher(ReadyTeacher(answer), own, names, CPU), Framed(source, own, CPU, batch=8)


@pytest.mark.parametrize(
    ("share", "classes", "pictures", "luck"),
    [(22 / 100, 9, 18, 25.9), (0.56, 2, 200, 57.1), (0.6, 2, 80, 61.2), (0.0, 5, 25, 36.0)],
)
def test_near_chance_is_within_two_standard_errors_of_so_many_pictures(
    share: float, classes: int, pictures: int, luck: float
) -> None:
    teacher, seen = right_for(share, np.arange(pictures) % classes, classes)
    with pytest.raises(SpecError, match=rf"luck may get {luck} % of so many, and chance is {100 / classes:.1f} %") as error:
        check_teacher(teacher, seen)
    assert "--least 0 (train: teaching.least=0; Python: Teaching(..., least=0)) lets it teach" in str(error.value)
    assert check_teacher(teacher, seen, least=0.0).pictures == pictures


@pytest.mark.parametrize(
    ("share", "classes", "pictures"), [(0.58, 2, 200), (0.28, 9, 18), (1.0, 2, 4), (1.0, 2, 5), (0.0, 1, 3)]
)
def test_a_weak_teacher_above_luck_teaches_and_too_few_pictures_refuse_nobody(
    share: float, classes: int, pictures: int
) -> None:
    teacher, seen = right_for(share, np.arange(pictures) % classes, classes)
    assert check_teacher(teacher, seen).pictures == pictures


def test_a_bare_module_or_function_is_a_ready_teacher(classifier: Classifier) -> None:
    module, image = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5)).eval(), pictures()
    for one in (module, lambda given: module(given)):
        assert torch.equal(logits(open_teacher(one, STUDENT, NAMES, CPU), image), module(image))
        assert open_teacher(one, STUDENT, NAMES, CPU).fingerprint() == opened_as(one)
    assert open_teacher(classifier, STUDENT, NAMES, CPU).own == HALF  # no bare module: it says what it takes
    for wrong in ("runs/teacher", nn.Linear, Path("runs/teacher")):
        with pytest.raises(SpecError, match=r"teacher: .* is no teacher\. Give a module or a function .* ReadyTeacher\(module"):
            open_teacher(wrong, STUDENT, NAMES, CPU)  # type: ignore[arg-type]


def opened_as(one: Any) -> str:
    return open_teacher(ReadyTeacher(one), STUDENT, NAMES, CPU).fingerprint()


def test_probabilities_and_nonsense_are_told_from_logits() -> None:
    own = Preprocess(8, 8, (0.5,), (0.5,))
    source = Arrays(np.zeros((4, 8, 8), dtype=np.uint8), np.arange(4), ("a", "b", "c", "d"), "blank")
    few = Framed(source, own, CPU, batch=4)
    likely = open_teacher(ReadyTeacher(lambda image: torch.full((len(image), 4), 0.25)), own, source.classes, CPU)
    with pytest.raises(SpecError, match=r"answers with probabilities\. Say gives=probabilities"):
        check_teacher(likely, few)
    nothing = open_teacher(ReadyTeacher(lambda image: torch.full((len(image), 4), torch.nan)), own, source.classes, CPU)
    with pytest.raises(SpecError, match="no numbers"):
        check_teacher(nothing, few)


def test_descriptions_travel_through_json_and_refuse_nonsense() -> None:
    members = (RunTeacher("a", 64), ZooTeacher("regnety_160"), OnnxTeacher("b.onnx", (0.5,), (0.5,), NAMES, (8, 9)))
    spec = Teaching(Ensemble(members, "mean_probabilities"), least=70.0, classes="included")
    assert decode(json.loads(json.dumps(encode(spec))), Teaching) == spec
    with pytest.raises(SpecError, match="least: 101 %"):
        Teaching(RunTeacher("a"), least=101)
    with pytest.raises(SpecError, match=r"teacher\.size"):
        open_teacher(RunTeacher("a", size="64"), STUDENT, NAMES, CPU)  # type: ignore[arg-type]
