"""What a process may use of the CPU, and how long it waits for it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from frugalvit.measure.processor import longest_wait, usable_cores, waited

tells = pytest.mark.skipif(not waited(), reason="the system does not tell how long threads wait")


@contextmanager
def busy_cores() -> Iterator[None]:
    """A program on every core that never rests."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(usable_cores())]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


@tells
def test_who_computes_beside_others_waits_and_who_sleeps_does_not() -> None:
    with busy_cores():
        time.sleep(0.5)  # until they have started
        began, before = time.perf_counter(), waited()
        while time.perf_counter() - began < 1.0:
            sum(range(1000))
        computed = longest_wait(before, waited()) / (time.perf_counter() - began)
        began, before = time.perf_counter(), waited()
        time.sleep(1.0)
        slept = longest_wait(before, waited()) / (time.perf_counter() - began)
    assert computed > 0.2
    assert slept < 0.1


def test_the_thread_that_waited_longest_counts() -> None:
    assert longest_wait({"7": 100.0, "8": 5.0}, {"7": 100.25, "8": 5.5, "9": 0.125}) == 0.5
    assert longest_wait({"8": 5.0}, {"8": 5.0, "9": 0.125}) == 0.125  # begun meanwhile
    assert longest_wait({}, {}) == 0.0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a system without affinity")
def test_cores_are_those_that_the_process_may_use() -> None:
    code = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
    code += "from frugalvit.measure.processor import usable_cores; print(usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "1\n"
