"""Ctrl-C, SIGTERM, SIGHUP: a training that hears one ends at its next record and loses nothing; by a second one, at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import FrameType
from typing import Any

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
USUAL: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if HANGUP is not None:
    USUAL[HANGUP] = signal.SIG_DFL
HEARD = b"\nstopping at the next record, to save it; once more stops at once, unsaved\n"


class Stopping:
    """Listens inside `with`, and says that it has heard, also to a quiet run. `pending`: whether there is anything to lose yet.

    SIGTERM is what `kill` sends, and a batch system before it ends a job; SIGHUP comes when a terminal is closed or its
    connection lost. Only a program's main thread hears signals. In others, and where the program has a handler of its own, all
    is as it was.
    """

    def __init__(self, *pending: Callable[[], bool]):
        self.pending = list(pending)
        self.asked = False
        self.heard: list[signal.Signals] = []  # what was as usual, and is listened to

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            self.heard = [one for one, usual in USUAL.items() if signal.getsignal(one) is usual]
        for one in self.heard:
            signal.signal(one, self.hear)
        return self

    def __exit__(self, *_: object) -> None:
        for one in self.heard:
            signal.signal(one, USUAL[one])

    def hear(self, number: int, frame: FrameType | None) -> None:
        again = self.asked and number != HANGUP  # which the system sends, and the shell too
        self.asked = True
        if again or not any(one() for one in tuple(self.pending)):
            raise KeyboardInterrupt
        try:
            os.write(2, HEARD)  # and not by `print`: whoever was writing to the console is interrupted too
        except OSError:
            leave_terminal()


def leave_terminal() -> None:
    """Let output that went to a terminal go nowhere: it is closed, and writing there would end the program."""
    for descriptor in (1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


TOGETHER: ContextVar[Stopping | None] = ContextVar("together", default=None)


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Inside, one Ctrl-C stops all trainings: one after the other, or in threads that run in a copy of this context."""
    with Stopping() as stopping:
        token = TOGETHER.set(stopping)
        try:
            yield
        finally:
            TOGETHER.reset(token)


@contextlib.contextmanager
def listening(pending: Callable[[], bool]) -> Iterator[Stopping]:
    """What a training listens with: that of all which stop together, or one of its own. None begins after it was asked."""
    stopping = TOGETHER.get()
    if stopping is None:
        with Stopping(pending) as own:
            yield own
        return
    if stopping.asked:
        raise KeyboardInterrupt
    stopping.pending.append(pending)
    try:
        yield stopping
    finally:
        stopping.pending.remove(pending)


def interrupt(threads: Sequence[threading.Thread]) -> None:
    """Ctrl-C for threads, which hear none."""
    for thread in threads:
        number, kind = ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(number, kind)  # does nothing to one that has ended
