"""Where a run ran: versions, commit, command. No user name and no host name."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("frugalvit", "torch", "torchvision", "timm", "numpy", "pillow")


def environment(commit: str | None = None) -> dict[str, Any]:
    """What is known of this process; see `commit_here`. In `commit`, "-dirty" marks changes."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "commit": commit or commit_here(),
        "frugalvit_commit": own_commit(),
        "command": command(sys.argv),
        "cpus": os.cpu_count(),
    }


def version(name: str) -> str | None:
    """A package's version, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def short_commit() -> str:
    """The commit of the working directory in seven digits, with a + where it has changes."""
    found = commit_here() or "unknown"
    return found.removesuffix("-dirty")[:7] + ("+" if found.endswith("-dirty") else "")


def commit_here() -> str | None:
    """That of the working directory; elsewhere that of the clone which this package is, if it is one."""
    return commit_of(Path()) or own_commit()


def own_commit() -> str | None:
    """That of the clone which this package is, if it is one."""
    own = Path(__file__).parent
    return None if "site-packages" in own.parts else commit_of(own)


def commit_of(folder: Path) -> str | None:
    words = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    quiet = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
    try:
        found = subprocess.run(words, capture_output=True, text=True, timeout=10, env=quiet, check=False)
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    return found.stdout.strip() or None


def command(words: list[str]) -> list[str]:
    """The command line; the home folder, which tells a user's name, becomes `~`."""
    try:
        home = str(Path.home())
    except RuntimeError:
        home = "/"
    named = [Path(words[0]).name, *words[1:]] if words else []
    return named if home == "/" else [word.replace(f"{home}/", "~/") if word != home else "~" for word in named]
