"""Tries the program `fvit` as people call it: python command.py FVIT [limits].

With `limits` also where memory is short or much is needed, which neither sanitizers nor emulators bear.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from packed import TINY, Writer, pyramid
from png import chunk

MEGABYTE = 1 << 20
Done = subprocess.CompletedProcess[bytes]


class Calls:
    """A folder with a model and pictures, and calls of the program in it."""

    def __init__(self, fvit: str, folder: Path):
        self.fvit, self.folder = fvit, folder
        writer = pyramid(Writer("tiny", 16, np.random.default_rng(0), cover=64), 2, TINY, 5)
        self.write("model.fvit", writer.encode())
        self.write("good.ppm", b"P6 20 30 255\n" + np.random.default_rng(1).bytes(1800))
        self.write("thin.pgm", b"P5 32768 1 255\n" + bytes(32768))
        size = struct.pack(">IIBBBBB", 12000, 9000, 8, 2, 0, 0, 0)
        self.write("huge.png", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", bytes(9)) + chunk(b"IEND", b""))

    def write(self, name: str, data: bytes) -> None:
        (self.folder / name).write_bytes(data)

    def __call__(
        self,
        *words: str,
        threads: str | None = "1",
        pipe: bytes | None = None,
        out: int = subprocess.PIPE,
        before: Callable[[], object] | None = None,
    ) -> Done:
        environment = {name: value for name, value in os.environ.items() if name != "FRUGALVIT_THREADS"}
        environment |= {} if threads is None else {"FRUGALVIT_THREADS": threads}
        return subprocess.run(
            [self.fvit, *words],
            cwd=self.folder,
            env=environment,
            input=pipe,
            stdout=out,
            stderr=subprocess.PIPE,
            preexec_fn=before,
            timeout=300,
        )

    def refused(self, *parts: str, done: Done) -> None:
        """Each part in a line of its own, and the status 1."""
        lines = done.stderr.decode().splitlines()
        assert done.returncode == 1 and len(lines) == len(parts), done
        for part, line in zip(parts, lines, strict=True):
            assert line.startswith("fvit: ") and part in line, f"{line!r} does not say {part!r}"


def help_and_version(fvit: Calls) -> None:
    for word in ("--help", "-h"):
        done = fvit(word)
        assert done.returncode == 0 and done.stdout.startswith(b"usage: fvit MODEL PICTURE") and not done.stderr, done
    package = (Path(__file__).parents[1] / "python/frugalvit_runtime/__init__.py").read_text(encoding="utf-8")
    done = fvit("--version")
    assert done.returncode == 0 and f'__version__ = "{done.stdout.decode().split()[1]}"' in package, done
    for words in ((), ("model.fvit",), ("bench",)):
        done = fvit(*words)
        assert done.returncode == 2 and done.stderr.startswith(b"usage: ") and not done.stdout, done


def as_many_classes_as_are_asked_for(fvit: Calls) -> None:
    five = fvit("model.fvit", "good.ppm").stdout.splitlines()
    assert len(five) == 6
    for words in (("--top", "2", "model.fvit", "good.ppm"), ("model.fvit", "good.ppm", "--top", "2")):
        done = fvit(*words)
        assert done.returncode == 0 and done.stdout.splitlines() == five[:3], done
    assert fvit("model.fvit", "good.ppm", "--top", "1000").stdout.splitlines() == five
    for wrong in ("0", "-1", "two", "2.5", ""):
        done = fvit("model.fvit", "good.ppm", "--top", wrong)
        fvit.refused(f"--top {wrong}: use a whole number, 1 or more", done=done)
    for words in (("model.fvit", "good.ppm", "--top"), ("--top", "2", "model.fvit"), ("bench", "model.fvit", "--top", "2")):
        done = fvit(*words)
        assert done.returncode == 2 and done.stderr.startswith(b"usage: ") and not done.stdout, done


def an_output_that_cannot_be_written_is_an_error(fvit: Calls) -> None:
    fvit.write("exact.ppm", b"P6 16 16 255\n" + bytes(768))
    calls = (("model.fvit", "good.ppm"), ("bench", "model.fvit"), ("trace", "model.fvit", "exact.ppm"), ("--help",))
    with Path("/dev/full").open("wb") as full:
        for words in calls:
            fvit.refused("standard output: cannot be written (No space left", done=fvit(*words, out=full.fileno()))


def a_reader_who_has_enough_is_none(fvit: Calls) -> None:
    for ignored in (False, True):
        reader, writer = os.pipe()
        os.close(reader)
        action = signal.SIG_IGN if ignored else signal.SIG_DFL
        done = fvit("model.fvit", "good.ppm", out=writer, before=lambda action=action: signal.signal(signal.SIGPIPE, action))
        os.close(writer)
        assert not done.stderr and (done.returncode == 0 or not ignored), done


def pictures_behind_bad_ones_are_classified(fvit: Calls) -> None:
    done = fvit("model.fvit", "thin.pgm", "missing.png", "huge.png", "good.ppm")
    fvit.refused(
        "thin.pgm: a picture too thin", "missing.png: cannot", "huge.png: a PNG picture with too many pixels", done=done
    )
    assert b"at most 89 million." in done.stderr
    assert done.stdout == fvit("model.fvit", "good.ppm").stdout and done.stdout.startswith(b"good.ppm\n")


def pipes_are_read_as_files_are(fvit: Calls) -> None:
    direct = fvit("model.fvit", "good.ppm").stdout
    large = b"P6 700 300 255\n" + np.random.default_rng(2).bytes(630000)  # more than a pipe holds at a time
    fvit.write("large.ppm", large)
    model, picture = (fvit.folder / "model.fvit").read_bytes(), (fvit.folder / "good.ppm").read_bytes()
    assert fvit("/dev/stdin", "good.ppm", pipe=model).stdout == direct
    for name, data in (("good.ppm", picture), ("large.ppm", large)):
        found = fvit("model.fvit", "/dev/stdin", pipe=data)
        assert found.stdout == fvit("model.fvit", name).stdout.replace(name.encode(), b"/dev/stdin") and not found.returncode
    fvit.refused("/dev/stdin: not a packed model", done=fvit("/dev/stdin", "good.ppm", pipe=b""))


def threads_are_as_many_as_the_process_may_use(fvit: Calls) -> None:
    allowed = os.sched_getaffinity(0)
    for some in (allowed, {min(allowed)}):
        for threads in (None, ""):
            done = fvit("bench", "model.fvit", threads=threads, before=lambda some=some: os.sched_setaffinity(0, some))
            assert f", {min(len(some), 256)} threads," in done.stdout.decode(), done
    fvit.refused("FRUGALVIT_THREADS=0: use a whole number from 1 to 256", done=fvit("bench", "model.fvit", threads="0"))


def numbers_that_are_not_finite_are_refused(fvit: Calls) -> None:
    for real in ("<f4", "<f2"):
        for number in (np.nan, np.inf, -np.inf):
            writer = pyramid(Writer("tiny", 16, np.random.default_rng(0), real=real), 2, TINY, 5)
            head = writer.steps[-1]["weight"]
            assert writer.tensors[head].dtype.str == real
            writer.tensors[head][-1, -1] = number
            fvit.write("bad.fvit", writer.encode())
            problem = f"bad.fvit: program, steps[{len(writer.steps) - 1}]: 'weight' holds a number that is not finite"
            fvit.refused(problem, done=fvit("bad.fvit", "good.ppm"))


def other_safetensors_files_are_told_so(fvit: Calls) -> None:
    entries = b'"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    for metadata in (b"", b'"__metadata__":{"format":"pt"},'):
        header = b"{" + metadata + entries
        fvit.write("model.safetensors", len(header).to_bytes(8, "little") + header + bytes(4))
        done = fvit("model.safetensors", "good.ppm")
        fvit.refused("model.safetensors: not a packed model", done=done)
        assert b"`frugalvit pack` writes one" in done.stderr, done


def answers_that_are_not_finite_are_refused(fvit: Calls) -> None:
    for seed in range(3):
        writer = pyramid(Writer("tiny", 16, np.random.default_rng(seed), cover=64), 2, TINY, 5)
        head = writer.tensors[writer.steps[-1]["weight"]]
        head[1:] = 3e38 * np.sign(head[1:])  # one class stays finite
        fvit.write("endless.fvit", writer.encode())
        fvit.write("black.ppm", b"P6 20 30 255\n" + bytes(1800))
        done = fvit("endless.fvit", "black.ppm", "missing.png", "good.ppm")
        none = "the model has no answer"
        fvit.refused(f"black.ppm: {none}", "missing.png: cannot", f"good.ppm: {none}", done=done)
        assert done.stdout == b"", done
    writer = pyramid(Writer("tiny", 16, np.random.default_rng(0), cover=64), 2, TINY, 5)
    writer.tensors[writer.steps[-1]["bias"]][:2] = 3e38, -3e38  # large, but finite
    fvit.write("large.fvit", writer.encode())
    done = fvit("large.fvit", "good.ppm")
    assert done.returncode == 0 and done.stdout.splitlines()[1] == b"  100.0 %  class 0", done


def a_file_without_an_end_is_refused(fvit: Calls) -> None:
    fvit.refused("/dev/zero: more than 2^30 bytes", done=fvit("model.fvit", "/dev/zero"))


def short_memory_is_said(fvit: Calls) -> None:
    def below(megabytes: int) -> Callable[[], object]:
        return lambda: resource.setrlimit(resource.RLIMIT_AS, (megabytes * MEGABYTE,) * 2)

    with (fvit.folder / "large.pgm").open("wb") as file:
        file.write(b"P5 12000 12000 255\n")
        file.truncate(file.tell() + 12000 * 12000)
    done = fvit("model.fvit", "large.pgm", "good.ppm", before=below(250))
    fvit.refused("large.pgm: not enough memory", done=done)
    assert done.stdout == fvit("model.fvit", "good.ppm").stdout
    header = b'{"a":[0' + b",0" * ((16 * MEGABYTE - 10) // 2) + b"]}"
    fvit.write("values.fvit", len(header).to_bytes(8, "little") + header)
    done = fvit("values.fvit", "good.ppm", before=below(250))
    fvit.refused("values.fvit: JSON: more than 2^20 values at byte 2097", done=done)
    for words in (("bench", "model.fvit"), ("model.fvit", "good.ppm")):
        fvit.refused("cannot start 256 threads (", done=fvit(*words, threads="256", before=below(400)))


def main(fvit: str, options: Sequence[str]) -> None:
    tests = [
        help_and_version,
        as_many_classes_as_are_asked_for,
        an_output_that_cannot_be_written_is_an_error,
        a_reader_who_has_enough_is_none,
        pictures_behind_bad_ones_are_classified,
        pipes_are_read_as_files_are,
        threads_are_as_many_as_the_process_may_use,
        other_safetensors_files_are_told_so,
        numbers_that_are_not_finite_are_refused,
        answers_that_are_not_finite_are_refused,
        *([a_file_without_an_end_is_refused, short_memory_is_said] if "limits" in options else []),
    ]
    with tempfile.TemporaryDirectory() as folder:
        calls = Calls(fvit, Path(folder))
        for test in tests:
            test(calls)
            print(test.__name__.replace("_", " "), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
