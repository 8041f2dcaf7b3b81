from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.weights.test_timm import lively

import frugalvit
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.errors import FrugalError, SpecError, WeightsError
from frugalvit.nn.model import Model
from frugalvit.nn.readout import MeanLogits, SumSoftmax, fuse
from frugalvit.zoo.change import with_lsa

NAMES = tuple("abcdefghi")
IMAGE = torch.randn(2, 3, 20, 28, generator=torch.Generator().manual_seed(1))


def classifier(model: Model, fusion=MeanLogits()) -> Classifier:
    preprocess = Preprocess(20, 28, (0.5,) * 3, (0.5,) * 3)
    return Classifier(ClassifierSpec(model, preprocess, NAMES, fusion), lively(model.build()))


@pytest.fixture
def saved(tmp_path: Path, toy: Model) -> tuple[Classifier, Path]:
    one = classifier(toy)
    return one, one.save(tmp_path / "saved")


def test_what_was_saved_loads_from_the_folder_and_from_the_file_alone(tmp_path: Path, saved: tuple[Classifier, Path]) -> None:
    one, folder = saved
    alone = tmp_path / "alone.safetensors"
    alone.write_bytes((folder / "model.safetensors").read_bytes())
    for path in (folder, str(folder), folder / "model.safetensors", alone):
        again = frugalvit.load(path)
        assert again.spec == one.spec
        assert not again.training
        torch.testing.assert_close(again(IMAGE), one(IMAGE), atol=0, rtol=0)


def test_it_is_an_ordinary_module_that_returns_logits(toy: Model) -> None:
    one = classifier(toy)
    logits = one(IMAGE)
    assert logits.shape == (2, 9)
    image = IMAGE.clone().requires_grad_()
    torch.nn.functional.cross_entropy(one(image), torch.tensor([1, 2])).backward()
    assert image.grad.abs().sum() > 0
    assert one.classes == NAMES
    torch.testing.assert_close(logits, fuse(one.heads(IMAGE)))
    assert set(one.heads(IMAGE)) == {"class", "distill"}
    assert one.features(IMAGE).shape == (2, 12)


def test_the_rule_of_fusion_is_saved_with_it(tmp_path: Path, toy: Model) -> None:
    one = classifier(toy, SumSoftmax())
    again = frugalvit.load(one.save(tmp_path / "x"))
    assert again.spec.fusion == SumSoftmax()
    probabilities = torch.stack([logits.softmax(-1) for logits in one.heads(IMAGE).values()]).mean(0)
    torch.testing.assert_close(again(IMAGE).softmax(-1), probabilities)


