"""`frugalvit bench` from the command line, and the comparison with other training loops that stands beside it."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import peer_loops
from rich.console import Console
from tests.test_cli import bad, good, run
from tests.training.runs import TINY

import frugalvit
from frugalvit.beginning import opened
from frugalvit.cli.bench_page import table
from frugalvit.cli.bench_rows import notes_above, notes_on_data
from frugalvit.measure.latency import Speed
from frugalvit.training import throughput
from frugalvit.training.devices import place_for
from frugalvit.training.prepare import prepare
from frugalvit.training.step import Step
from frugalvit.training.waiting import Waiting

MODEL = ("small_vit_32", "depth=1", "dim=24", "heads=2")
DIGITS = ("vit.digits", *TINY)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As `bench` itself chooses for small products of a recipe; what it sets is put back."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def two_threads() -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def small_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules["frugalvit.measure.latency"].SIDE, "cpu", 128)
    monkeypatch.setattr("frugalvit.measure.latency.ROUND", 0.02)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """A folder as CIFAR-10's arrays are, of twenty pictures."""
    draw = np.random.default_rng(0)
    for split, count in (("train", 20), ("test", 10)):
        np.save(tmp_path / f"{split}_images.npy", draw.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8))
        np.save(tmp_path / f"{split}_labels.npy", np.arange(count) % 10)
    return tmp_path


def test_a_model_predicts_and_trains() -> None:
    found = json.loads(good("bench", *MODEL, "--batch", "3", "--steps", "1", "--device", "cpu", "--json"))
    assert [(row["what"], row["batch"]) for row in found["rows"]] == [("inference", 1), ("inference", 3), ("training", 3)]
    costs = frugalvit.cost(frugalvit.model(*MODEL))
    assert (found["kind"], found["parameters"], found["macs"]) == ("model", costs.parameters, costs.macs)
    for row, passes in zip(found["rows"], (1, 1, 3), strict=True):
        assert row["ms_p10"] <= row["ms"] <= row["ms_p90"]
        assert row["images_per_second"] == pytest.approx(1e3 * row["batch"] / row["ms"])
        assert row["share_of_peak"] == pytest.approx(row["images_per_second"] * costs.macs * passes * 2 / found["peak_flops"])
        assert (row["rounds"], row["steps"], row["waiting"]) == (5, 1, None)
    environment = found["environment"]
    assert (environment["device"], environment["precision"], environment["threads"]) == ("cpu", "fp32", 1)
    assert environment["device_name"] and environment["packages"]["torch"] and "commit" in environment


def test_bits_that_are_simulated_are_said() -> None:
    said = "Its parts of one bit are simulated in floats here."
    for words in ((f"{MODEL[0]}+binarized", *MODEL[1:]), ("binaryvit.digits", "dim=8")):
        found = json.loads(good("bench", *words, "--batch", "1", "--steps", "1", "--device", "cpu", "--json"))
        assert sum(note.startswith(said) for note in found["notes"]) == 1
    found = json.loads(good("bench", *MODEL, "--batch", "1", "--steps", "1", "--device", "cpu", "--json"))
    assert not any(said in note for note in found["notes"])


def test_a_batch_of_one_is_predicted_once() -> None:
    found = json.loads(good("bench", *MODEL, "--batch", "1", "--steps", "1", "--json", "--quiet"))
    assert [row["what"] for row in found["rows"]] == ["inference", "training"]


def test_a_recipe_is_measured_with_and_without_its_data() -> None:
    done = run("bench", *DIGITS, "--batch", "16", "--steps", "2", "--json")
    found = json.loads(done.stdout)
    assert (found["kind"], found["batch"], found["workers"]) == ("recipe", 16, 0)
    synthetic, fed, predicting = found["rows"]
    assert [row["what"] for row in found["rows"]] == ["synthetic", "with data", "inference"]
    assert synthetic["waiting"] is predicting["waiting"] is None and 0 < fed["waiting"] < 1
    assert synthetic["first_step_s"] > 0 and fed["first_step_s"] is None
    assert "of the synthetic speed" in found["notes"][0] and "of the time is spent waiting for data" in found["notes"][1]
    assert done.stderr.splitlines() == [line for line in done.stderr.splitlines() if "batch 16: " in line] != []


