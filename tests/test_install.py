"""What installing builds: two packages over one runtime, and a package without it where nothing compiles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import frugalvit

ROOT = Path(__file__).parents[1]
RUNTIME = ROOT / "runtime"
SOURCES = re.findall(r"\bsrc/\w+\.cpp", (RUNTIME / "CMakeLists.txt").read_text(encoding="utf-8"))
NOT_SOURCES = re.compile(r"\.so$|\.pyc$|/\.\w|/__pycache__/")


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def sdist(folder: Path, out: Path) -> set[str]:
    """The names in a source distribution, without its own."""
    pytest.importorskip("scikit_build_core")
    code = f"from scikit_build_core.build import build_sdist; print(build_sdist({str(out)!r}))"
    printed = subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True).stdout
    with tarfile.open(out / printed.split()[-1]) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def test_both_packages_have_one_version_and_one_license_and_one_way_to_build() -> None:
    text = (RUNTIME / "python/frugalvit_runtime/__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{frugalvit.__version__}"' in text
    assert (RUNTIME / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    whole, small = settings(ROOT), settings(RUNTIME)
    assert whole["build-system"] == small["build-system"]
    assert whole["project"]["requires-python"] == small["project"]["requires-python"]
    assert whole["tool"]["scikit-build"]["wheel"]["py-api"] == small["tool"]["scikit-build"]["wheel"]["py-api"]


def test_the_installed_version_is_that_of_the_sources() -> None:
    assert version("frugalvit") == frugalvit.__version__


def test_every_source_file_of_the_runtime_is_compiled_and_every_compiled_one_exists() -> None:
    assert len(SOURCES) > 10
    programs = {"src/main.cpp"}
    assert {str(file.relative_to(RUNTIME)) for file in (RUNTIME / "src").glob("*.cpp")} == set(SOURCES) | programs


def test_the_small_package_needs_numpy_alone() -> None:
    assert settings(RUNTIME)["project"]["dependencies"] == ["numpy>=2"]
    allowed = {"frugalvit_runtime", "numpy", "__future__", *sys.stdlib_module_names}
    for file in (RUNTIME / "python/frugalvit_runtime").glob("*.py"):
        imported = re.findall(r"^(?:from|import) (\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(imported) <= allowed, file.name


def test_source_distributions_hold_what_compiles_and_nothing_built(tmp_path: Path) -> None:
    small, whole = sdist(RUNTIME, tmp_path), sdist(ROOT, tmp_path)
    needed = {"CMakeLists.txt", "python/module.cpp", "python/CMakeLists.txt", "include/frugalvit/model.h", *SOURCES}
    assert needed | {"LICENSE", "README.md", "python/frugalvit_runtime/py.typed"} <= small
    assert {f"runtime/{name}" for name in needed} | {"LICENSE", "README.md", "src/frugalvit/py.typed"} <= whole
    assert not [name for name in small | whole if NOT_SOURCES.search(f"/{name}")]


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_pure_python(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cmake", "ninja", "sh", "uname"):
        found = shutil.which(name)
        assert found, name
        (tools / name).symlink_to(found)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(ROOT)]
    environment = {**os.environ, "PATH": str(tools), "CXX": "/bin/false", "CC": "/bin/false"}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"frugalvit-{frugalvit.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert not [name for name in names if "_native" in name or "fvit" in name.split("/")]
    code = (
        "import frugalvit.deploy.classifier, importlib.util\n"
        "print(importlib.util.find_spec('frugalvit.deploy._native'), frugalvit.__file__)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert printed.stdout.split() == ["None", str(tmp_path / "installed/frugalvit/__init__.py")]
