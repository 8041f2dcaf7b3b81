"""Ctrl-C during a training: heard once, it waits for the next record, so that nothing is lost; heard again, it ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

HEARD = b"\nstopping at the next record, to save it; once more stops at once\n"


class Stopping:
    """Listens inside `with`, and says that it has heard, also to a quiet run. `pending`: whether there is anything to lose yet.

    Only a program's main thread hears signals. In others, and where the program has a handler of its own, all is as it was.
    """

    def __init__(self, pending: Callable[[], bool]):
        self.pending = pending
        self.asked = False
        self.before: Any = None

    def __enter__(self) -> Stopping:
        usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if usual and threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGINT, self.hear)
        return self

    def __exit__(self, *_: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGINT, self.before)

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.pending():
            raise KeyboardInterrupt
        self.asked = True
        with contextlib.suppress(OSError):
            os.write(2, HEARD)  # and not by `print`: whoever was writing to the console is interrupted too
