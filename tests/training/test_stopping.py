"""Ctrl-C loses nothing: the first one is heard at the next record, which is saved; the second ends at once."""

from __future__ import annotations

import multiprocessing
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.training.runs import PressesAt, states, tiny, trace
from torch.utils.data import DataLoader

from frugalvit.data.batch import Batch
from frugalvit.data.batches import as_worker, started_by
from frugalvit.run import train
from frugalvit.stopping import Stopping
from frugalvit.training import loop
from frugalvit.training.graph_step import GraphStep
from frugalvit.training.step import Step

pytestmark = pytest.mark.usefixtures("heard")

COMMAND = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from frugalvit.cli import main; main()"


@pytest.mark.parametrize("step", [3, 6, 9])  # none of them is due to be saved
def test_an_interrupted_run_is_saved_where_it_was_and_ends_with_the_same_bits(tmp_path: Path, step: int) -> None:
    train(tiny("save=Steps(12)"), out=tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        train(tiny("save=Steps(12)"), out=tmp_path / "run", device="cpu", display=PressesAt(step))
    assert [one.stem for one in states(tmp_path / "run")] == [f"step-{step:09d}"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    train(tiny("save=Steps(12)"), out=tmp_path / "run", resume=True, device="cpu")
    assert trace(tmp_path / "run") == trace(tmp_path / "whole")


def test_twice_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny("save=Steps(12)"), out=tmp_path / "run", device="cpu", display=PressesAt(6, times=2))
    assert not states(tmp_path / "run")


def test_at_the_last_record_the_run_is_finished_anyway(tmp_path: Path) -> None:
    assert train(tiny(), out=tmp_path / "run", device="cpu", display=PressesAt(24)).summary["step"] == 24


def test_where_nothing_can_be_lost_it_ends_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), Stopping(lambda: False):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(("path", "kind"), [("plain", Step), ("kept", GraphStep)])
def test_where_the_next_record_is_far_a_step_is_enough(
    tmp_path: Path, path: str, kind: type[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow steps: what ends a job waits for a minute or so. The weights that come of it are the same."""
    far = ("save=Steps(24)", "evaluate=Steps(24)", "log_every=24", f"path={path}")
    train(tiny(*far), out=tmp_path / "whole", device="cpu")
    take = kind.take

    def interrupted(step: Step, batches: list[Batch]) -> None:
        take(step, batches)
        if step.state.step == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    for patience, saved in ((1e9, []), (0.0, ["step-000000005"])):
        run = tmp_path / f"run-{patience}"
        with monkeypatch.context() as patch:
            patch.setattr(kind, "take", interrupted)
            patch.setattr(loop, "PATIENCE", patience)
            if saved:
                with pytest.raises(KeyboardInterrupt):
                    train(tiny(*far), out=run, device="cpu")
            else:
                train(tiny(*far), out=run, device="cpu")  # it has ended before a record came
        assert saved in ([], [one.stem for one in states(run)])
    train(tiny(*far), out=run, resume=True, device="cpu")
    whole, again = trace(tmp_path / "whole"), trace(run)
    assert again["weights"] == whole["weights"]
    assert [row["step"] for row in again["metrics"]] == [5, 24]
    assert again["metrics"][1].keys() == whole["metrics"][0].keys()


def test_sigterm_saves_too(tmp_path: Path) -> None:
    """What `kill` sends, and batch systems before they end a job."""
    with pytest.raises(KeyboardInterrupt):
        train(tiny("save=Steps(12)"), out=tmp_path / "run", device="cpu", display=PressesAt(6, number=signal.SIGTERM))
    assert [one.stem for one in states(tmp_path / "run")] == ["step-000000006"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="Windows has none")
def test_however_often_a_terminal_says_that_it_is_closed_the_run_is_saved(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny("save=Steps(12)"), out=tmp_path / "run", device="cpu", display=PressesAt(6, times=3, number=signal.SIGHUP))
    assert [one.stem for one in states(tmp_path / "run")] == ["step-000000006"]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


@pytest.mark.skipif(sys.platform != "linux", reason="terminals of other systems end otherwise")
def test_a_command_whose_terminal_is_closed_saves_with_its_workers(tmp_path: Path) -> None:
    words = ["vit.digits", "dim=16", "depth=1", "epochs=400", "save=Epochs(300)", "log_every=5", "path=plain", "--workers", "1"]
    assert in_a_terminal_that_is_closed("", words, tmp_path / "run") == 130
    assert len(states(tmp_path / "run")) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="terminals of other systems end otherwise")
@pytest.mark.parametrize("kind", ["xterm", "dumb"])
def test_a_training_that_nobody_tells_outlives_its_terminal(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a shell has disowned."""
    monkeypatch.setenv("TERM", kind)
    words = ["vit.digits", "dim=16", "depth=1", "epochs=30", "log_every=5", "path=plain"]
    assert in_a_terminal_that_is_closed("signal.signal(signal.SIGHUP, signal.SIG_IGN);", words, tmp_path / "run") == 0
    assert (tmp_path / "run" / "summary.json").exists()


def in_a_terminal_that_is_closed(first: str, words: Sequence[str], out: Path) -> int:
    """How a training ends whose terminal is closed when it has shown a few records."""
    terminal, inside = pty.openpty()
    lead = f"import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {first} {COMMAND}"  # it is this session's
    command = [sys.executable, "-c", lead, "train", *words, "--device", "cpu", "--out", str(out)]
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, start_new_session=True) as process:
        os.close(inside)
        log, began = out / "metrics.jsonl", time.monotonic()
        while not (log.exists() and log.read_text().count("\n") > 2) and time.monotonic() - began < 90:
            assert process.poll() is None
            if select.select([terminal], [], [], 0.05)[0]:
                os.read(terminal, 4096)
        os.close(terminal)
        return process.wait(60)


def test_workers_still_end_by_sigterm() -> None:
    """Loaders end their workers by it where nothing else helps; these began while it was heard."""
    with Stopping(lambda: True):
        loader = iter(DataLoader(range(64), num_workers=1, worker_init_fn=as_worker))
        next(loader)
        (worker,) = multiprocessing.active_children()
        worker.terminate()
        worker.join(10)
        assert not worker.is_alive()


def test_handlers_of_the_program_and_other_threads_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        with Stopping(lambda: True) as stopping:
            os.kill(os.getpid(), signal.SIGINT)
        assert heard == [signal.SIGINT] and not stopping.asked
    finally:
        signal.signal(signal.SIGINT, before)
    found: list[object] = []

    def elsewhere() -> None:
        with Stopping(lambda: True):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_where_ctrl_c_is_ignored_it_stays_so(tmp_path: Path) -> None:
    """A training in the background of a shell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert train(tiny(), out=tmp_path / "run", device="cpu", display=PressesAt(6)).summary["step"] == 24


def test_a_command_and_its_workers_hear_ctrl_c_and_save(tmp_path: Path) -> None:
    """The terminal sends it to all processes of the command."""
    words = ["train", "vit.digits", "dim=16", "depth=1", "epochs=400", "save=Epochs(300)", "log_every=5", "path=plain"]
    command = [sys.executable, "-c", COMMAND, *words, "--workers", "1", "--device", "cpu", "--out", str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        log, began = tmp_path / "run" / "metrics.jsonl", time.monotonic()
        while not (log.exists() and log.read_text().count("\n") > 2) and time.monotonic() - began < 90:
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read().decode()
        assert process.wait(60) == 130
    assert "stopping at the next record, to save it; once more stops at once" in said and "Traceback" not in said
    assert "the same command with --resume goes on from the newest checkpoint" in said
    assert len(states(tmp_path / "run")) == 1


def test_ctrl_c_before_anything_has_begun_is_no_traceback() -> None:
    early = "import sys; from frugalvit.__main__ import main\n"
    early += "def stop(name, *_): raise KeyboardInterrupt\nsys.meta_path.insert(0, type('', (), {'find_spec': stop})); main()"
    done = subprocess.run([sys.executable, "-c", early], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"")


def orphaned(folder: Path) -> None:
    """Starts two workers and is killed before they are ready."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=late_worker, args=(folder, number)) for number in range(2)]
    for worker in workers:
        worker.start()
    (folder / "pids").write_text(" ".join(str(worker.pid) for worker in workers))
    os.kill(os.getpid(), signal.SIGKILL)


def late_worker(folder: Path, number: int) -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while os.getppid() == parent.pid:
        time.sleep(0.01)
    time.sleep(2 * number)  # the second outlives the first, and has a copy of the pipe by which the first looks for its parent
    as_worker(number)
    (folder / "waits").write_text("for what nobody will ask")


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_workers_whose_parent_was_killed_while_they_started_end(tmp_path: Path) -> None:
    parent = multiprocessing.get_context("fork").Process(target=orphaned, args=(tmp_path,))
    parent.start()
    parent.join()
    left, began = [Path("/proc") / pid for pid in (tmp_path / "pids").read_text().split()], time.monotonic()
    while any(proc.exists() for proc in left) and time.monotonic() - began < 20:
        time.sleep(0.02)
    assert not any(proc.exists() for proc in left) and not (tmp_path / "waits").exists()


def test_a_worker_of_a_fork_server_knows_no_parent_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert started_by(os.getppid()) and not started_by(os.getpid())
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda: "forkserver")
    assert started_by(os.getpid())