@pytest.mark.parametrize(
    ("workers", "share", "said"),
    [
        (1, 0.04, "4% of the time is spent waiting for data."),
        (1, 0.4, "40% of the time is spent waiting for data: use --workers 3."),
        (3, 0.4, "40% of the time is spent waiting for data: use fewer augmentations or a machine with more cores."),
    ],
)
def test_who_waits_for_data_is_advised_as_in_training(
    workers: int, share: float, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frugalvit.training.waiting.usable_cores", lambda: 3)
    made = frugalvit.recipe(*DIGITS, "batch=16")
    training = prepare(made, opened(made, None), place_for("cpu", "fp32"))
    still, fed = Speed("synthetic", 16, 1, None, (0.1,)), Speed("with data", 16, 1, None, (0.2,), (share,))
    assert notes_on_data(still, fed, Waiting(training, workers)) == ["With data it runs at 50% of the synthetic speed.", said]


def test_the_path_that_pictures_took_is_told_beside_the_table(tmp_path: Path) -> None:
    out = tmp_path / "bench.md"
    words = ("--batch", "4", "--steps", "1", "--device", "cpu", "--quiet")
    first, *_ = good("bench", *DIGITS, *words, "--out", str(out)).splitlines()
    assert ", fp32, path=plain, torch " in first and ", fp32, path=plain, torch " in out.read_text()
    assert "path=" not in good("bench", *MODEL, *words)


@pytest.mark.parametrize(("tune", "passes"), [("Everything()", 3), ("HeadsOnly()", 1)])
def test_a_recipe_is_told_its_share_of_the_peak_and_predicts(tune: str, passes: int) -> None:
    words = ("batch=4", "accumulate=2", f"tune={tune}", "deterministic=true")
    found = json.loads(good("bench", *DIGITS, *words, "--steps", "1", "--json", "--quiet"))
    costs = frugalvit.cost(frugalvit.recipe(*DIGITS, "model.classes=10").model)
    assert (found["parameters"], found["macs"]) == (costs.parameters, costs.macs)
    assert [row["batch"] for row in found["rows"]] == [8, 8, 4]
    for row, taken in zip(found["rows"], (passes, passes, 1), strict=True):
        assert row["share_of_peak"] == pytest.approx(row["images_per_second"] * costs.macs * taken * 2 / found["peak_flops"])
    assert f"training counts {'three forward passes' if passes == 3 else 'one forward pass'}." in found["notes"][-1]


@pytest.mark.usefixtures("two_threads")
def test_the_threads_told_are_those_that_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    measured = throughput.speeds

    def watched(*given: Any, **named: Any) -> Iterator[Speed]:
        seen.append(torch.get_num_threads())
        return measured(*given, **named)

    monkeypatch.setattr(throughput, "speeds", watched)
    for words, threads, told in ((DIGITS, 1, "(cpu, 1 thread)"), (MODEL, 2, "(cpu, 2 threads)")):
        out = tmp_path / f"{words[0]}.json"
        assert told in good("bench", *words, "--batch", "1", "--steps", "1", "--device", "cpu", "--quiet", "--out", str(out))
        assert json.loads(out.read_text())["environment"]["threads"] == threads == seen[-1]
    assert torch.get_num_threads() == 2


def test_the_precision_told_is_that_of_the_training() -> None:
    words = ("binaryvit.digits", "dim=8", "precision=bf16", "--batch", "1", "--steps", "1", "--device", "cpu")
    found = json.loads(good("bench", *words, "--json", "--quiet"))
    assert found["environment"]["precision"] == "fp32, products of signs in bf16"
    assert any("a matrix product in bf16 measured" in note for note in found["notes"])


def test_a_recipe_predicts_in_its_precision_when_the_memory_of_its_training_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[weakref.ref[Step]] = []
    seen: list[tuple[Any, ...]] = []
    build, predict = Step.__init__, throughput.inference_speeds

    def watched(self: Step, *given: Any) -> None:
        build(self, *given)
        steps.append(weakref.ref(self))

    def predicted(module: Any, batch: int, device: torch.device, precision: torch.dtype, **named: Any) -> Iterator[Speed]:
        seen.append((steps[0](), batch, precision, module.stream))
        return predict(module, batch, device, precision, **named)

    monkeypatch.setattr(Step, "__init__", watched)
    monkeypatch.setattr(throughput, "inference_speeds", predicted)
    good("bench", *DIGITS, "precision=bf16_stream", "--batch", "4", "--steps", "1", "--device", "cpu", "--quiet")
    assert seen == [(None, 4, torch.bfloat16, torch.bfloat16)]


def test_without_data_the_step_alone_is_measured_and_it_says_so() -> None:
    text = good("bench", "small.cifar10", "--batch", "2", "--steps", "1", "--quiet")
    assert "No data: its step was measured on noise alone. Say --data PATH" in text
    assert "synthetic" in text and "inference" in text and "with data" not in text
    few = ("transfer.folder", "model=deit_tiny_patch16_224", "image=32", "patch=16", "--batch", "2", "--steps", "1")
    assert "decoded on the way are measured on files. Say --data PATH" in bad("bench", *few, "path=decoded", "--quiet")


@pytest.mark.parametrize("words", [("batch=1100",), ("data.validate=test",), ("stop=EarlyStop",)], ids=str)
def test_what_wants_more_pictures_or_splits_than_noise_has_is_measured_on_noise(words: tuple[str, ...]) -> None:
    sizes = ("dim=8", "depth=1") if words == ("batch=1100",) else ("dim=8", "depth=1", "batch=8")
    assert "synthetic" in good("bench", "vit.digits", *sizes, *words, "--steps", "1", "--device", "cpu")


def test_given_data_are_read(arrays: Path) -> None:
    found = json.loads(good("bench", "small.cifar10", "batch=2", "--data", str(arrays), "--steps", "1", "--json"))
    assert [row["what"] for row in found["rows"]] == ["synthetic", "with data", "inference"]


def test_the_table_fits_a_terminal_and_quiet_is_quiet() -> None:
    done = run("bench", *MODEL, "--batch", "2", "--steps", "1", "--quiet", env={"COLUMNS": "80"})
    lines = done.stdout.splitlines()
    assert done.stderr == ""
    assert len(lines) == 6 and lines[0].startswith("small_vit_32")
    assert [line.split()[0] for line in lines[2:5]] == ["inference", "inference", "training"]
    assert "parameters" in lines[5] and "measured in this run" in lines[5]


def test_the_table_of_a_slow_recipe_fits_a_terminal() -> None:
    slow = {"batch": 128, "images_per_second": 30.3, "ms": 4229, "ms_p10": 3942, "ms_p90": 4299, "waiting": 0.03}
    slow |= {"share_of_peak": 0.521, "peak_memory_bytes": 2**31, "first_step_s": 12.5}
    console = Console(width=80)
    with console.capture() as shown:
        console.print(table([{"what": what, **slow} for what in ("synthetic", "with data", "inference")]))
    assert len(shown.get().splitlines()) == 4


@pytest.mark.parametrize("ending", ["json", "md"])
def test_what_is_found_is_written_to_a_file_that_is_not_there_yet(tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"bench.{ending}"
    words = ("bench", *DIGITS, "--steps", "1", "--quiet", "--out", str(out))
    good(*words)
    text = out.read_text()
    if ending == "json":
        assert json.loads(text)["name"] == "vit.digits"
    else:
        assert text.startswith(f"# {' '.join(DIGITS)}\n")
        assert "| synthetic | 32 |" in text and "commit" in text
    assert "nothing is overwritten" in bad(*words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("vit.digitz",), "no recipe is called 'vit.digitz'. Did you mean 'vit.digits'?"),
        (("deit_tiny_patch16",), "no model is called 'deit_tiny_patch16'. Did you mean 'deit_tiny_patch16_224'"),
        (("small",), "Did you mean 'small_cait' or 'small_cait_32' or 'small_cait_64'? No recipe is called so either."),
        (("small",), "No recipe is called so either. Did you mean 'small.best_cifar10' or 'small.cifar10' or"),
        (("nope",), "`frugalvit list models` and `frugalvit list recipes` show all."),
        (("runs/none",), "runs/none: there is no such folder or file."),
        (("vit.digits", "dimm=3"), "vit.digits: there is no parameter 'dimm'. Did you mean 'dim'?"),
        (("nowhere.runs:night",), "'nowhere.runs' cannot be imported"),
        (("vit.digits", "--steps", "0"), "--steps"),
        (("vit.digits", "--batch", "0"), "--batch"),
        (("vit.digits", "--data", "."), "the digits come with the package"),
        (("small.cifar10", "--data", "nowhere"), "there is no such file or folder"),
        ((*MODEL, "--data", "."), "--data: a model is measured on noise"),
        ((*MODEL, "--out", "bench.txt"), "'.txt' is no ending of a report. Use .json or .md."),
        ((*MODEL, "--batch", "1000000000000", "--quiet"), "does not fit into the memory of cpu. Try --batch 500000000000."),
    ],
    ids=str,
)
def test_mistakes_end_in_one_message(words: tuple[str, ...], message: str) -> None:
    assert message in bad("bench", *words, "--device", "cpu")