def test_predict_names_the_classes_of_pictures_paths_and_arrays(tmp_path: Path, toy: Model) -> None:
    from PIL import Image as Pillow

    one = classifier(toy)
    arrays = [np.random.default_rng(i).integers(0, 256, (40, 56, 3), dtype=np.uint8) for i in range(3)]
    pictures = [Pillow.fromarray(array) for array in arrays]
    pictures[0].save(tmp_path / "one.png")
    found = one.predict([tmp_path / "one.png", pictures[1], arrays[2]], top=3, batch=2)
    logits = one(torch.stack([one.preprocess(picture) for picture in pictures]))
    for prediction, row in zip(found, logits.softmax(-1), strict=True):
        assert prediction.name == NAMES[row.argmax()]
        assert prediction.probability == pytest.approx(row.max().item(), abs=1e-5)
        assert len(prediction.names) == len(prediction.probabilities) == 3
    assert one.predict(str(tmp_path / "one.png"))[0] == one.predict(tmp_path / "one.png")[0] == one.predict(pictures[0])[0]
    assert one.predict(arrays[0], top=99)[0].names[0] == found[0].name
    assert one.predict([]) == []
    with pytest.raises(SpecError, match="top=0"):
        one.predict(arrays[0], top=0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_whose_logits_are_no_numbers_has_no_answer(toy: Model, value: float) -> None:
    one = classifier(toy)
    torch.nn.init.constant_(next(parameter for name, parameter in one.named_parameters() if name.endswith("class.bias")), value)
    with pytest.raises(WeightsError, match="the model has no answer: not all of its logits are finite"):
        one.predict(np.zeros((20, 28, 3), np.uint8))


def test_predict_leaves_the_mode_as_it_was(toy: Model) -> None:
    one = classifier(toy).train()
    one.predict(np.zeros((20, 28, 3), np.uint8))
    assert one.training


def test_a_mask_of_the_model_is_not_in_the_file(tmp_path: Path, toy: Model) -> None:
    one = classifier(with_lsa(toy))
    again = frugalvit.load(one.save(tmp_path / "x"))
    torch.testing.assert_close(again(IMAGE), one(IMAGE), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").write_text("{"), "config.json: is not JSON"),
        (lambda f: (f / "config.json").write_text('{"format": 99}'), "newer FrugalViT"),
        (lambda f: (f / "config.json").write_text("[]"), "does not hold a JSON object"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors in it"),
        (lambda f: (f / "model.safetensors").write_bytes(b"x" * 30), "cannot be read as .safetensors"),
        (
            lambda f: edit(f, lambda d: d["model"]["tokenizer"].update(dim=24)),
            "layers.0.tokens.class: the file has (1, 1, 12), the model (1, 1, 24)",
        ),
        (
            lambda f: edit(f, lambda d: d["model"].update(layers=d["model"]["layers"][:3])),
            "nothing in the model maps to 'layers.3",
        ),
        (lambda f: edit(f, lambda d: d.update(classes=["a"])), "1 class names for 9 classes"),
        (lambda f: edit(f, lambda d: d["model"]["layers"].append({"part": "Mine"})), "no part is called 'Mine'"),
    ],
)
def test_a_damaged_folder_is_refused_by_name(saved: tuple[Classifier, Path], damage, message: str) -> None:
    folder = saved[1]
    damage(folder)
    with pytest.raises(FrugalError) as error:
        frugalvit.load(folder)
    assert message in str(error.value)
    assert str(folder) in str(error.value)


def edit(folder: Path, change) -> None:
    data = json.loads((folder / "config.json").read_text())
    change(data)
    (folder / "config.json").write_text(json.dumps(data))


def test_foreign_files_are_sent_to_import(tmp_path: Path, toy: Model) -> None:
    from frugalvit.weights.files import write_safetensors

    write_safetensors(tmp_path / "foreign.safetensors", toy.build().state_dict())
    torch.save({}, tmp_path / "foreign.pth")
    for name in ("foreign.safetensors", "foreign.pth"):
        with pytest.raises(WeightsError, match="frugalvit import MODEL"):
            frugalvit.load(tmp_path / name)
    with pytest.raises(WeightsError, match="there is no such file or folder"):
        frugalvit.load(tmp_path / "nothing")


def test_a_folder_of_several_runs_names_them(toy: Model, tmp_path: Path) -> None:
    for name in ("seed-1", "seed-0"):
        classifier(toy).save(tmp_path / "runs" / name)
    with pytest.raises(WeightsError, match=r"runs: holds several runs: seed-0, seed-1\. Give one of these folders"):
        frugalvit.load(tmp_path / "runs")


def test_a_folder_above_the_seeds_of_a_student_names_its_runs(toy: Model, tmp_path: Path) -> None:
    classifier(toy).save(tmp_path / "mine" / "student" / "seed-0")
    with pytest.raises(WeightsError, match=r"mine: holds a run: student/seed-0\. Give that folder"):
        frugalvit.load(tmp_path / "mine")
    classifier(toy).save(tmp_path / "mine" / "teacher")
    with pytest.raises(WeightsError, match=r"mine: holds several runs: student/seed-0, teacher\. Give one of these folders"):
        frugalvit.load(tmp_path / "mine")


def test_a_run_that_is_not_finished_says_how_to_go_on(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    (run / "state").mkdir(parents=True)
    (run / "recipe.json").write_text("{}")
    with pytest.raises(WeightsError, match=r"my run: is a run that is not finished: .* --resume \(in Python, .* to go on\.$"):
        frugalvit.load(run)
    (run / "state" / "step-000000006.safetensors").touch()
    with pytest.raises(WeightsError, match=r"is not finished: .* begin another run .*, with --init '.*my run'\.$"):
        frugalvit.load(run)
    (run / "recipe.json").write_text('{"ready_model": "Net"}')  # whose weights no model of ours would take
    with pytest.raises(WeightsError, match=r"is not finished: .* to go on\.$"):
        frugalvit.load(run)


def test_a_run_of_ones_own_module_says_where_its_weights_are(tmp_path: Path) -> None:
    recipe = frugalvit.recipe("vit.digits", "duration=Steps(2)", "batch=16")
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    frugalvit.train(recipe, out=tmp_path / "run", model=module, device="cpu")
    with pytest.raises(WeightsError, match=r"run: is a run of a module of your own, Sequential") as error:
        frugalvit.load(tmp_path / "run")
    line = str(error.value).partition("model.safetensors: ")[2].rstrip(".")
    other = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    exec(line, {"module": other, "safetensors": safetensors})
    assert torch.equal(other[1].weight, module[1].weight)


def test_class_names_must_be_as_many_as_classes(toy: Model) -> None:
    with pytest.raises(SpecError, match="classes: 9 class names for 8 classes"):
        classifier(replace(toy, classes=8))
