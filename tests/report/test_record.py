from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from frugalvit.errors import DataError
from frugalvit.report.environment import command, environment
from frugalvit.report.record import RunFolder

RECIPE = {"part": "Recipe", "seed": 3, "lr": 0.001, "steps": 40, "layers": [{"heads": 3}, {"heads": 3}]}


def new(path: Path) -> RunFolder:
    return RunFolder.create(path, RECIPE, {"python": "3"})


def started(code: str, *words: str) -> subprocess.Popen[str]:
    """Another process that has printed its first line."""
    head = "import os, sys, time\nfrom pathlib import Path\nfrom frugalvit.report.record import RunFolder\n"
    process = subprocess.Popen([sys.executable, "-c", head + code, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_run_folder_reads_back_what_was_written(tmp_path: Path) -> None:
    with new(tmp_path / "a" / "b") as run:
        run.append({"step": 0, "loss": 2.5, "split": "train", "accuracy": None})
        run.append({"step": np.int64(10), "loss": np.float32(1.5)})
        run.summary({"accuracy": 97.1, "loss": math.nan, "classes": {"cat": 1.0}})
    again = RunFolder(tmp_path / "a" / "b")
    assert again.metrics() == [
        {"step": 0, "loss": 2.5, "split": "train", "accuracy": None},
        {"step": 10, "loss": 1.5},
    ]
    assert again.recipe() == RECIPE
    assert again.results()["accuracy"] == 97.1 and math.isnan(again.results()["loss"])
    assert sorted(one.name for one in again.path.iterdir()) == [
        ".lock",
        "environment.json",
        "metrics.jsonl",
        "recipe.json",
        "summary.json",
    ]
    assert again.debug_bundle_path(812) == again.path / "debug" / "step-00000812"


def test_what_is_not_finite_stays_visible_in_valid_json(tmp_path: Path) -> None:
    with new(tmp_path / "run") as run:
        run.append({"step": 1, "loss": math.nan, "norm": math.inf, "low": -math.inf})
    line = (tmp_path / "run" / "metrics.jsonl").read_text()
    strict = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert strict == {"step": 1, "loss": "nan", "norm": "inf", "low": "-inf"}
    (found,) = run.metrics()
    assert math.isnan(found["loss"]) and found["norm"] == math.inf and found["low"] == -math.inf


def test_a_line_needs_a_step_and_plain_values(tmp_path: Path) -> None:
    with new(tmp_path / "run") as run:
        with pytest.raises(DataError, match=r"metrics\.jsonl: a line of the log needs a whole number as its 'step'"):
            run.append({"loss": 1.0})
        with pytest.raises(DataError, match=r"^loss: object cannot be written as JSON\. Use numbers"):
            run.append({"step": 1, "loss": object()})
        assert run.metrics() == []


def test_create_refuses_a_folder_with_a_run_and_names_both_ways_out(tmp_path: Path) -> None:
    new(tmp_path / "run").close()
    with pytest.raises(
        DataError, match=r"run: holds a run that ended before anything of it was kept\. Delete the folder, --resume"
    ):
        new(tmp_path / "run")
    with RunFolder.resume(tmp_path / "run", RECIPE) as run:
        run.append({"step": 1})
    with pytest.raises(
        DataError, match=r"run: holds a run already\. Use --resume \(in Python resume=True\) to continue it, or another --out\."
    ):
        new(tmp_path / "run")


@pytest.mark.parametrize("enter", ["create", "resume"])
def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path: Path, enter: str) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DataError, match=r"is not empty \(thesis\.tex\), and holds no run to --resume\. Use another --out\."):
        new(tmp_path) if enter == "create" else RunFolder.resume(tmp_path, RECIPE)
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(DataError, match=r"thesis\.tex: is a file, not a folder"):
        new(tmp_path / "thesis.tex")
    with pytest.raises(DataError, match=r"is not a run: there is no recipe\.json"):
        RunFolder(tmp_path).metrics()


def test_resume_creates_where_there_is_nothing_and_continues_where_there_is(tmp_path: Path) -> None:
    with RunFolder.resume(tmp_path / "run", RECIPE) as run:
        run.append({"step": 1})
    (tmp_path / "run" / ".state.safetensors.77.part").touch()
    with RunFolder.resume(tmp_path / "run", RECIPE | {"layers": ({"heads": 3}, {"heads": 3})}) as run:
        run.append({"step": 2})
    assert [one["step"] for one in run.metrics()] == [1, 2]
    assert not list(run.path.glob(".*.part"))
    assert json.loads((run.path / "environment.json").read_text())["packages"]["numpy"] == np.__version__


def test_resume_under_another_environment_leaves_a_second_one(tmp_path: Path) -> None:
    new(tmp_path / "run").close()
    for python in ("3", "4", "4"):
        RunFolder.resume(tmp_path / "run", RECIPE, {"python": python}).close()
    found = {one.name: json.loads(one.read_text())["python"] for one in (tmp_path / "run").glob("environment*")}
    assert found == {"environment.json": "3", "environment-2.json": "4"}


def test_resume_names_where_the_recipe_differs(tmp_path: Path) -> None:
    new(tmp_path / "run").close()
    other = {"part": "Recipe", "seed": 4, "lr": 0.001, "steps": 50, "layers": [{"heads": 3}], "ema": 0.9}
    with pytest.raises(DataError) as error:
        RunFolder.resume(tmp_path / "run", other)
    assert str(error.value) == (
        f"{tmp_path / 'run'}: holds a run of another recipe: seed was 3, now 4; steps was 40, now 50; "
        "layers[1] was {'heads': 3}, now 'absent' (+1 more). Resume with the recipe it has, or use another --out."
    )
    RunFolder.resume(tmp_path / "run", RECIPE).close()


