"""What killed builds leave in a folder of stores, and who removes it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.data.test_store import FORK, ended, files_of, open_store, quiet, slow_arrays, started, stored, toy_arrays

from frugalvit.data import store_build
from frugalvit.errors import DataError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_build, "MOST", 5)


def killed(path: Path) -> str:
    """The name of what a build leaves that is killed when it has written some pictures."""

    def progress(done: int, total: int) -> None:
        if done:
            os.kill(os.getpid(), signal.SIGKILL)

    before = set(files_of(path.parent))
    assert ended(started(lambda: void(stored(toy_arrays(), path, progress=progress)))) == -signal.SIGKILL
    (left,) = set(files_of(path.parent)) - before
    assert left.startswith(path.name) and left.endswith(".pixels.part")
    return left


def void(_: object) -> None:
    """A task gives nothing."""


def test_a_build_removes_what_a_killed_build_of_another_store_left(tmp_path: Path) -> None:
    whole = stored(toy_arrays(7), tmp_path / "other.json")
    killed(tmp_path / "toy-full.json")
    killed(tmp_path / "other.json")
    found = stored(toy_arrays(), tmp_path / "toy-448.json", limit=448)
    kept = ["other.json", whole.file.name, "toy-448.json", found.file.name]
    assert files_of(tmp_path) == sorted(kept)
    np.testing.assert_array_equal(open_store(tmp_path / "other.json").array(), toy_arrays(7).images)


def test_what_a_live_build_of_another_store_writes_stays(tmp_path: Path) -> None:
    writes, goes_on = FORK.Event(), FORK.Event()

    def progress(done: int, total: int) -> None:
        if 0 < done < total:
            writes.set()
            assert goes_on.wait(60)

    process = started(lambda: void(stored(slow_arrays(), tmp_path / "toy-full.json", progress=progress)))
    assert writes.wait(60)
    stored(toy_arrays(), tmp_path / "toy-448.json", limit=448)
    assert [name for name in files_of(tmp_path) if name.startswith("toy-full.json.") and name.endswith(".pixels.part")]
    goes_on.set()
    assert ended(process) == 0
    np.testing.assert_array_equal(open_store(tmp_path / "toy-full.json").array(), toy_arrays().images)


def test_where_locks_do_not_tell_or_are_gone_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = killed(tmp_path / "toy-full.json")
    (tmp_path / "toy-full.json.lock").rename(tmp_path / "away")
    stored(toy_arrays(), tmp_path / "toy-448.json", limit=448)
    assert left in files_of(tmp_path)
    (tmp_path / "away").rename(tmp_path / "toy-full.json.lock")

    def unable(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", unable)
        stored(toy_arrays(), tmp_path / "toy-448.json", limit=448)
    assert left in files_of(tmp_path)


def test_a_small_disk_names_what_unfinished_builds_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(tmp_path / "toy-full.json")
    (tmp_path / "toy-full.json.lock").unlink()
    with (tmp_path / f"big.json.{'0' * 16}.pixels.part").open("wb") as file:
        file.truncate(3 * 10**9)
    usage = shutil.disk_usage(tmp_path)._replace(free=2000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    said = r"are free here\. Free some, .*\. Unfinished builds hold 3\.0 GB here \(2 x \*\.part\)\."
    with pytest.raises(DataError, match=said):
        stored(toy_arrays(2000), tmp_path / "toy-448.json", limit=448, progress=quiet)
