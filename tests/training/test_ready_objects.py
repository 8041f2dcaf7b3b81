"""Models, data and objectives that are ready objects of the user's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from tests.training.runs import StopAt, Stopped, column, tiny, trace
from torch import nn

import frugalvit
from frugalvit.data.arrays import Arrays
from frugalvit.errors import DataError, SpecError
from frugalvit.report.record import RunFolder
from frugalvit.run import train


def linear() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def stripes(count: int, seed: int) -> Arrays:
    """Horizontal against vertical."""
    labels = np.arange(count) % 2
    images_NHW = np.random.default_rng(seed).integers(0, 60, (count, 8, 8)).astype(np.uint8)
    images_NHW[labels == 0, ::2] += 180
    images_NHW[labels == 1, :, ::2] += 180
    return Arrays(images_NHW, labels, ["across", "down"], "stripes")


def test_a_plain_module_that_returns_logits_is_trained_and_saved(tmp_path: Path) -> None:
    module = linear()
    before = module[1].weight.detach().clone()
    done = train(tiny("optimizer.lr=0.01"), out=tmp_path / "run", model=module, device="cpu")
    assert done.classifier is None
    assert done.summary["val_top1"] > 40
    assert not torch.equal(module[1].weight, before)
    saved = safetensors.torch.load_file(tmp_path / "run" / "model.safetensors")
    assert set(saved) == {"1.weight", "1.bias"}
    assert RunFolder(tmp_path / "run").recipe()["ready_model"] == "Sequential"


def test_a_plain_module_resumes_to_the_same_bits(tmp_path: Path) -> None:
    train(tiny(), out=tmp_path / "whole", model=linear(), device="cpu")
    with pytest.raises(Stopped):
        train(tiny(), out=tmp_path / "run", model=linear(), device="cpu", display=StopAt(12))
    train(tiny(), out=tmp_path / "run", model=linear(), device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")
    with pytest.raises(DataError, match="ready_model was 'Sequential', now 'absent'"):
        train(tiny(), out=tmp_path / "run", device="cpu", resume=True)


def test_counts_in_a_module_of_ones_own_are_resumed_too(tmp_path: Path) -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm2d(1), linear())

    train(tiny(), out=tmp_path / "whole", model=normed(), device="cpu")
    with pytest.raises(Stopped):
        train(tiny(), out=tmp_path / "run", model=normed(), device="cpu", display=StopAt(12))
    train(tiny(), out=tmp_path / "run", model=normed(), device="cpu", resume=True)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


def test_a_ready_vision_transformer_brings_its_own_description(tmp_path: Path) -> None:
    spec = tiny("dim=8", "model.classes=10").model
    done = train(tiny(), out=tmp_path / "run", model=spec.build(seed=5), device="cpu")
    assert done.classifier is not None
    assert done.classifier.spec.model == spec
    assert frugalvit.load(tmp_path / "run").spec.model == spec
    with pytest.raises(SpecError, match=r"recipe\.model\.classes: the model has 7 classes, the data 10"):
        train(tiny(), out=tmp_path / "seven", model=tiny("model.classes=7").model.build(), device="cpu")
    assert not (tmp_path / "seven").exists()


def test_ready_sources_are_trained_on_and_the_test_split_is_read_at_the_end(tmp_path: Path) -> None:
    data = {"train": stripes(96, 0), "val": stripes(20, 1), "test": stripes(30, 2)}
    made = tiny("data.subset=none", "epochs=20", "average=none", "lr=0.02", "dim=32")
    done = train(made, out=tmp_path / "run", data=data, device="cpu")
    assert (done.summary["val_pictures"], done.summary["test_pictures"]) == (20, 30)
    assert done.summary["test_top1"] > 90
    assert done.classifier is not None
    assert done.classifier.classes == ("across", "down")


def test_without_validation_only_the_losses_are_logged(tmp_path: Path) -> None:
    done = train(tiny("data.subset=none"), out=tmp_path / "run", data={"train": stripes(96, 0)}, device="cpu")
    assert "val_top1" not in done.summary
    assert column(tmp_path / "run", "val_top1") == []
    assert len(column(tmp_path / "run", "loss")) > 3


def test_the_first_classes_are_those_of_the_test_split_too(tmp_path: Path) -> None:
    made = tiny("data.subset=FirstClasses(4)", "duration=Steps(4)", "data.dataset=Digits")
    done = train(made, out=tmp_path / "run", device="cpu")
    assert done.classifier is not None
    assert done.classifier.classes == tuple("0123")
    assert done.summary["val_pictures"] < 250
    assert "test_top1" not in done.summary  # the digits' test split is their val split


class Margin(nn.Module):
    """An objective with a parameter of its own, which is trained and saved along."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: dict[str, torch.Tensor], batch: object) -> dict[str, torch.Tensor]:
        loss = nn.functional.cross_entropy(self.scale * outputs["class"], batch.label_B)  # type: ignore[attr-defined]
        return {"margin": loss, "cost": 0.01 * self.scale.square()}


def test_an_objective_of_ones_own_is_minimized_and_resumed(tmp_path: Path) -> None:
    whole, first, second = Margin(), Margin(), Margin()
    train(tiny(), out=tmp_path / "whole", objective=whole, device="cpu")
    with pytest.raises(Stopped):
        train(tiny(), out=tmp_path / "run", objective=first, device="cpu", display=StopAt(12))
    train(tiny(), out=tmp_path / "run", objective=second, device="cpu", resume=True)
    assert whole.scale != 1
    assert torch.equal(whole.scale, second.scale)
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")
    row = RunFolder(tmp_path / "run").metrics()[-1]
    assert row["loss"] == pytest.approx(row["margin"] + row["cost"], rel=1e-5)
