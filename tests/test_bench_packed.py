"""`frugalvit bench --packed`, the turns and peers behind it, and the two benchmarks that use them, at toy size."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import accuracy_latency_size, packed_latency
from tests.test_cli import bad, good

import frugalvit
from frugalvit.cli import bench_packed
from frugalvit.cli.packed_page import long_steps
from frugalvit.data.digits import Digits
from frugalvit.data.preprocess import Preprocess
from frugalvit.deploy.classifier import Classifier, ClassifierSpec
from frugalvit.deploy.memory import packed_memory
from frugalvit.deploy.pack import packed_model
from frugalvit.deploy.packed_file import encoded
from frugalvit.measure import peers, turns
from frugalvit.measure.latency import device_name
from frugalvit.measure.turns import Times, in_turns, over
from frugalvit.nn.model import Model

TOY = ("binaryvit_tiny_patch2_32", "depths=[1,1]", "heads=[1,2]", "ratios=[2,2]", "reductions=[2,1]", "dim=16", "image=16")
DENSE = ("deit_tiny_patch16_224", "depth=2", "dim=24", "heads=3", "image=32", "classes=5")
built = pytest.mark.skipif(not find_spec("frugalvit.deploy._native"), reason="the one-bit runtime is not built")
exported = pytest.mark.skipif(not all(map(find_spec, ("onnxscript", "onnxruntime"))), reason="needs frugalvit[bench]")


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the verb and the scripts set for the whole process is put back; turns are short."""
    before = torch.get_num_threads()
    monkeypatch.setattr(turns, "TURN", 0.001)
    monkeypatch.setattr(bench_packed, "RUNS", 2)
    yield
    torch.set_num_threads(before)


def toy() -> Model:
    return frugalvit.model(*TOY)  # type: ignore[return-value]


def classifier_of(model: Model) -> Classifier:
    image = model.image
    preprocess = Preprocess(image.height, image.width, (0.5,) * image.channels, (0.25,) * image.channels)
    spec = ClassifierSpec(model, preprocess, tuple(map(str, range(model.classes or 0))))
    return Classifier(spec, model.build(seed=0)).eval()


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    file = tmp_path / "toy.fvit"
    file.write_bytes(encoded(packed_model(classifier_of(toy()), "toy").packed))
    return file


# ------------------------------------------------------------------------------------------------ turns


def test_all_take_turns_in_every_round_after_calls_that_do_not_count() -> None:
    called: list[str] = []
    ways = {name: (lambda name=name: called.append(name)) for name in "ABC"}
    found = [(number, times) for number, times in in_turns(ways, rounds=3, calls=2)]
    assert [number for number, _ in found] == [1, 2, 3]
    assert "".join(called) == "AAAABBBBCCCC" * 3  # two that warm, two that count
    assert [len(times["B"].rounds) for _, times in found] == [1, 2, 3] and found[-1][1]["B"].calls == 2


def test_a_round_is_the_median_of_its_calls_and_the_fastest_call_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([3.0, 9.0, 4.0, 1.0, 2.0, 7.0])
    monkeypatch.setattr(turns, "seconds", lambda way: next(spent))
    *_, (_, times) = in_turns({"A": lambda: None}, rounds=2, calls=3)
    assert times["A"] == Times((4.0, 2.0), 1.0, 3) and times["A"].seconds == 3.0


def test_a_ratio_is_taken_within_rounds() -> None:
    slow, fast = Times((4.0, 40.0, 9.0), 4.0, 1), Times((2.0, 10.0, 3.0), 2.0, 1)  # the machine was busy in the second round
    assert over(slow, fast) == 3.0
    assert slow.seconds / fast.seconds == 3.0 and over(fast, slow) == pytest.approx(1 / 3)
    assert over(Times((1.0, 10.0), 1.0, 1), Times((1.0, 5.0), 1.0, 1)) == 1.5


def test_calls_fill_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN", 0.3)
    for once, calls in ((0.1, 3), (5.0, 1), (1e-6, turns.MOST)):
        monkeypatch.setattr(turns, "seconds", lambda way, once=once: once)
        assert turns.calls_in_a_turn(lambda: None) == calls


# ------------------------------------------------------------------------------------------------ peers


