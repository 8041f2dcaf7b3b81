"""Open files that hold a lock for this process. A forked child lets them go: it must not keep what a killed parent held."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Literal

PAUSE = 0.1  # seconds between two looks at a lock that another holds

_held: set[int] = set()


def hold(handle: int) -> None:
    _held.add(handle)


def let_go(handle: int) -> None:
    """Close it; in a forked child, where it is closed already, nothing happens."""
    if handle in _held:
        _held.discard(handle)
        os.close(handle)


def wait_for(handle: int) -> bool:
    """Lock an open file, once nobody else holds it; False where the file system has no locks."""
    while (taken := try_for(handle)) == "held":
        time.sleep(PAUSE)
    return taken == "ours"


def try_for(handle: int) -> Literal["ours", "held", "no locks"]:
    """Lock an open file, unless another holds it or the file system has no locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "held"
    except (ImportError, OSError):
        return "no locks"
    return "ours"


def _let_go_after_fork() -> None:
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)
