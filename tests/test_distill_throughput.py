"""The distillation benchmark at toy size on the CPU: that both sides minimize the same, and what it writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from benchmarks import distill_throughput
from benchmarks.distill_throughput import CLASSES, Case, opened, our_loss, timm_loss, timm_student

import frugalvit
from frugalvit.weights.load import load_weights

STUDENT = "deit_tiny_distilled_patch16_224"
CASE = Case(STUDENT, "resnet18", 3, "off", 32, "contiguous", torch.device("cpu"))


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """What the script sets for the whole process is put back."""
    threads, precision, benchmark = (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.benchmark,
    )
    limit = torch._dynamo.config.recompile_limit
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = benchmark
    torch._dynamo.config.recompile_limit = limit


@pytest.mark.parametrize("form", distill_throughput.FORMS)
def test_both_sides_minimize_the_same(form: str) -> None:
    """In fp32, with heads so large that leaving a term out, or another label of the teacher, would show."""
    case = replace(CASE, rounded="fp32")
    theirs = timm_student(case, drop_path=0.0)
    tutor = timm.create_model("resnet18", num_classes=CLASSES)
    with torch.no_grad():
        theirs.head.weight.normal_(0, 0.5)
        theirs.head_dist.weight.normal_(0, 0.5)
        tutor.fc.bias.normal_(0, 9)  # a clear favorite, whatever the rounding
    ours = frugalvit.model(STUDENT, image=32, classes=CLASSES).build().train()
    network = frugalvit.model("resnet18", image=32, classes=CLASSES).build()
    load_weights(ours, dict(theirs.state_dict()), "timm")
    load_weights(network, dict(tutor.state_dict()), "timm")
    image_BCHW, target_BC = torch.randn(3, 3, 32, 32), torch.randn(3, CLASSES).mul(3).softmax(1)
    expected = timm_loss(case, theirs, tutor)(image_BCHW, target_BC)
    teacher = opened(case, network, form)
    for way in ("graph", "fork"):
        found = our_loss(case, ours, teacher, way)(image_BCHW, target_BC)
        assert found.item() == pytest.approx(expected.item(), rel=1e-4)
    expected.backward()
    found.backward()
    for name, parameter in (("class", theirs.head.weight), ("distill", theirs.head_dist.weight)):
        gradient = ours.readout.heads[name].weight.grad
        assert (gradient - parameter.grad).norm() < 1e-3 * parameter.grad.norm()


def written(out: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, Any]]:
    """The rows that a run of the script leaves."""
    short = ("--before", "1", "--rounds", "2", "--steps", "1", "--student", STUDENT, "--image", "32", "--device", "cpu")
    monkeypatch.setattr(sys, "argv", ["script.py", *words, *short, "--commit", "abc1234", "--out", str(out)])
    distill_throughput.main()
    file = out / "distill_throughput.json"
    return json.loads(file.read_text())["rows"] if file.exists() else []


def test_steps_are_timed_beside_timms_and_earlier_rows_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, monkeypatch, "resnet18:2:off", "--ways", "plain")
    words = ("--ways", "stream", "--teachers", "timm", "--forms", "given", "--layout", "channels_last")
    rows = written(tmp_path, monkeypatch, "resnet18:3:off", *words)
    names = ("teacher", "batch", "whose", "form", "way", "layout")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("resnet18", 2, "own", "quick", "plain", "contiguous"),
        ("resnet18", 3, "timm", "given", "stream", "channels_last"),
    ]
    for row in rows:
        assert 0 < row["lowest"] <= row["ratio"] <= row["highest"]
        assert row["rounds"] == 2 and row["where"]["commit"] == "abc1234" and row["where"]["steps_per_round"] == 1
    page = (tmp_path / "distill_throughput.md").read_text()
    assert f"| {STUDENT} | resnet18 | off | timm | given | stream | 3 |" in page
    assert "\n2. " in page and "(channels_last), commit abc1234, 2 rounds of 1 steps" in page
    assert page in capsys.readouterr().out


def test_warming_up_writes_nothing_and_an_unknown_word_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written(tmp_path / "none", monkeypatch, "resnet18:2:off", "--warm", "ours", "--ways", "graph") == []
    assert not (tmp_path / "none").exists()
    with pytest.raises(SystemExit):
        written(tmp_path, monkeypatch, "resnet18:2:hole")
    assert "'hole' is none of whole, layers, eager, off" in capsys.readouterr().err


def test_the_default_teachers_are_models_of_both_sides() -> None:
    for item in distill_throughput.DEFAULT:
        teacher, batch, compiled = item.split(":")
        assert teacher in timm.list_models() and int(batch) > 1 and compiled in distill_throughput.COMPILED
        assert frugalvit.model(teacher).classes == CLASSES
    assert set(frugalvit.model(distill_throughput.STUDENT).heads) == {"class", "distill"}
