"""The scripts in benchmarks/ that are meant for a GPU, at toy size on the CPU: what they write, and how they judge."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks import (
    gpu_bits,
    gradient_agreement,
    inference_throughput,
    loss_agreement,
    photo_paths,
    seeds_at_once,
    short_attention,
    small_table,
)

import attention_ways
import frugalvit
import script
import ways
from frugalvit.errors import FrugalError
from frugalvit.nn.attention import MultiHead
from frugalvit.nn.attention_paths import LONGEST, LONGEST_LSA, WIDEST, width_of
from frugalvit.nn.mlp import TwoLayers
from frugalvit.nn.score import HiddenDiagonal, LearnedTemperature
from frugalvit.nn.shape import Image


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """What the scripts set for the whole process is put back."""
    threads, precision, tf32 = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = tf32


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FRUGALVIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "results"


def written(script: ModuleType, out: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[dict[str, Any]]:
    """The rows that a run of the script leaves."""
    monkeypatch.setattr(sys, "argv", ["script.py", *words, "--device", "cpu", "--commit", "abc1234", "--out", str(out)])
    script.main()
    name = script.__name__.rpartition(".")[2]
    return json.loads((out / f"{name}.json").read_text())["rows"]


# ------------------------------------------------------------------------------------------------ inference


def test_inference_is_timed_beside_timm_and_earlier_rows_stay(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = ("--compile", "off", "--steps", "1", "--warm", "1")
    written(inference_throughput, out, monkeypatch, "deit_tiny_patch16_224:2", *short, "--rounds", "1")
    rows = written(inference_throughput, out, monkeypatch, "deit_tiny_patch16_224:1", *short, "--rounds", "2")
    assert [(row["model"], row["batch"], row["rounds"]) for row in rows] == [
        ("deit_tiny_patch16_224", 2, 1),
        ("deit_tiny_patch16_224", 1, 2),
    ]
    for row in rows:
        assert 0 < row["lowest"] <= row["ratio"] <= row["highest"]
        for side in ("timm", "frugalvit"):
            assert row[side] == pytest.approx(1e3 * row["batch"] / row[f"{side}_ms"], abs=0.6)
        where = row["where"]
        assert where["device"] and where["torch"] == torch.__version__ and where["timm"]
        assert (where["commit"], where["compile"], where["steps_per_round"]) == ("abc1234", "off", 1)
    page = (out / "inference_throughput.md").read_text()
    assert page.count("| deit_tiny_patch16_224 | 1 |") == 2 and "| 2 x 1 | off |" in page
    assert page in capsys.readouterr().out


def test_the_models_compared_are_models_of_both_sides() -> None:
    known = set(inference_throughput.timm.list_models())
    for item in inference_throughput.DEFAULT:
        name, batch = item.split(":")
        assert name in known and int(batch) > 1
        assert frugalvit.model(name).classes == 1000


# ------------------------------------------------------------------------------------------------ the loss


def test_losses_of_a_model_and_of_the_small_recipe_are_compared_with_plain(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("small_vit_32:3", "vit:spt+lsa:4", "--steps", "2", "--pictures", "8")
    words += ("--ways", "kernels,stream,graph,nudged_1,nudged_3")
    model, small = written(loss_agreement, out, monkeypatch, *words)
    assert [(row["model"], row["batch"]) for row in (model, small)] == [("small_vit_32", 3), ("vit:spt+lsa", 4)]
    assert set(model["skipped"]) == {"kernels"} and set(small["skipped"]) == {"kernels", "graph"}
    for row in (model, small):
        ways = ["fp32", "nudged_1", "nudged_3", "stream"]
        assert [(one["way"], one["against"]) for one in row["differences"]] == [(way, "plain") for way in ways]
        yardstick, *nudged, stream = row["differences"]
        assert nudged[0]["mean"] != nudged[1]["mean"]
        thrown = (nudged[0]["mean"] + nudged[1]["mean"]) / 2
        assert 0 < thrown < 0.1 and stream["nudged_ratio"] == pytest.approx(stream["mean"] / thrown, rel=0.01, abs=1e-3)
        assert yardstick["ratio"] == 1.0 and 0 < yardstick["mean"] <= yardstick["largest"] < 0.5
        assert stream["ratio"] == pytest.approx(stream["mean"] / yardstick["mean"], rel=0.01, abs=1e-3)
        assert (row["steps"], row["pictures"]) == (2, 8)
        assert row["where"]["device"] and row["where"]["data"] == "synthetic" and row["where"]["commit"] == "abc1234"
    page = (out / "loss_agreement.md").read_text()
    assert "graph: graphs need CUDA" in page and page in capsys.readouterr().out
    logged = [json.loads(line) for line in (out / "loss_agreement_logs" / "vit-spt-lsa-4.jsonl").read_text().splitlines()]
    assert [(one["way"], len(one["losses"])) for one in logged] == [(way, 2) for way in ("plain", *ways)]
    assert small["ways"]["plain"]["last"] == pytest.approx(logged[0]["losses"][1], abs=1e-5)
    calm = ("small_vit_32:3", "vit:spt+lsa:4", "--steps", "2", "--pictures", "8", "--ways", "plain", "--rate", "1e-6")
    *before, still, quiet = written(loss_agreement, out, monkeypatch, *calm)
    assert before == [model, small] and (out / "loss_agreement_logs" / "vit-spt-lsa-4-1e-06.jsonl").exists()
    for slow, fast in ((still, model), (quiet, small)):  # the first loss is of the same weights; only the fast one moves
        assert slow["rate"] == 1e-6 and slow["ways"]["plain"]["last"] != fast["ways"]["plain"]["last"]
    assert "| small_vit_32, rate 1e-06 | 3 | plain |" in (out / "loss_agreement.md").read_text()


def test_losses_of_a_compiled_step_are_compared_with_plain(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []

    def compiled(function: Any, *, fullgraph: bool, dynamic: bool, options: Any) -> Any:
        taken.append(fullgraph)
        return function

    monkeypatch.setattr("torch.compile", compiled)  # a minute of compiling
    words = ("vit:spt+lsa:4", "--steps", "2", "--pictures", "8", "--ways", "compiled")
    (row,) = written(loss_agreement, out, monkeypatch, *words)
    assert set(row["ways"]) == {"plain", "fp32", "compiled"} and len(taken) == 2


def test_the_verdict_is_the_distance_in_units_of_that_of_fp32() -> None:
    curves = {"plain": [3.0, 2.0, 1.0], "fp32": [3.0, 2.5, 1.25], "kernels": [3.25, 1.5, 0.25], "graph": [3.25, 1.5, 0.25]}
    found = {(one["way"], one["against"]): one for one in loss_agreement.differences(curves)}
    yardstick, kernels = found["fp32", "plain"], found["kernels", "plain"]
    assert [yardstick[name] for name in ("mean", "median", "largest", "ratio", "median_ratio")] == [0.25, 0.25, 0.5, 1.0, 1.0]
    assert [kernels[name] for name in ("mean", "median", "largest", "ratio", "median_ratio")] == [0.5, 0.5, 0.75, 2.0, 2.0]
    assert (found["graph", "plain"]["ratio"], found["graph", "kernels"]["ratio"]) == (2.0, 0.0)
    assert kernels["nudged_ratio"] is None
    curves |= {"nudged_1": [3.5, 2.0, 1.0], "nudged_2": [3.0, 2.0, 0.0]}  # 1/6 and 1/3 from plain
    found = {(one["way"], one["against"]): one for one in loss_agreement.differences(curves)}
    assert found["kernels", "plain"]["nudged_ratio"] == 2.0


def test_a_nudge_moves_every_weight_and_none_by_more_than_rounding_may() -> None:
    module, whole = (frugalvit.model("small_vit_32").build(seed=0) for _ in range(2))
    ways.nudge(module, 1)
    for moved, weight in zip(module.parameters(), whole.parameters(), strict=True):
        bits = weight.detach().abs().view(torch.int32) & 0x7F800000  # the power of two at or below it
        step = bits.view(torch.float32) * 2.0**-7
        assert torch.all((moved - weight).abs() <= step / 2)
        assert not weight.any() or ((moved != weight) | (weight == 0)).float().mean() > 0.99


def test_gradients_are_compared_with_those_of_fp32_at_the_start_and_later(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("small_vit_32:3", "--steps", "3", "--pictures", "8", "--batches", "2", "--ways", "kernels,stream,graph")
    (row,) = written(gradient_agreement, out, monkeypatch, *words)
    assert list(row["distances"]) == ["start", "after 3 steps"]
    for of in row["distances"].values():
        assert list(of) == ["plain", "stream"]
        for way in ("plain", "stream"):
            assert 0 < of[way]["bias"] <= 1.5 * of[way]["error"] < 0.1
    assert row["distances"]["start"]["plain"] != row["distances"]["after 3 steps"]["plain"]  # of other weights
    page = (out / "gradient_agreement.md").read_text()
    assert page in capsys.readouterr().out and "| small_vit_32 | start | plain |" in page and "| fp32 |" not in page
    with pytest.raises(SystemExit):
        written(gradient_agreement, out, monkeypatch, "vit:none:128")


def test_rounding_cancels_in_the_mean_of_gradients_and_a_mistake_does_not() -> None:
    right = [torch.randn(4000, generator=torch.Generator().manual_seed(seed)) for seed in range(16)]
    noise = [0.01 * torch.randn(4000, generator=torch.Generator().manual_seed(100 + seed)) for seed in range(16)]
    shared = torch.randn(4000, generator=torch.Generator().manual_seed(7))
    rounded = gradient_agreement.distances([one + other for one, other in zip(right, noise, strict=True)], right)
    wrong = gradient_agreement.distances([one + 0.01 * shared for one in right], right)
    assert rounded["error"] == pytest.approx(0.01, rel=0.05) and wrong["error"] == pytest.approx(0.01, rel=0.05)
    assert rounded["bias"] == pytest.approx(0.01, rel=0.1) and wrong["bias"] == pytest.approx(0.04, rel=0.1)


def test_the_plain_way_has_no_kernel_of_ours() -> None:
    module = frugalvit.model("small_vit_32").build()
    attentions = [part for part in module.modules() if isinstance(part, MultiHead)]
    feeds = [part for part in module.modules() if isinstance(part, TwoLayers)]
    for attention in attentions:
        attention.short = attention.talks = attention.whole = True
        attention.qkv.summed = True
    for feed in feeds:
        feed.fused = True
    ways.without_kernels(module)
    assert attentions and not any(part.short or part.talks or part.whole or part.qkv.summed for part in attentions)
    assert feeds and not any(part.fused for part in feeds)


def test_the_class_of_a_synthetic_picture_shows_in_its_colors() -> None:
    source = ways.synthetic(120, Image(32, 40), noise=7)
    assert source.images.shape == (120, 32, 40, 3) and source.images.dtype == np.uint8
    cells_ND = source.images.reshape(120, 4, 8, 4, 10, 3).mean((2, 4)).reshape(120, -1)
    centers_KD = np.stack([cells_ND[:60][source.labels[:60] == label].mean(0) for label in range(10)])
    nearest_N = ((cells_ND[60:, None] - centers_KD) ** 2).sum(2).argmin(1)
    assert (nearest_N == source.labels[60:]).mean() > 0.9


def test_a_way_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["loss_agreement.py", "--ways", "plain,stram"])
    with pytest.raises(SystemExit):
        loss_agreement.main()
    assert "'stram' is no way. Use all, or some of plain, again, fp32, nudged_1" in capsys.readouterr().err


def test_a_model_that_fails_or_trains_for_longer_does_not_take_the_rows_of_others(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_itself(item: str, arguments: argparse.Namespace) -> dict[str, Any]:
        if item == "pit:none":
            raise FrugalError("no number")
        numbers = {"last": [93.0], "best": [93.5], "seeds": [0], "parameters": 7, "images_per_second_each": 9, "waiting": 0.0}
        place = {"device": "CPU", "torch": "2", "commit": "abc1234"}
        return {
            "item": item,
            "passes": arguments.passes,
            **numbers,
            "seconds": 60,
            "overrides": arguments.override,
            "together": 2,
            "where": place,
        }

    monkeypatch.setattr(small_table, "by_itself", by_itself)
    words = ["small_table.py", "pit:none", "swin:none", "t2t:none", "--together", "2", "--data", str(out), "--runs", str(out)]
    monkeypatch.setattr(sys, "argv", [*words, "--out", str(out)])
    with pytest.raises(SystemExit, match="pit:none failed"):
        small_table.main()
    monkeypatch.setattr(small_table, "measured", lambda item, arguments, runs: (by_itself(item, arguments), []))
    monkeypatch.setattr(sys, "argv", [*words, "--passes", "100", "--together", "1", "--out", str(out)])
    with pytest.raises(SystemExit, match="pit:none failed"):
        small_table.main()
    rows = json.loads((out / "small_table.json").read_text())["rows"]
    assert [(row["item"], row["passes"]) for row in rows] == [
        ("t2t:none", 300),
        ("t2t:none", 100),
        ("swin:none", 300),
        ("swin:none", 100),
    ]
    monkeypatch.setattr(sys, "argv", [*words, "--override", "lr=1e-2", "--together", "1", "--out", str(out)])
    with pytest.raises(SystemExit, match="pit:none failed"):
        small_table.main()
    page = (out / "small_table.md").read_text()
    assert "| t2t | 300 |" in page and "| t2t, changed | 300 |" in page and "| abc1234 | lr=1e-2 |" in page
    changed = argparse.Namespace(passes=300, override=["lr=1e-2"])
    names = {small_table.name_of("t2t:none", one) for one in (changed, argparse.Namespace(passes=300, override=[]))}
    assert "t2t-none-300" in names and len(names) == 2


# ------------------------------------------------------------------------------------------------ seeds at once


def test_seeds_at_once_are_timed_beside_one_and_compared_with_each_alone(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = "vit.digits batch=16 deterministic=true"
    few = ("--most", "2", "--check", "2", "--steps", "3", "--rounds", "2")
    (row,) = written(seeds_at_once, out, monkeypatch, item, *few)
    assert {count: len(rates) for count, rates in row["images_per_second"].items()} == {"1": 2, "2": 2}
    assert row["loss_alone"][0] != row["loss_alone"][1]
    assert row["loss_alone_again"] == row["loss_alone"]
    assert row["largest_difference"] == row["largest_difference_alone"] == 0
    page = (out / "seeds_at_once.md").read_text()
    assert f"| `{item}` | 16 | 2 | " in page
    assert "| none, 2 | none, 2 |" in page


def test_the_noise_of_a_device_shows_between_a_seed_alone_and_the_same_alone_again(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, calls = seeds_at_once.Seed.train, iter(range(10**3))
    monkeypatch.setattr(seeds_at_once.Seed, "train", lambda self, steps: train(self, steps) + next(calls))
    few = ("--most", "2", "--check", "2", "--steps", "1", "--rounds", "1")
    (row,) = written(seeds_at_once, out, monkeypatch, "vit.digits batch=16 deterministic=true", *few)
    assert row["largest_difference_alone"] == pytest.approx(2)
    assert row["largest_difference"] > 2.5


def test_a_seed_that_trains_differently_beside_others_is_shown() -> None:
    row = {"item": "a", "batch": 1, "path": "kept", "precision": "bf16", "check": 100, "steps": 5, "largest_difference": 0.25}
    row |= {"images_per_second": {"1": [10, 20, 10], "2": [15, 25, 30]}, "where": {"device": "d", "torch": "t", "commit": "c"}}
    assert "| `a` | 1 | 2 | 25 | 1.50 (1.25 to 3.00) | 2.5e-01, 100 |  |\n" in seeds_at_once.page([row])
    again = row | {"largest_difference_alone": 0.125}
    assert "| 2.5e-01, 100 | 1.2e-01, 100 |\n" in seeds_at_once.page([again])
    assert "| `a` | 1 | 1 | 10 |  |  |  |\n" in seeds_at_once.page([again])


def test_the_page_of_seeds_at_once_is_that_of_the_rows_kept_here() -> None:
    results = Path(__file__).parents[1] / "docs" / "results"
    rows = json.loads((results / "seeds_at_once.json").read_text())["rows"]
    assert (results / "seeds_at_once.md").read_text() == seeds_at_once.page(rows)


# ------------------------------------------------------------------------------------------------ bits on a GPU


def test_packed_signs_multiply_as_signs_do_and_what_loses_is_said(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_bits.MAPS, "tiny", (19, 64, 40))
    rows = written(gpu_bits, out, monkeypatch, "--maps", "tiny", "--batch", "1", "--rounds", "2")
    assert rows[0]["not_measured"] == {} and set(rows[0]["microseconds"]) == {"bits", "bf16"}
    page = gpu_bits.page([rows[0] | {"microseconds": {"bits": 3.0, "bf16": 2.0, "fp8": 1.5}, "not_measured": {"int8": "no"}}])
    assert "| 19 x 64 to 40 | 3.0 | 0.0162 | 2.0 | - | 1.5 | 2.00 |" in page and "- tiny, batch 1, int8: no" in page


def test_a_way_that_computes_something_else_is_not_timed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_bits.MAPS, "tiny", (19, 64, 40))
    monkeypatch.setattr(gpu_bits, "counted", lambda x_WR, weight_WO: torch.zeros(19, 40))
    (row,) = written(gpu_bits, out, monkeypatch, "--maps", "tiny", "--batch", "1", "--rounds", "1")
    assert row["not_measured"] == {"bits": "wrong"} and "bits" not in row["microseconds"]


def test_words_hold_32_signs_each_with_rows_side_by_side() -> None:
    sign_RI = torch.full((2, 64), -1.0)
    sign_RI[0, 0] = sign_RI[0, 33] = sign_RI[1, 31] = 1.0
    assert gpu_bits.packed(sign_RI).tolist() == [[1, -(2**31)], [2, 0]]


# ------------------------------------------------------------------------------------------------ attention over few tokens


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setattr(short_attention, "CALLS", 1)
    monkeypatch.setitem(attention_ways.ATTENTIONS, "tiny", (7, 2, 8, False))
    monkeypatch.setitem(attention_ways.ATTENTIONS, "tiny+lsa", (7, 2, 8, True))
    return ("--attentions", "tiny+lsa", "tiny", "--rounds", "2")


def test_ways_of_attention_are_compared_with_float32_and_timed_side_by_side(
    out: Path, monkeypatch: pytest.MonkeyPatch, tiny: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    written(short_attention, out, monkeypatch, *tiny, "--batch", "5")
    rows = written(short_attention, out, monkeypatch, *tiny, "--batch", "3")
    assert [(row["attention"], row["batch"], row["lsa"]) for row in rows] == [
        ("tiny", 3, False),
        ("tiny", 5, False),
        ("tiny+lsa", 3, True),
        ("tiny+lsa", 5, True),
    ]
    for row in rows:
        assert set(row["errors"]) == {"flash", "math"} and 0 < max(row["errors"].values()) < short_attention.NOISE / 2
        assert all(row["microseconds"][one].keys() == row["errors"].keys() for one in ("forward", "both"))
        assert min(row["microseconds"]["forward"].values()) > 0
        assert set(row["not_measured"]) == {"ours", "cudnn", "efficient", "compiled"}
        assert row["where"]["device"] and row["where"]["torch"] == torch.__version__ and row["where"]["commit"] == "abc1234"
    page = (out / "short_attention.md").read_text()
    assert "- ours: needs CUDA and Triton (tiny at 3 and 5, tiny+lsa at 3 and 5)" in page
    assert page.count("| tiny+lsa | 7 | 2 of 8 | 5 | - | - | ") == 2 and page in capsys.readouterr().out


def test_attention_that_sees_what_lsa_hides_is_not_timed(
    out: Path, monkeypatch: pytest.MonkeyPatch, tiny: tuple[str, ...]
) -> None:
    monkeypatch.setattr(attention_ways, "mask_for", lambda backend, hidden_NN: None)
    plain, lsa = written(short_attention, out, monkeypatch, *tiny, "--batch", "3")
    assert set(plain["errors"]) == {"flash", "math"}
    assert lsa["errors"] == lsa["microseconds"]["forward"] == lsa["microseconds"]["both"] == {}
    assert lsa["not_measured"]["math"].startswith("wrong: y by ")


def test_one_wrong_token_or_no_number_is_seen_however_many_are_right() -> None:
    given = attention_ways.Given("small_vit_32+lsa", 64, torch.device("cpu"))
    wanted = given.wanted()
    assert set(attention_ways.distances(given, wanted, wanted).values()) == {0.0}
    for part, name in ((0, "y"), (1, "qkv")):
        found = [one.clone() for one in wanted]
        found[part][13, 57, :192] *= 0.5
        off = attention_ways.distances(given, found, wanted)
        assert {one for one, far in off.items() if far > short_attention.NOISE} == {name[0]}
    found[2][3] = float("nan")
    assert not attention_ways.distances(given, found, wanted)["scale"] <= short_attention.NOISE


def test_the_attentions_compared_are_those_that_models_compute_with_our_kernel() -> None:
    for name, (tokens, heads, width, lsa) in attention_ways.ATTENTIONS.items():
        assert tokens <= (LONGEST_LSA if lsa else LONGEST) and width <= WIDEST
        recipe = "." in name
        spec = frugalvit.recipe(name, "model.classes=10").model if recipe else frugalvit.model(name)
        with torch.device("meta"):
            module = spec.build()
        found = {
            (part.tokens, part.heads, width_of(part), isinstance(part.scale, LearnedTemperature))
            for part in module.modules()
            if isinstance(part, MultiHead) and [type(term) for term in part.before] == ([HiddenDiagonal] if lsa else [])
        }
        assert (tokens, heads, width, lsa) in found, name


def test_processes_that_compile_ahead_are_told_what_in_words_the_script_knows(
    out: Path, monkeypatch: pytest.MonkeyPatch, tiny: tuple[str, ...]
) -> None:
    told: list[list[Any]] = []
    monkeypatch.setattr(short_attention, "run_apart", lambda words: told.append(list(words)))
    asked = argparse.Namespace(attentions=["tiny", "tiny+lsa"], batch=[2, 3], device="cpu", ahead=1)
    short_attention.prepare_apart(asked)
    assert [words[-1] for words in told] == ["tiny", "tiny+lsa"]
    known: list[Any] = []
    monkeypatch.setattr(short_attention, "prepare", lambda *given: known.append(given))
    monkeypatch.setattr(sys, "argv", [*map(str, told[1]), "--out", str(out)])
    short_attention.main()
    assert known == [(["tiny+lsa"], [2, 3], torch.device("cpu"))] and not out.exists()
    assert told[1][0] == Path(short_attention.__file__)


def test_why_a_backend_was_not_measured_is_what_the_library_warned_of() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for text in ("Flash attention kernel not used because:", "It takes no mask. (Triggered internally at a.cpp:1.)"):
            warnings.warn(text, stacklevel=1)
        warnings.warn("CuDNN attention has been runtime disabled.", stacklevel=1)
    assert short_attention.why(RuntimeError("No available kernel. Aborting execution."), caught) == "It takes no mask."
    assert short_attention.why(MemoryError("no room\nat all"), caught) == "MemoryError: no room"


def test_the_page_of_attentions_says_how_many_times_as_long_the_fastest_other_way_takes() -> None:
    row = {"attention": "a", "batch": 128, "tokens": 65, "heads": 12, "width": 16, "lsa": True, "not_measured": {"flash": "no"}}
    row |= {"microseconds": {"forward": {"ours": 2.0, "math": 9.0, "cudnn": 5.0}, "both": {"ours": 4.0, "math": 6.0}}}
    row |= {"errors": {"ours": 0.011, "math": 0.012, "cudnn": 0.0131}, "where": {"device": "d", "torch": "t", "commit": "c"}}
    page = short_attention.page([row, row | {"attention": "b", "where": row["where"] | {"commit": "e"}}])
    assert "| a | 65 | 12 of 16 | 128 | 2.0 | 5.0 | - | - | 9.0 | - | 2.50 | 0.011 | 0.013 |" in page
    assert "| b | 65 | 12 of 16 | 128 | 4.0 | - | - | - | 6.0 | - | 1.50 | 0.011 | 0.013 |" in page
    assert "- d, torch t, commit c (a at 128)\n- d, torch t, commit e (b at 128)" in page
    assert "- flash: no (a at 128, b at 128)" in page


@pytest.mark.gpu
def test_our_attention_is_right_and_timed_beside_the_others_on_a_gpu(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--attentions", "small_vit_32+lsa", "small_pit_32", "--batch", "4", "--rounds", "1", "--ahead", "0"]
    monkeypatch.setattr(sys, "argv", ["short_attention.py", *words, "--out", str(out)])
    short_attention.main()
    for row in json.loads((out / "short_attention.json").read_text())["rows"]:
        assert {"ours", "math", "compiled"} <= row["errors"].keys(), row["not_measured"]
        assert min(row["microseconds"]["both"].values()) > 0


# ------------------------------------------------------------------------------------------------ how scripts end


def test_a_script_says_what_is_wrong_in_one_line_and_ends_as_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong() -> None:
        raise FrugalError("no such pictures")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit, match="FrugalError: no such pictures"):
        script.started(wrong)
    with pytest.raises(SystemExit) as ended:
        script.started(interrupted)
    assert ended.value.code == 130 and capsys.readouterr().err == "stopped\n"


def test_processes_end_with_the_script_that_started_them() -> None:
    """One of two is over, then comes an interrupt: the other is not waited for."""
    codes = {"quick": "pass", "slow": "import time; time.sleep(600)"}
    with pytest.raises(KeyboardInterrupt):
        for name, finished in script.each_apart(codes, 2, lambda name: script.run_apart(["-c", codes[name]])):
            assert name == "quick" and finished.exception() is None
            raise KeyboardInterrupt
    assert not script.running


def test_a_process_that_fails_is_told() -> None:
    (both,) = script.each_apart(["bad"], 1, lambda name: script.run_apart(["-c", "raise SystemExit(3)"]))
    assert both[0] == "bad" and isinstance(both[1].exception(), subprocess.CalledProcessError)


@pytest.mark.parametrize("measuring", [gpu_bits, short_attention])
def test_a_benchmark_for_gpus_says_so_where_there_is_none(
    out: Path, monkeypatch: pytest.MonkeyPatch, measuring: ModuleType
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["script.py", "--out", str(out)])
    with pytest.raises(FrugalError, match="torch sees no CUDA device here"):
        measuring.main()


# ------------------------------------------------------------------------------------------------ photographs


def test_the_ways_of_photographs_are_timed_side_by_side(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--count", "12", "--workers", "0", "--image", "32", "--batch", "4", "--steps", "1"]
    rows = written(photo_paths, out, monkeypatch, *words)
    assert [row["way"] for row in rows] == ["sent", "decoded", "stored", "kept"]
    assert all(0 < row["slowest"] <= row["images_per_second"] <= row["fastest"] for row in rows)
    assert all(row["photos"].startswith("12 made") for row in rows)
    assert [len(row["notes"]) for row in rows] == [0, 0, 0, 1] and "of pictures are kept on" in rows[-1]["notes"][0]
    again = written(photo_paths, out, monkeypatch, *words, "--ways", "decoded", "--batch", "2")
    assert [(row["way"], row["batch"]) for row in again] == [*((row["way"], 4) for row in rows), ("decoded", 2)]
    page = (out / "photo_paths.md").read_text()
    assert page.count("| deit_tiny_patch16_224, 32 pixels | 4 |") == 4
