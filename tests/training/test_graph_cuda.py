"""The captured step on CUDA: the losses of the same functions one by one, fall-backs that say why, seeds at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from tests.training.runs import Notes, PressesOnce, StopAt, Stopped, states
from torch import nn

import frugalvit
from frugalvit.data.arrays import Arrays
from frugalvit.nn.foreign import ForeignModel
from frugalvit.nn.shape import image_of
from frugalvit.recipes.find import recipe
from frugalvit.recipes.teach import Way, taught
from frugalvit.report.progress import Silent
from frugalvit.report.record import RunFolder
from frugalvit.run import Run
from frugalvit.training import compiled, graph_step, loop
from frugalvit.training.devices import place_for
from frugalvit.training.prepare import Training, prepare
from frugalvit.training.recipe import Recipe
from frugalvit.training.teacher import RunTeacher, Teaching

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))


def noise(count: int = 512) -> dict[str, Arrays]:
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), np.arange(count) % 10
    return {name: Arrays(images, labels, [str(i) for i in range(10)], "noise") for name in ("train", "val")}


def small(*overrides: str, add: str = "spt+lsa") -> Recipe:
    made = recipe("small.cifar10", f"add={add}", "batch=32", "log_every=1", *overrides)
    return replace(made, model=replace(made.model, layers=made.model.layers[:4]))


def losses(training: Training, count: int = 20) -> list[float]:
    return [one.values["loss"] for one in islice(loop.fit(training.step, training.batches, training.cadence), count)]


@pytest.mark.parametrize("words", ["path=kept", "path=sent", "path=kept data.mix=MixEach()"])
@pytest.mark.parametrize("compiled_from", [0, 10**9], ids=["compiled", "as it is"])
def test_a_captured_step_computes_what_it_is_made_of(words: str, compiled_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "FROM", compiled_from)
    captured, plain = (prepare(small(*words.split(), "passes=4"), noise(), place_for("cuda", "auto")) for _ in range(2))
    assert isinstance(plain.step, graph_step.GraphStep) and isinstance(captured.step, graph_step.GraphStep)
    plain.step.tried = True  # and so never captured
    ours, theirs = losses(captured), losses(plain)
    assert captured.step.graph is not None and not captured.step.notes
    np.testing.assert_allclose(ours, theirs, rtol=0.02)
    assert ours[0] == pytest.approx(theirs[0], rel=2e-3)


def test_what_cannot_be_captured_is_said_and_trained_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    training = prepare(small("path=kept", "passes=4"), noise(), place_for("cuda", "auto"))
    assert isinstance(training.step, graph_step.GraphStep)
    inner = training.step.terms

    def asking(*given: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, terms = inner(*given)
        float(loss)  # waits for the device, which a capture forbids
        return loss, terms

    training.step.terms = asking
    assert len(losses(training, 4)) == 4 and training.step.graph is None
    assert "cannot be captured as a CUDA graph" in training.step.notes[0]


class Mine(nn.Module):
    """A user's; where it asks, it waits for the device, which a capture forbids."""

    def __init__(self, drop: float, asks: Callable[[torch.Tensor], object] = lambda _: None) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 16), nn.Dropout(drop), nn.Linear(16, 10))
        self.asks = asks

    def forward(self, image_BCHW: torch.Tensor) -> torch.Tensor:
        logits_BC: torch.Tensor = self.body(image_BCHW)
        self.asks(logits_BC)
        return logits_BC


@pytest.mark.parametrize("compiled_from", [0, 10**9], ids=["compiled", "as it is"])
@pytest.mark.parametrize(
    ("module", "note"),
    [
        (lambda: Mine(0.0), ""),
        (lambda: Mine(0.5), "the model draws from torch's generators itself"),
        (
            lambda: Mine(0.5, lambda logits_BC: float(logits_BC.detach().sum())),
            "the model draws from torch's generators itself",
        ),
        (lambda: Mine(0.0, lambda logits_BC: float(logits_BC.detach().sum())), "cannot be captured as a CUDA graph"),
        (lambda: ForeignModel("torchvision", "squeezenet1_1", 10, image_of(32, 3)).build(), "generators itself"),
        (lambda: ForeignModel("torchvision", "resnet18", 10, image_of(32, 3)).build(), ""),
    ],
    ids=["draws nothing", "drops", "drops and waits", "waits", "a library's that drops", "a library's"],
)
def test_modules_of_others_are_captured_unless_they_draw_or_wait(
    tmp_path: Path, module: Callable[[], nn.Module], note: str, compiled_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "FROM", compiled_from)
    told, made = Notes(), recipe("small.cifar10", "batch=32", "passes=2", "path=kept")
    run = frugalvit.train(made, model=module(), out=tmp_path / "run", data=noise(), device="cuda", display=told)
    assert np.isfinite(run.summary["val_loss"]) and run.summary["nonfinite"] == 0
    slow = [one for one in told.said if "slower than it could be" in one]
    assert (len(slow) == 1 and note in slow[0]) if note else not slow
    assert "generators" not in note or "torch.compile" not in slow[0]
    assert torch.rand(1, device="cuda").isfinite()  # torch's generator has forgotten the capture


