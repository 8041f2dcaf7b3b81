"""What the scripts here share: how they end when something is wrong or they are interrupted, and their processes with them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any, TypeVar

from frugalvit.errors import FrugalError

T = TypeVar("T")

running: set[subprocess.Popen[bytes]] = set()


def started(main: Callable[[], None]) -> None:
    """Run a script: wrong input is one line, and Ctrl-C ends it with 130, as the commands do."""
    try:
        main()
    except FrugalError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)


def as_name(text: str) -> str:
    """For a file or a folder."""
    return re.sub(r"[^\w.]+", "-", text)


def run_apart(words: Iterable[Any]) -> None:
    """A Python script in a process of its own, which ends when this one is interrupted; raises where it fails."""
    command = [sys.executable, *map(str, words)]
    with subprocess.Popen(command) as process:
        running.add(process)
        try:
            code = process.wait()
        finally:
            running.discard(process)
    if code:
        raise subprocess.CalledProcessError(code, command)


def each_apart(items: Iterable[str], together: int, work: Callable[[str], T]) -> Iterator[tuple[str, Future[T]]]:
    """Each item and what came of `work(item)`, as they end, so many at a time."""
    with ThreadPoolExecutor(together) as pool:
        begun = {pool.submit(work, item): item for item in items}
        try:
            for finished in as_completed(begun):
                yield begun[finished], finished
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running):
                process.terminate()
            raise
