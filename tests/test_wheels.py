"""The script that makes wheels: what it says when something is missing, what it hands to CMake, and one wheel."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "runtime" / "wheels.py"


@pytest.fixture
def wheels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheels", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "wheels", module)  # where dataclasses look for their types
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def zig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the compiler would be, installed or not."""
    package = tmp_path / "packages" / "ziglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(package.parent)
    return package / "zig"


def answering(folder: Path, minor: int, system: str | None = None, has_pip: bool = True) -> str:
    """A command that answers as a Python would whose headers are in `folder`/include/python3.MINOR."""
    command = folder / f"python3.{minor}"
    answer = json.dumps([[3, minor], str(folder / f"include/python3.{minor}"), system, has_pip])
    command.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    command.chmod(0o755)
    return str(command)


def with_headers(folder: Path, minor: int) -> None:
    header = folder / f"include/python3.{minor}/Python.h"
    header.parent.mkdir(parents=True)
    header.touch()


def test_a_python_that_cannot_build_is_refused_with_what_it_lacks(wheels: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no/python: does not run\. Name a Python by its path"):
        wheels.python_of("no/python")
    with pytest.raises(SystemExit, match=r"false: does not run"):  # a shim of a Python that is not there
        wheels.python_of("false")
    with pytest.raises(SystemExit, match=r"Python 3\.10\. Use 3\.11 or newer"):
        wheels.python_of(answering(tmp_path, 10))
    with pytest.raises(SystemExit, match=r"no headers in .*include/python3\.12\. Install them, in Debian as python3\.12-dev"):
        wheels.python_of(answering(tmp_path, 12))
    with_headers(tmp_path, 13)
    with pytest.raises(SystemExit, match=r"has no pip\. Run `.*python3\.13 -m ensurepip`"):
        wheels.python_of(answering(tmp_path, 13, has_pip=False))


def test_every_python_is_asked_before_anything_is_built(wheels: ModuleType, tmp_path: Path) -> None:
    with_headers(tmp_path, 11)
    with pytest.raises(SystemExit, match="no/python"):
        wheels.main(tmp_path / "dist", [answering(tmp_path, 11), "no/python"])
    assert not (tmp_path / "dist").exists()


def test_missing_tools_are_named_together(tmp_path: Path) -> None:
    with_headers(tmp_path, 11)
    command = [sys.executable, "-I", "-S", SCRIPT, tmp_path / "dist", answering(tmp_path, 11)]  # -S: without what pip installed
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert re.match(r"ziglang, auditwheel.*: not installed\. Run `.* -m pip install ziglang auditwheel", done.stderr)
    assert not (tmp_path / "dist").exists()


def test_python_3_11_has_wheels_of_its_own_and_newer_ones_share_the_stable_abi(wheels: ModuleType, tmp_path: Path) -> None:
    names = {}
    for minor in (11, 12, 13):
        with_headers(tmp_path, minor)
        python = wheels.python_of(answering(tmp_path, minor))
        names[minor] = (python.abi(), python.ending("aarch64"))
    assert names[11] == ("cp311-cp311", ".cpython-311-aarch64-linux-gnu.so")
    assert names[12] == names[13] == ("cp312-abi3", ".abi3.so")


def test_without_debians_headers_the_compiler_gets_no_other_ones(wheels: ModuleType, zig: Path, tmp_path: Path) -> None:
    with_headers(tmp_path, 12)
    wheels.toolchain(tmp_path, wheels.python_of(answering(tmp_path, 12, system="x86_64-linux-gnu")), "x86_64")
    compiler = (tmp_path / "x86_64-c++").read_text(encoding="utf-8")
    assert "-isystem" not in compiler
    assert f'exec "{zig}" c++' in compiler  # and not through Python, from which pip hides packages while it builds


@pytest.mark.usefixtures("zig")
def test_debians_configuration_header_is_found_for_both_processors(wheels: ModuleType, tmp_path: Path) -> None:
    own = tmp_path / "include/x86_64-linux-gnu/python3.12/pyconfig.h"
    own.parent.mkdir(parents=True)
    own.write_text("#define SIZEOF_LONG 8\n", encoding="utf-8")
    with_headers(tmp_path, 12)
    python = wheels.python_of(answering(tmp_path, 12, system="x86_64-linux-gnu"))
    for processor in wheels.PROCESSORS:
        toolchain = wheels.toolchain(tmp_path, python, processor)
        copy = tmp_path / f"headers/{processor}-linux-gnu/python3.12/pyconfig.h"
        assert copy.read_text(encoding="utf-8") == own.read_text(encoding="utf-8")
        compiler = tmp_path / f"{processor}-c++"
        assert f"set(CMAKE_CXX_COMPILER {compiler})" in toolchain.read_text(encoding="utf-8")
        assert f"-target {processor}-linux-gnu.2.17 -isystem '{tmp_path / 'headers'}'" in compiler.read_text(encoding="utf-8")


def test_the_oldest_system_is_read_from_the_name_and_only_for_the_processor(wheels: ModuleType) -> None:
    both = "frugalvit-0.1.0-cp312-abi3-manylinux2014_aarch64.manylinux_2_17_aarch64.whl"
    assert wheels.oldest_glibc(both, "aarch64") == (2, 17)
    assert wheels.oldest_glibc(both, "x86_64") is None
    assert wheels.oldest_glibc(both.replace("2014", "_2_9"), "aarch64") == (2, 9)  # numbers, not text
    assert wheels.oldest_glibc("frugalvit-0.1.0-cp312-abi3-linux_aarch64.whl", "aarch64") is None


@pytest.mark.slow
def test_a_wheel_of_the_runtime_runs_on_old_systems_and_imports_here(
    wheels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ziglang")
    pytest.importorskip("auditwheel")
    monkeypatch.setattr(wheels, "PROCESSORS", ("x86_64",))
    monkeypatch.setattr(wheels, "PROJECTS", (wheels.RUNTIME,))
    wheels.main(tmp_path / "dist", [sys.executable])
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert "manylinux_2_17_x86_64" in wheel.name
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", target, wheel], check=True
    )
    code = f"import sys; sys.path.insert(0, {str(target)!r}); from frugalvit_runtime import _native; print(_native.__file__)"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.startswith(str(target))
