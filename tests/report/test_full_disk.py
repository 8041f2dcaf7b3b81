"""A disk that is full, a limit that is reached, a folder that is closed: nothing half-written stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frugalvit.errors import DataError
from frugalvit.report.record import RunFolder

HEAD = """
import os, resource, sys
from pathlib import Path
from frugalvit.errors import DataError
from frugalvit.report.record import RunFolder
"""


def ran(code: str, folder: Path) -> str:
    process = subprocess.run([sys.executable, "-c", HEAD + code], cwd=folder, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def test_a_full_disk_is_named_with_its_cure(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", {}, {}) as run:
        (run.path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(DataError, match=r"metrics\.jsonl: no space is left .*Free some and use --resume, or .* --out"):
            run.append({"step": 1})


def test_a_line_that_only_fits_in_part_is_taken_back(tmp_path: Path) -> None:
    code = """
with RunFolder.create(Path("run"), {}, {}) as run:
    run.append({"step": 1})
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
    try:
        run.append({"step": 2, "loss": 1.2345678901234567, "accuracy": 0.5})
    except DataError as error:
        print(error)
"""
    assert ran(code, tmp_path).startswith("run/metrics.jsonl: no space is left")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_a_summary_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    code = """
with RunFolder.create(Path("run"), {}, {}) as run:
    run.summary({"accuracy": 1.0})
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
    try:
        run.summary({"accuracy": 2.0, "text": "long " * 20})
    except DataError as error:
        print(error)
"""
    assert ran(code, tmp_path).startswith("run/summary.json: no space is left")
    assert RunFolder(tmp_path / "run").results() == {"accuracy": 1.0}
    assert not list((tmp_path / "run").glob(".*.part"))


def test_a_run_that_could_not_begin_leaves_a_folder_that_can_be_used(tmp_path: Path) -> None:
    code = """
resource.setrlimit(resource.RLIMIT_FSIZE, (30, resource.RLIM_INFINITY))
try:
    RunFolder.create(Path("run"), {"text": "long " * 20}, {})
except DataError as error:
    print(error)
"""
    assert ran(code, tmp_path).startswith("run/recipe.json: no space is left")
    assert [one.name for one in (tmp_path / "run").iterdir()] == [".lock"]
    RunFolder.create(tmp_path / "run", {}, {}).close()


def test_a_read_only_folder_is_named_with_its_cure(tmp_path: Path) -> None:
    code = """
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    RunFolder.create(Path("run"), {}, {})
except DataError as error:
    print(error)
"""
    tmp_path.chmod(0o555)
    text = ran(code, tmp_path)
    tmp_path.chmod(0o755)
    assert text == "run: cannot be written: it is read-only, or belongs to someone else. Change that, or choose another --out."
    assert not os.listdir(tmp_path)  # noqa: PTH208


def test_a_folder_that_was_closed_after_the_run_began_is_named(tmp_path: Path) -> None:
    code = """
run = RunFolder.create(Path("run"), {}, {})
os.chmod("run", 0o555)
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
for write in (lambda: run.append({"step": 1}), lambda: run.summary({})):
    try:
        write()
    except DataError as error:
        print(error.path)
"""
    assert ran(code, tmp_path).split() == ["run/metrics.jsonl", "run/summary.json"]
    (tmp_path / "run").chmod(0o755)
