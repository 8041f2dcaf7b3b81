"""Packed files that somebody changed: the simulation refuses what the runtime refuses, and says where."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.deploy.hostile import changed, parts, written
from tests.deploy.packing import MODELS, classifier_of, native_only

from frugalvit.deploy.native import MODULE, load_packed, simulated
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import LARGEST_FILE, Packed
from frugalvit.deploy.simulated import Simulation
from frugalvit.deploy.steps import KINDS
from frugalvit.errors import WeightsError

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def pyramid() -> Packed:
    return packed_model(classifier_of(MODELS["pyramid"]), "pyramid").packed


def refused_by_simulation(file: Path) -> str:
    """What it says of a file that it does not take; nothing of one that it runs."""
    try:
        twin = simulated(file)
    except WeightsError as error:
        assert str(error).startswith(str(file)) and str(error).endswith((".", "?"))
        return str(error).removeprefix(str(file)).lstrip(".:")
    image = twin.packed.program["image"]
    assert len(twin.logits(np.zeros((1, image["height"], image["width"], len(image["mean"])), np.uint8)))
    return ""


def refused_by_runtime(file: Path) -> str:
    native = pytest.importorskip(MODULE, reason="the runtime is not built")
    try:
        native.PackedModel(file)
    except ValueError as error:
        return str(error)
    return ""


def mutants(packed: Packed, count: int, file: Path) -> Counter[str]:
    """How many of so many changed files each reader refuses, after both agreed on every one."""
    draw, found = random.Random(0), Counter[str]()
    for number in range(count):
        file.write_bytes(changed(packed, draw))
        ours, theirs = refused_by_simulation(file), refused_by_runtime(file)
        assert bool(ours) == bool(theirs), f"change {number}: simulation '{ours}', runtime '{theirs}'"
        found["refused" if ours else "run"] += 1
    return found


@native_only
@pytest.mark.parametrize("name", MODELS)
def test_whatever_the_runtime_refuses_the_simulation_refuses_and_runs_the_rest(name: str, tmp_path: Path) -> None:
    found = mutants(packed_model(classifier_of(MODELS[name]), name).packed, 40, tmp_path / "a.fvit")
    assert found["refused"] > 25 and found["run"] >= 1


def test_every_kind_of_step_that_runs_has_its_rules(pyramid: Packed) -> None:
    assert {*Simulation(pyramid).kinds, "tokens", "patches"} == {*KINDS}


def step(kind: str, name: str, value: Any) -> Change:
    def change(program: dict[str, Any]) -> None:
        next(one for one in program["steps"] if one["kind"] == kind)[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda one: one.pop("name"), r"name: is missing"),
        (lambda one: one.update(more=1), r"the name 'more' is unknown"),
        (lambda one: one["labels"].pop(), r"labels: 6 labels for 7 classes\. Give one a class"),
        (
            lambda one: one["image"].update(filter="box"),
            r"image\.filter: the filter 'box' is unknown\. Use bicubic or bilinear",
        ),
        (
            lambda one: one["image"].update(cover=[15, 24]),
            r"image\.cover\[0\]: 15 does not fit\. Use a whole number from 16 to 8192",
        ),
        (lambda one: one["image"].update(std=[0.1, 0.1, 1e-50]), r"image\.std: .* no finite pixels"),
        (lambda one: one["image"].update(mean=[0.1, 0.1]), r"image: 2 means and 3 deviations"),
        (
            lambda one: one["buffers"].update({"0q": [96, 13]}),
            r"steps\[\d+\]\.from: buffer '0u' \[96, 12\] does not fit\. Use one of \[96, 13\]",
        ),
        (lambda one: one["buffers"].update(big=[1 << 20, 64]), r"buffers\.big: more than 67108864 numbers"),
        (lambda one: one.update(logits="0x"), r"logits: buffer '0x' \[96, 12\] has 96 rows\. Use a buffer of one"),
        (lambda one: one["steps"].pop(), r"t\d+: no step uses this tensor"),
        (lambda one: one.update(steps=[]), r"steps: 0 steps\. Use 1 to 10000"),
        (step("patches", "patch", 3), r"steps\[0\]\.patch: patches of 3 do not tile 16 x 24"),
        (step("patches", "first", 1), r"steps\[0\]\.first: 96 patches from row 1 on, in 96 rows"),
        (step("mean", "count", 0), r"steps\[\d+\]\.count: 0 does not fit\. Use a whole number from 1 to 24"),
        (
            step("linear", "weight", "t0"),
            r"steps\[\d+\]\.weight: tensor 't0' is F32 \[12, 12\]\. Use one that is U64 \[12, 1\]",
        ),
        (step("linear", "to", "0keys"), r"steps\[\d+\]\.from: buffer '0keys' \[24, 12\] is also 'to'"),
        (step("mlp", "expand", 2), r"steps\[\d+\]\.up\.weight: .* Use one that is U64 \[24, 1\]"),
        (step("attention", "heads", 5), r"steps\[\d+\]\.heads: 5 heads of 12 columns"),
        (step("attention", "scale", 4), r"steps\[\d+\]\.scale: 4 is not above 0 and at most 3\.333"),
        (step("attention", "limit", 1.5), r"steps\[\d+\]\.limit: 1\.5 is no probability"),
        (step("attention", "side", 1), r"steps\[\d+\]\.key: buffer '0k' \[24, 12\] does not fit\. Use one of \[96, 12\]"),
        (step("pool", "width", 5), r"steps\[\d+\]\.width: 96 tokens are no such grid of width 5"),
        (step("cross", "center", 7), r"steps\[\d+\]\.center: 7 is no text"),
        (step("head", "from", "nowhere"), r"steps\[\d+\]\.from: there is no buffer 'nowhere'"),
    ],
)
@pytest.mark.filterwarnings("ignore::frugalvit.deploy.native.SimulationNotice")
def test_a_refusal_names_the_place_what_is_wrong_and_what_would_fit(
    change: Change, problem: str, pyramid: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, data = parts(pyramid)
    program = json.loads(header["__metadata__"]["program"])
    change(program)
    file = tmp_path / "a.fvit"
    file.write_bytes(written(header, json.dumps(program), data))
    monkeypatch.setitem(sys.modules, MODULE, None)
    with pytest.raises(WeightsError, match=rf"a\.fvit[.:] ?{problem}"):
        load_packed(file)


TEXTS = {  # of the first standard deviation, 0.2
    "NaN": "not JSON",
    "1e400": "out of range",
    "1e-400": "out of range",
    "true": "no number",
    '"0.2"': "no number",
    "0.20e0": "",
    "200000000000000000000": "",
    "1" + "0" * 400: "out of range",
}


@pytest.mark.parametrize("text", TEXTS)
def test_numbers_are_those_that_the_runtime_reads(text: str, pyramid: Packed, tmp_path: Path) -> None:
    header, data = parts(pyramid)
    program = header["__metadata__"]["program"].replace('"std":[0.2,', f'"std":[{text},')
    file = tmp_path / "a.fvit"
    file.write_bytes(written(header, program, data))
    found = refused_by_simulation(file)
    assert TEXTS[text] in found and bool(found) == bool(TEXTS[text]) == bool(refused_by_runtime(file))


def test_a_whole_number_may_have_a_point_and_half_a_character_is_none(pyramid: Packed, tmp_path: Path) -> None:
    header, data = parts(pyramid)
    program, file = header["__metadata__"]["program"], tmp_path / "a.fvit"
    file.write_bytes(written(header, program.replace('"patch":2', '"patch":2.0'), data))
    assert not refused_by_simulation(file) and not refused_by_runtime(file)
    file.write_bytes(written(header, program.replace('"pyramid"', '"\\ud800"'), data))
    assert "its program is not JSON" in refused_by_simulation(file) and refused_by_runtime(file)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [("[" * 17 + "]" * 17, "more than 16 levels"), (f"[{'1,' * (1 << 20)}1]", "more than 1048576 values")],
)
def test_json_that_is_deep_or_long_without_end_is_refused(labels: str, problem: str, pyramid: Packed, tmp_path: Path) -> None:
    header, data = parts(pyramid)
    file = tmp_path / "a.fvit"
    file.write_bytes(written(header, f'{{"labels": {labels}}}', data))
    assert problem in refused_by_simulation(file) and refused_by_runtime(file)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("shape", [-1], r"t0\.shape\[0\]: -1 does not fit"),
        ("shape", [12, 10**30], r"t0\.shape\[1\]: 1e\+30 does not fit"),
        ("shape", [0], r"t0\.shape\[0\]: 0 does not fit"),
        ("data_offsets", [False, 576], r"t0\.data_offsets\[0\]: False does not fit"),
        ("data_offsets", [0], r"t0\.data_offsets: 1 numbers"),
        ("dtype", ["F32"], r"t0\.dtype: \['F32'\] is no text"),
    ],
)
def test_tensors_that_do_not_lie_as_they_say_are_named(
    name: str, value: Any, problem: str, pyramid: Packed, tmp_path: Path
) -> None:
    header, data = parts(pyramid)
    header["t0"][name] = value
    file = tmp_path / "a.fvit"
    file.write_bytes(written(header, header["__metadata__"]["program"], data))
    with pytest.raises(WeightsError, match=problem):
        simulated(file)
    assert refused_by_runtime(file)


def test_bits_past_the_end_of_a_row_are_refused(pyramid: Packed) -> None:
    name = next(one["weight"] for one in pyramid.steps if one["kind"] == "linear")
    odd = Packed(pyramid.program, pyramid.tensors | {name: pyramid.tensors[name] | np.uint64(1 << 12)})
    with pytest.raises(WeightsError, match=r"\.weight: bits past the end of a row of 12\. Set them to 0"):
        Simulation(odd)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.fvit"
    with file.open("wb") as opened:
        opened.truncate(LARGEST_FILE + 1)
    assert "it has at most 1073741824" in refused_by_simulation(file) and "2^30" in refused_by_runtime(file)
