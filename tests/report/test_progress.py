from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from frugalvit.report.progress import Bar, Lines, Pace, Silent, display_for

RECORD = {"step": 20, "epoch": 1.25, "loss": 2.302585, "lr": 5e-4, "time_images_per_second": 1234.4, "time_waiting": 0.03}


def test_lines_are_plain_and_hold_every_number() -> None:
    stream = io.StringIO()
    display = display_for(stream, "auto")
    assert isinstance(display, Lines)
    display.start(40, 0)
    display.show(RECORD)
    display.show({"step": 40, "loss": float("nan"), "accuracy": 0.5, "split": "test"})
    display.note("done [bold]x[/bold]")
    display.stop()
    first, second, third = stream.getvalue().splitlines()
    assert first == "step 20/40  epoch 1.25  loss 2.303  lr 0.0005  1,234 images/s  3% waiting  0:00:00 left"
    assert second == "step 40/40  loss nan  accuracy 0.5  0:00:00 left"
    assert third == "note: done [bold]x[/bold]"


def test_waiting_for_data_is_said_once() -> None:
    stream = io.StringIO()
    display = Lines(stream)
    display.start(40, 0)
    for step, share in enumerate((0.05, 0.1, 0.34, 0.5)):
        display.show({"step": step, "time_waiting": share})
    hints = [line for line in stream.getvalue().splitlines() if line.startswith("note")]
    assert hints == ["note: 34% of the time is spent waiting for data. Try more --workers."]


def test_the_time_left_counts_from_the_first_record() -> None:
    now = iter([0.0, 100.0, 110.0, 110.0, 120.0])
    pace = Pace(total=40, done=10, clock=lambda: next(now))
    assert str(pace.left(20)) == "0:03:20"
    assert str(pace.left(30)) == "0:00:10"
    assert pace.left(20) is None
    assert str(pace.left(40)) == "0:00:00"


def test_quiet_shows_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    display = display_for(sys.stderr, "quiet")
    assert isinstance(display, Silent)
    display.start(40, 0)
    display.show(RECORD | {"time_waiting": 0.9})
    display.note("x")
    display.stop()
    assert capfd.readouterr() == ("", "")


SCRIPT = f"""
import sys
from frugalvit.report.progress import display_for
display = display_for(sys.stderr, "auto")
display.start(40, 0)
try:
    display.show({RECORD})
    print("a result")
    display.note("half [way]")
    display.show({RECORD | {"step": 40, "time_waiting": 0.34}})
    raise KeyboardInterrupt
except KeyboardInterrupt:
    pass
finally:
    display.stop()
print(type(display).__name__)
"""


def on_a_terminal(term: str, folder: Path) -> tuple[str, str]:
    """What the script writes to a pseudo terminal of 80 columns as stderr, and to a pipe as stdout."""
    main, side = pty.openpty()
    env = os.environ | {"TERM": term, "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=side, env=env, cwd=folder)
    os.close(side)
    out, _ = process.communicate(timeout=30)
    seen = b""
    try:
        while block := os.read(main, 65536):
            seen += block
    except OSError:  # the other side is closed
        pass
    os.close(main)
    assert process.returncode == 0, seen.decode()
    return out.decode(), seen.decode()


def test_a_bar_is_drawn_on_a_terminal_and_leaves_stdout_to_the_pipe(tmp_path: Path) -> None:
    out, seen = on_a_terminal("xterm-256color", tmp_path)
    assert out == "a result\nBar\n"
    assert "━" in seen and "20/40" in seen and "40/40" in seen
    for word in ("epoch 1.25", "loss 2.303", "lr 0.0005", "1,234 images/s", "3% waiting", "left"):
        assert word in seen, word
    assert "note: half [way]" in seen and seen.count("waiting for data") == 1
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l"), "the cursor is back"


def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    out, seen = on_a_terminal("dumb", tmp_path)
    assert out == "a result\nLines\n"
    assert "\x1b" not in seen and "step 20/40  epoch 1.25" in seen


def test_a_bar_that_never_started_stops() -> None:
    Bar(io.StringIO()).stop()