def test_two_runs_in_one_folder_are_refused_with_the_pid(tmp_path: Path) -> None:
    code = "run = RunFolder.create(Path(sys.argv[1]), {'seed': 3}, {}); print('ready', flush=True); sys.stdin.read()"
    process = started(code.replace("sys.stdin.read()", "time.sleep(60)"), str(tmp_path / "run"))
    try:
        for enter in (RunFolder.create, RunFolder.resume):
            with pytest.raises(DataError, match=rf"run: process {process.pid} is writing a run here\. Wait for it, stop it"):
                enter(tmp_path / "run", {"seed": 3}, {})
        assert RunFolder(tmp_path / "run").metrics() == []
    finally:
        process.kill()
        process.communicate()


def test_one_process_cannot_open_a_folder_twice(tmp_path: Path) -> None:
    with new(tmp_path / "run"), pytest.raises(DataError, match=f"process {os.getpid()} is writing a run here"):
        RunFolder.resume(tmp_path / "run", RECIPE)
    RunFolder.resume(tmp_path / "run", RECIPE).close()


def test_a_killed_run_resumes_at_once_even_while_its_forked_workers_live(tmp_path: Path) -> None:
    code = """
run = RunFolder.create(Path(sys.argv[1]), {'seed': 3}, {})
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
Path(sys.argv[2]).write_text(str(child))
for step in range(10**9):
    run.append({"step": step, "loss": 1 / (1 + step)})
    if step == 20:
        print("ready", flush=True)
"""
    process = started(code, str(tmp_path / "run"), str(tmp_path / "child"))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    worker = int((tmp_path / "child").read_text())
    try:
        os.kill(worker, 0)
        with RunFolder.resume(tmp_path / "run", {"seed": 3}, {}) as run:
            run.cut(12)
            run.append({"step": 13, "loss": 0.5})
    finally:
        os.kill(worker, signal.SIGKILL)
    assert [one["step"] for one in run.metrics()] == list(range(14))


@pytest.mark.parametrize("torn", ['{"step": 5, "lo', "{", '{"step": 5}'])
def test_a_half_written_last_line_is_cut(tmp_path: Path, torn: str) -> None:
    with new(tmp_path / "run") as run:
        for step in range(5):
            run.append({"step": step})
    log = tmp_path / "run" / "metrics.jsonl"
    with log.open("a") as file:
        file.write(torn)
    assert [one["step"] for one in run.metrics()] == [0, 1, 2, 3, 4]
    with RunFolder.resume(tmp_path / "run", RECIPE, {}) as run:
        assert log.read_text().endswith('{"step": 4}\n')
        run.cut(2)
        assert [one["step"] for one in run.metrics()] == [0, 1, 2]
        run.cut(-1)
        assert log.read_text() == ""


def test_a_damaged_line_in_the_middle_is_named_and_not_dropped(tmp_path: Path) -> None:
    with new(tmp_path / "run") as run:
        run.append({"step": 1})
        with (run.path / "metrics.jsonl").open("a") as file:
            file.write("\0\0\n")
        run.append({"step": 2})
        with pytest.raises(DataError, match=r"metrics\.jsonl line 2: is no record of a run"):
            run.cut(1)


def test_the_environment_names_versions_and_commit_but_no_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/home/ada/bin/frugalvit", "train", "--data", "/home/ada/cats", "/home/adam"])
    monkeypatch.setenv("HOME", "/home/ada")
    found = environment("abc")
    assert found["commit"] == "abc"
    assert found["command"] == ["frugalvit", "train", "--data", "~/cats", "/home/adam"]
    assert found["packages"].keys() == {"frugalvit", "torch", "torchvision", "timm", "numpy", "pillow"}
    assert os.uname().nodename not in json.dumps(found) and "/home/ada/" not in json.dumps(found)
    assert command([]) == []
    monkeypatch.chdir(tmp_path)
    module = sys.modules[environment.__module__]
    assert environment()["commit"] == module.commit_of(Path(str(module.__file__)).parent)  # of the clone, where it is one
    monkeypatch.setattr(module, "__file__", str(tmp_path / "site-packages" / "environment.py"))
    assert environment()["commit"] is None
    monkeypatch.setenv("PATH", "")
    assert environment()["commit"] is None


def test_the_commit_of_one_s_own_work_stands_beside_that_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "-q"], check=True)
    words = ["git", "-c", "user.name=ada", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty", "-m", "mine"]
    subprocess.run(words, check=True)
    found, module = environment(), sys.modules[environment.__module__]
    assert found["commit"] == module.commit_of(Path()) != found["frugalvit_commit"]
    assert found["frugalvit_commit"] == module.commit_of(Path(str(module.__file__)).parent)


def test_the_commit_of_the_working_directory_says_whether_files_were_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("1")
    who = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "a"], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", *words], check=True)
    clean = environment()["commit"]
    assert len(clean) == 40
    (tmp_path / "a").write_text("2")
    assert environment()["commit"] == f"{clean}-dirty"


def test_reports_need_no_torch() -> None:
    modules = "environment, files, loggers, progress, record, statistics, table"
    code = f"import sys; from frugalvit.report import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