def failing(module: object, example: object) -> NoReturn:
    raise RuntimeError("no compiler here")


def test_a_failing_compiler_is_said_and_gone_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "FROM", 0)
    monkeypatch.setattr(compiled, "OPTIONS", ({"no_such_option": True}, {}))
    training = prepare(small("path=kept", "passes=4"), noise(), place_for("cuda", "auto"))
    assert len(losses(training, 3)) == 3 and isinstance(training.step, graph_step.GraphStep)
    assert training.step.graph is not None and "torch.compile failed" in training.step.notes[0]


def test_where_a_compiler_fails_with_an_option_it_is_left_away(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[compiled.Options] = []
    compiling = compiled.compiled

    def picky(function: Callable[..., Any], options: compiled.Options, *, whole: bool) -> Callable[..., Any]:
        given.append(options)
        if options:
            return torch.compile(function, backend=failing, dynamic=False)
        return compiling(function, options, whole=whole)

    monkeypatch.setattr(compiled, "FROM", 0)
    monkeypatch.setattr(compiled, "compiled", picky)
    training = prepare(small("path=kept", "passes=4"), noise(), place_for("cuda", "auto"))
    assert len(losses(training, 3)) == 3 and isinstance(training.step, graph_step.GraphStep)
    assert training.step.graph is not None and not training.step.notes and given[-1] == {}


def test_seeds_at_once_are_bit_for_bit_what_each_is_alone(tmp_path: Path) -> None:
    made = small("path=kept", "passes=3", "deterministic=true", "evaluate=Epochs(1)")
    runs = frugalvit.train_seeds(made, [0, 1, 2], out=tmp_path / "several", data=noise(), device="cuda")
    for run, seed in zip(runs, (0, 1, 2), strict=True):
        alone = frugalvit.train(replace(made, seed=seed), out=tmp_path / f"alone-{seed}", data=noise(), device="cuda")
        ours, theirs = ((one.path / "model.safetensors").read_bytes() for one in (run, alone))
        assert ours == theirs
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("heard")
def test_seeds_at_once_that_are_interrupted_are_saved_and_end_with_the_bits_of_each_alone(tmp_path: Path) -> None:
    made = small("path=kept", "passes=60", "deterministic=true", "save=Epochs(60)", "keep=1", "average=Ema(0.9)")
    out = tmp_path / "several"
    with pytest.raises(KeyboardInterrupt):
        frugalvit.train_seeds(made, [0, 1, 2], out=out, data=noise(), device="cuda", display=PressesOnce(out, [0, 1, 2]))
    assert [len(states(out / f"seed-{seed}")) for seed in (0, 1, 2)] == [1, 1, 1]
    runs = frugalvit.train_seeds(made, [0, 1, 2], out=out, data=noise(), device="cuda", resume=True)
    for run, seed in zip(runs, (0, 1, 2), strict=True):
        alone = frugalvit.train(replace(made, seed=seed), out=tmp_path / f"alone-{seed}", data=noise(), device="cuda")
        ours, theirs = ((one.path / "model.safetensors").read_bytes() for one in (run, alone))
        assert ours == theirs
    torch.use_deterministic_algorithms(False)


def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    made = small("path=kept", "passes=4", "deterministic=true", "save=Epochs(1)", "average=Ema(0.9)")
    whole = frugalvit.train(made, out=tmp_path / "whole", data=noise(), device="cuda")

    again = interrupted(made, tmp_path / "again", 40)
    ours, theirs = ((one.path / "model.safetensors").read_bytes() for one in (whole, again))
    assert ours == theirs
    torch.use_deterministic_algorithms(False)


def interrupted(made: Recipe, out: Path, step: int) -> Run:
    """A run that was stopped at that step, and then resumed."""
    with pytest.raises(Stopped):
        frugalvit.train(made, out=out, data=noise(), device="cuda", display=StopAt(step))
    return frugalvit.train(made, out=out, data=noise(), device="cuda", resume=True)


def convnet(*overrides: str) -> Recipe:
    return recipe("convnet.cifar10", "width=8", "stages=2", "depth=1", "batch=64", "log_every=1", *overrides)


@pytest.mark.parametrize("optimizer", ["sgd", "muon"])
@pytest.mark.parametrize("compiled_from", [0, 10**9], ids=["compiled", "as it is"])
def test_a_captured_convnet_computes_what_it_is_made_of(
    optimizer: str, compiled_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "FROM", compiled_from)
    made = convnet("passes=4", f"optimizer={optimizer}", "precision=fp32")
    captured, plain = (prepare(made, noise(), place_for("cuda", "fp32")) for _ in range(2))
    assert isinstance(plain.step, graph_step.GraphStep) and isinstance(captured.step, graph_step.GraphStep)
    plain.step.tried = True  # and so never captured
    np.testing.assert_allclose(losses(captured), losses(plain), rtol=0.01)
    assert captured.step.graph is not None and not captured.step.notes
    ours, theirs = captured.step.state.average, plain.step.state.average
    assert ours is not None and theirs is not None
    torch.testing.assert_close(ours.tensors, theirs.tensors, rtol=0.02, atol=5e-3)  # running statistics among them


@pytest.mark.parametrize("compiled_from", [0, 10**9], ids=["compiled", "as it is"])
def test_a_convnet_by_sgd_is_captured_and_resumes_with_the_same_bits(
    tmp_path: Path, compiled_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "FROM", compiled_from)
    made = convnet("passes=4", "deterministic=true", "save=Epochs(1)")
    whole = frugalvit.train(made, out=tmp_path / "whole", data=noise(), device="cuda", display=Told())

    again = interrupted(made, tmp_path / "again", 18)
    ours, theirs = ((one.path / "model.safetensors").read_bytes() for one in (whole, again))
    assert ours == theirs
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("way", ["token", "soft"])
@pytest.mark.parametrize("compiled_from", [0, 10**9], ids=["compiled", "as it is"])
def test_a_student_learns_from_a_convnet_inside_its_graph(
    tmp_path: Path, way: Way, compiled_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    frugalvit.train(convnet("passes=2"), out=tmp_path / "teacher", data=noise(), device="cuda")
    monkeypatch.setattr(compiled, "FROM", compiled_from)
    made = taught(small("path=kept", "passes=4", add="none"), Teaching(RunTeacher(str(tmp_path / "teacher")), 0.0), way)
    run = frugalvit.train(made, out=tmp_path / "student", data=noise(), device="cuda", display=Told())
    assert run.summary["nonfinite"] == 0 and np.isfinite(run.summary["val_loss"])


BITS = {
    "deit": ("binaryvit.cifar10", "rung=deit", "dim=16"),
    "pyramid": ("binaryvit.cifar10", "dim=16"),
    "star": ("binaryvit.cifar10", "rung=star", "dim=16"),
    "activations": ("binaryvit.cifar10", "dim=16", "bits=activations"),
    "real twin": ("binaryvit.cifar10", "dim=16", "bits=none"),
    "convolutions": ("binaryvit.cifar10_reactnet", "model=react_resnet18_32"),
}


@pytest.mark.parametrize("words", BITS.values(), ids=list(BITS))
def test_models_of_one_bit_are_captured_and_learn_from_a_teacher(
    tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    frugalvit.train(convnet("passes=1"), out=tmp_path / "teacher", data=noise(), device="cuda")
    name, *given = words
    made = recipe(name, *given, f"teacher={tmp_path / 'teacher'}", "batch=64", "passes=2", "log_every=1", "path=kept")
    made = replace(made, teaching=replace(made.teaching, least=0.0)) if made.teaching else made
    first = {}
    for how, compiled_from in (("compiled", 0), ("as it is", 10**9)):
        monkeypatch.setattr(compiled, "FROM", compiled_from)
        run = frugalvit.train(made, out=tmp_path / how, data=noise(), device="cuda", display=Told())
        assert run.summary["nonfinite"] == 0 and np.isfinite(run.summary["val_loss"])
        first[how] = RunFolder(run.path).metrics()[0]["gradient_norm"]  # later ones differ: rounding turns signs over
    # pictures that differ by a thousandth turn signs over, too, and move it by a twentieth; gradients of zero, by nearly half
    assert first["compiled"] == pytest.approx(first["as it is"], rel=0.15)


class Told(Silent):
    """A step that falls back says so, which is a failure here."""

    def note(self, text: str) -> None:
        assert "failed" not in text and "cannot be" not in text, text