def test_a_package_that_is_not_there_says_what_to_install() -> None:
    with pytest.raises(peers.Missing, match=r"no_such_runtime is not installed: pip install 'frugalvit\[bench\]'"):
        peers.package("no_such_runtime")


def test_what_is_exported_answers_as_the_module_does() -> None:
    module = frugalvit.model(*DENSE).build(seed=0).eval()
    image_BCHW = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        wanted = module(image_BCHW)["class"]
        assert torch.equal(peers.OneAnswer(module)(image_BCHW), wanted)
    assert np.array_equal(peers.pytorch(module, torch.float32)(image_BCHW.numpy()), wanted.numpy())
    names = [name for name, _ in peers.OneAnswer(module).named_buffers()]
    assert len(names) == len(module.state_dict()) and all(name.strip("t").isdigit() for name in names)


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that announces matrix tiles and kills whoever uses them."""
    (tmp_path / "cpuinfo").write_text("flags : avx512_bf16 amx_bf16 amx_tile\n")
    monkeypatch.setattr(peers, "CPU", tmp_path / "cpuinfo")
    monkeypatch.setattr(peers, "PRODUCT", "import os, signal; os.kill(os.getpid(), signal.SIGILL)")
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    peers.dies_of_tiles.cache_clear()
    yield
    peers.dies_of_tiles.cache_clear()


def test_tiles_that_are_announced_and_refused_are_found_out_by_another_process(
    refused: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert peers.refuses_tiles()
    monkeypatch.setattr(peers, "package", lambda name: None)
    with pytest.raises(peers.Missing, match=r"announces matrix tiles.*, as OpenVINO does in int8; ONEDNN_MAX_CPU_ISA="):
        peers.in_openvino_int8(peers.PeerFiles(torch.nn.Linear(2, 2), [], Path()), 1)
    with pytest.raises(peers.Missing, match=r"announces matrix tiles.*ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16"):
        peers.pytorch(torch.nn.Linear(2, 2), torch.bfloat16)
    peers.pytorch(torch.nn.Linear(2, 2), torch.float32)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    assert not peers.refuses_tiles()  # oneDNN leaves them alone then
    assert bench_packed.environment()["packages"]["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_FP16"
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    peers.dies_of_tiles.cache_clear()
    (tmp_path / "cpuinfo").write_text("flags : avx512_bf16\n")
    assert not peers.refuses_tiles()  # and nothing is tried
    assert "ONEDNN_MAX_CPU_ISA" not in bench_packed.environment()["packages"]


def test_heads_are_averaged() -> None:
    one, other = torch.tensor([[1.0, 3.0]]), torch.tensor([[3.0, 5.0]])
    assert peers.answer({"class": one, "distill": other}).tolist() == [[2.0, 4.0]]


@pytest.mark.slow
@exported
def test_other_runtimes_answer_as_pytorch_does(tmp_path: Path) -> None:
    module = frugalvit.model(*DENSE).build(seed=0).eval()
    pictures = [np.random.default_rng(seed).standard_normal((1, 3, 32, 32), dtype=np.float32) for seed in range(3)]
    wanted = peers.pytorch(module, torch.float32)(pictures[0])
    files = peers.PeerFiles(module, pictures, tmp_path)
    for name, into in peers.RUNTIMES.items():
        if "OpenVINO" in name and not (find_spec("openvino") and find_spec("nncf")):
            continue
        peer = into(files, 1)
        tolerance = 0.2 if name.endswith("int8") else 1e-5
        assert np.abs(peer.predict(pictures[0]) - wanted).max() < tolerance * np.abs(wanted).max()
        assert peer.bytes > 0


# ------------------------------------------------------------------------------------------------ the verb


@built
def test_a_packed_file_runs_beside_its_own_architecture(packed: Path) -> None:
    words = ("bench", *TOY, "--packed", str(packed), "--threads", "1", "--steps", "1", "--json", "--quiet")
    found = json.loads(good(*words))
    assert (found["kind"], found["name"], found["threads"], found["batch"]) == ("packed", "toy", 1, 1)
    assert found["file_bytes"] == packed.stat().st_size
    ways = [row["what"] for row in found["rows"]]
    picture, pixels = "packed, picture of 500 x 375", "packed, pixels of 16 x 16"
    assert ways == [picture, pixels, "the same in PyTorch fp32", "the same in PyTorch bf16"]
    for row in found["rows"]:
        assert row["fastest_ms"] <= min(row["rounds_ms"]) <= row["ms"] <= max(row["rounds_ms"])
        assert set(row["over"]) == (set() if row["what"].startswith("packed") else {picture, pixels})
    ratios = found["rows"][2]["over"]
    assert ratios[pixels] > ratios[picture] > 1  # resizing takes longer than so small a model, and PyTorch far longer
    assert set(found["missing"]) == {"DeiT-S", "DeiT-Ti"}  # of another size
    assert found["environment"]["device_name"]


@built
def test_a_machine_that_refuses_tiles_measures_the_rest_and_says_why(packed: Path, refused: None) -> None:
    words = ("bench", *TOY, "--packed", str(packed), "--threads", "1", "--steps", "1", "--json", "--quiet")
    found = json.loads(good(*words))
    assert [row["what"] for row in found["rows"]][2:] == ["the same in PyTorch fp32"]
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16" in found["missing"]["the same in PyTorch bf16"]
    missing: dict[str, str] = {}
    ways = dict(packed_latency.pytorch_ways({"DeiT-Ti": "deit_tiny_patch16_224"}, 1, missing))
    assert list(ways) == ["DeiT-Ti, PyTorch fp32"] and list(missing) == ["PyTorch bf16"]


@built
def test_its_steps_are_those_of_the_file_and_make_up_the_time(packed: Path) -> None:
    found = json.loads(good("bench", "--packed", str(packed), "--threads", "1", "--steps", "1", "--json", "--quiet"))
    names = {row["step"] for row in found["steps"]}
    assert {"patches 64 x 16", "attention 64 x 16", "mlp 16 x 32", "head 1 x 10", "resize"} <= names
    spent = [row["ms"] for row in found["steps"]]
    assert spent == sorted(spent, reverse=True) and sum(row["share"] for row in found["steps"]) == pytest.approx(1)
    assert "Name a model or a run to see it in PyTorch: bench MODEL --packed FILE." in found["notes"][0]


@built
def test_a_file_in_the_folder_of_its_run_is_seen_beside_that(packed: Path, tmp_path: Path) -> None:
    words = ("--threads", "1", "--steps", "1", "--json", "--quiet")
    for folder, model, rows in (("run", toy(), 1), ("other", replace(toy(), classes=4), 0)):
        classifier_of(model).save(tmp_path / folder)
        file = shutil.copy(packed, tmp_path / folder / "model.fvit")
        found = json.loads(good("bench", "--packed", str(file), *words))
        assert [row["what"] for row in found["rows"]].count("the same in PyTorch fp32") == rows
        assert any("Name a model or a run" in note for note in found["notes"]) == (not rows)


def test_short_steps_are_shown_together() -> None:
    shares = {"a": 0.9, "b": 0.085, "c": 0.008, "d": 0.007}
    steps = [{"step": name, "ms": 100 * share, "share": share} for name, share in shares.items()]
    *shown, rest = long_steps({"steps": steps})
    assert shown == steps[:2] and rest["step"] == "2 others" and rest["share"] == pytest.approx(0.015)
    assert long_steps({"steps": steps[:2]}) == steps[:2]


@built
@pytest.mark.skipif(sys.platform != "linux", reason="nobody counts")
def test_memory_is_that_of_a_process_that_does_nothing_else(packed: Path) -> None:
    assert packed.stat().st_size < packed_memory(packed, 1) < 20e6  # type: ignore[operator]


@built
def test_a_report_is_written_and_shown(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "toy.md"
    words = ("bench", *TOY, "--packed", str(packed), "--batch", "3", "--threads", "1", "--steps", "1", "--quiet")
    text = good(*words, "--out", str(out))
    page = out.read_text()
    assert page.startswith("# toy, packed\n") and "1 thread, " in page and "batch 3; file of " in page
    assert "| packed, pixels of 16 x 16 |" in page and "picture of" not in page  # photographs come one at a time
    for shown in (page, text):  # so that nobody looks for the resizing in the rows
        assert "of one photograph of 500 x 375 pixels, which is resized first, whatever the rows above take" in shown
    assert "- DeiT-S: not beside it, since it takes pictures of 224 x 224" in page and "| resize |" in page
    assert text.startswith("toy  ") and "the same in PyTorch bf16" in text
    assert "nothing is overwritten" in bad(*words, "--out", str(out))


@built
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("small_vit_32",), "takes 16 x 16 pixels of 3 channels and knows 10 classes; this one 32 x 32 of 3 and"),
        ((*TOY, "classes=7"), "MODEL: the packed model takes 16 x 16"),
        (("vit.digits",), "vit.digits: is a recipe. With --packed FILE, name the model or the run that was packed, or none."),
        (("--data", "."), "measured on noise and on the CPU"),
        (("--device", "cuda"), "measured on noise and on the CPU"),
        (("--threads", "300"), "300 threads"),
    ],
    ids=str,
)
def test_mistakes_beside_a_packed_file_end_in_one_message(packed: Path, words: tuple[str, ...], message: str) -> None:
    assert message in bad("bench", *words, "--packed", str(packed), "--quiet")


def test_mistakes_without_one_do_too(tmp_path: Path) -> None:
    assert "there is no such file" in bad("bench", "--packed", str(tmp_path / "none.fvit"))
    assert "--threads: goes with --packed FILE" in bad("bench", "small_vit_32", "--threads", "2")
    assert "Name a recipe or a model, or say --packed FILE" in bad("bench")


def test_a_simulation_is_not_timed(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frugalvit.deploy.native.MODULE", "frugalvit.deploy.no_such_module")
    assert "its simulation says nothing about speed" in bad("bench", "--packed", str(packed), "--quiet")


# ------------------------------------------------------------------------------------------------ the benchmarks


@built
def test_packed_models_run_beside_peers_and_the_table_of_such_a_cpu_with_other_kernels_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"binaryvit_small": toy(), "dense": frugalvit.model(*DENSE)}
    parameters = sum(one.numel() for one in toy().build(seed=0).parameters())
    monkeypatch.setattr(packed_latency.frugalvit, "model", small.__getitem__)
    monkeypatch.setattr(packed_latency, "PACKED", {"BinaryViT-S": "binaryvit_small"})
    monkeypatch.setattr(packed_latency, "PEERS", {"DeiT-S": "dense"})
    monkeypatch.setattr(packed_latency, "RUNTIMES", {"ONNX Runtime fp32": stand_in, "OpenVINO int8": absent})
    saved = tmp_path / "packed_latency.json"
    other = {"cpu": device_name(torch.device("cpu")), "kernels": "abacus", "cpus": 1, "packages": {"torch": "9"}}
    other |= {"commit": "abc", "rounds": 1, "missing": {}, "settings": [], "requirements": [], "files": []}
    saved.write_text(json.dumps({"machines": [other]}))
    words = ["--settings", "1x1", "1x3", "--rounds", "2", "--calls", "1", "--commit", "abc1234", "--out", str(tmp_path)]
    words += ["--without", "bf16"]
    monkeypatch.setattr(sys, "argv", ["packed_latency.py", *words])
    packed_latency.main()
    first, machine = json.loads(saved.read_text())["machines"]
    assert first == other and machine["commit"] == "abc1234"
    assert machine["cpu"] == other["cpu"] and machine["kernels"] in packed_latency.KERNELS
    single, batch = machine["settings"]
    assert (single["threads"], single["batch"], batch["batch"]) == (1, 1, 3)
    ways = [row["what"] for row in single["rows"]]
    assert ways[:2] == ["BinaryViT-S, reference, pixels", "BinaryViT-S, reference, picture"]
    assert ways[-1] == "DeiT-S, ONNX Runtime fp32" and machine["missing"] == {"OpenVINO int8": "not here"}
    assert "DeiT-S, PyTorch fp32" in ways and not any("bf16" in way for way in ways)
    assert not any("picture" in row["what"] or "reference" in row["what"] for row in batch["rows"])
    files = machine["files"][0]
    assert files["half_bytes"] < files["single_bytes"] and files["parameters"] == parameters
    ratio = next(row for row in machine["requirements"] if row["in"] == "picture")
    assert (ratio["model"], ratio["peer"], ratio["batch"]) == ("BinaryViT-S", "DeiT-S, ONNX Runtime fp32", 1)
    assert ratio["ratio"] > 0 and ratio["ms"] > 0
    page = (tmp_path / "packed_latency.md").read_text()
    for one in (first, machine):
        assert f"## {one['cpu']}, {one['kernels']}\n" in page
    assert "OpenVINO int8: not here." in page and page in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [("--settings", "0x1"), ("--settings", "1x1", "2"), ("--settings", "999x1"), ("--rounds", "0")]
)
def test_settings_that_cannot_be_measured_are_refused_in_one_line(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["packed_latency.py", *words])
    with pytest.raises(SystemExit) as end:
        packed_latency.main()
    assert end.value.code == 2 and f"error: argument {words[0]}: " in capsys.readouterr().err


def stand_in(files: peers.PeerFiles, threads: int) -> peers.Peer:
    return peers.Peer(peers.pytorch(files.module, torch.float32), 1)


def absent(files: peers.PeerFiles, threads: int) -> peers.Peer:
    raise peers.Missing("not here")


def test_the_models_of_the_requirements_are_those_that_run() -> None:
    peer_names = {f"{short}, {runtime}" for short in packed_latency.PEERS for runtime in packed_latency.RUNTIMES}
    for short, peer in packed_latency.REQUIRED:
        assert short in packed_latency.PACKED and peer in peer_names
    for name in (*packed_latency.PACKED.values(), *packed_latency.PEERS.values()):
        assert str(frugalvit.model(name).image) == "224 x 224"


@built
def test_accuracy_latency_and_size_of_two_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {}
    for name, recipe in (("dense", "vit.digits"), ("binary", "binaryvit.digits")):
        small = ("epochs=1", "dim=16", "data.subset=SeededFraction(0.2)")
        runs[name] = frugalvit.train(frugalvit.recipe(recipe, *small), out=tmp_path / name, device="cpu")
    monkeypatch.setattr(accuracy_latency_size, "in_onnx_runtime", stand_in)
    monkeypatch.setattr(accuracy_latency_size, "in_openvino_int8", absent)
    other = {"cpu": device_name(torch.device("cpu")), "kernels": "abacus", "threads": 1, "packages": {"torch": "9"}}
    other |= {"commit": "abc", "missing": {}, "rows": []}
    (tmp_path / "accuracy_latency_size.json").write_text(json.dumps({"machines": [other]}))
    words = [*(str(run.path) for run in runs.values()), "--limit", "40", "--rounds", "1", "--calls", "1"]
    words += ["--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["accuracy_latency_size.py", *words])
    accuracy_latency_size.main()
    first, machine = json.loads((tmp_path / "accuracy_latency_size.json").read_text())["machines"]
    assert first == other and f"packed, one bit ({machine['kernels']})" in [row["runtime"] for row in machine["rows"]]
    rows = {(row["run"], row["runtime"].partition(" (")[0]): row for row in machine["rows"]}
    assert list(rows) == [
        ("dense", "PyTorch fp32"),
        ("dense", "ONNX Runtime fp32"),
        ("binary", "PyTorch fp32"),
        ("binary", "packed, one bit"),
    ]
    assert machine["missing"] == {"OpenVINO int8": "not here"}
    held = Digits().open("test", None)
    places = np.linspace(0, len(held) - 1, 40).round().astype(int)
    for (run, _), row in rows.items():
        guesses = runs[run].classifier.predict([held.picture(place) for place in places])  # type: ignore[union-attr]
        right = sum(guess.name == str(held.labels[place]) for guess, place in zip(guesses, places, strict=True))
        assert row["top1"] == pytest.approx(100 * right / 40)
        assert (row["pictures"], row["data"], row["split"]) == (40, "Digits", "test") and row["ms"] > 0
    assert rows["binary", "packed, one bit"]["bytes"] < rows["binary", "PyTorch fp32"]["bytes"] / 2
    assert (tmp_path / "accuracy_latency_size.md").read_text() in capsys.readouterr().out
