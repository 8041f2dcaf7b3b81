"""What a process may use of the CPU, and how long its threads waited for a core that they were not given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

THREADS = Path("/proc/self/task")  # on Linux, a folder for each thread of this process


def usable_cores() -> int:
    """The cores that this process may use, which can be fewer than the machine has (taskset, containers)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def waited() -> dict[str, float]:
    """Seconds that each thread of this process was ready to run, so far, while others had the cores.

    Nothing where the system does not tell. A thread that has nothing to do sleeps, and sleeping is not waiting.
    """
    found = {}
    for thread in THREADS.iterdir() if THREADS.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, IndexError):  # a kernel without it, a thread that just ended
            found[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9  # it ran, it waited, how often
    return found


def longest_wait(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Seconds that the thread waited that waited longest: those that share their work wait for the last of them."""
    return max((seconds - before.get(name, 0.0) for name, seconds in after.items()), default=0.0)