# ------------------------------------------------------------------------------------------------ other loops


def test_our_loop_runs_beside_others(arrays: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["vit:spt+lsa", "--data", str(arrays), "--batch", "4", "--workers", "0", "--steps", "1", "--rounds", "2"]
    out = arrays / "results"
    monkeypatch.setenv("FRUGALVIT_CACHE", str(arrays / "cache"))
    monkeypatch.setattr(sys, "argv", ["peer_loops.py", *words, "--device", "cpu", "--out", str(out)])
    peer_loops.main()
    (row,) = json.loads((out / "peer_loops.json").read_text())["rows"]
    assert (row["model"], row["batch"], row["rounds"]) == ("vit:spt+lsa", 4, 2)
    assert set(row["loops"]) == {peer_loops.OURS, *row["ratios"]} and len(row["ratios"]) == 2
    for ratio in row["ratios"].values():
        assert 0 < ratio["lowest"] <= ratio["ratio"] <= ratio["highest"]
    page = (out / "peer_loops.md").read_text()
    assert all(name in page for name in row["loops"]) and page in capsys.readouterr().out
    assert row["where"]["device"] and row["where"]["workers"] == 0


def test_more_than_the_peak_is_explained() -> None:
    (note,) = notes_above([{"share_of_peak": 0.5}, {"share_of_peak": 1.25}])
    assert note.startswith("More than the peak") and notes_above([{"share_of_peak": 0.9}]) == []
