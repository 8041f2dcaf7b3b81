"""Files of a run: JSON written whole or not at all, and one process at a time in a folder."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import numbers
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from frugalvit.errors import DataError, at, join
from frugalvit.handles import hold, let_go, wait_for

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
UNLOCKABLE = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
ABSENT = "absent"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what a disk can say into a DataError at `path` with a cure."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            problem = "no space is left (disk, quota or file size limit). Free some and use --resume, or choose another --out."
        elif error.errno in CLOSED:
            problem = "cannot be written: it is read-only, or belongs to someone else. Change that, or choose another --out."
        else:
            problem = f"cannot be written ({error.strerror}). Check the disk, or choose another --out."
        raise DataError(problem, path=str(path)) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write beside the target and move into place, so that a crash leaves the old file or none."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with writing(path):
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        finally:
            with contextlib.suppress(OSError):  # what went wrong above is what is told
                part.unlink(missing_ok=True)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    write_whole(path, in_bytes(json.dumps(plain(data), indent=2, allow_nan=False, ensure_ascii=False) + "\n"))


def in_bytes(text: str) -> bytes:
    """JSON in UTF-8. Of file names that are not, Python keeps the bytes as halves of surrogate pairs; JSON escapes these."""
    return text.encode(errors="backslashreplace")


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror}).", path=str(path)) from error
    except ValueError as error:
        raise DataError(f"is not JSON ({error}). Copy it again, or remove it.", path=str(path)) from error
    if not isinstance(found, dict):
        raise DataError("holds no JSON object.", path=str(path))
    return found


def plain(value: Any) -> Any:
    """A value as JSON can hold it. What is not finite becomes "nan", "inf" or "-inf": JSON has no such number."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): inside(f"{key}", one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [inside(f"[{index}]", one) for index, one in enumerate(value)]
    raise DataError(f"{type(value).__name__} cannot be written as JSON. Use numbers, strings, lists and dicts.")


def inside(step: str, value: Any) -> Any:
    with at(step):
        return plain(value)


def number(value: Any) -> Any:
    """`plain` backwards, for one value: "nan" is a number again."""
    return NOT_FINITE.get(value, value) if isinstance(value, str) else value


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The leaves in which two pieces of JSON differ, as (path, old, new)."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), join(path, key))
    elif isinstance(old, list) and isinstance(new, list):
        for index in range(max(len(old), len(new))):
            was, now = (one[index] if index < len(one) else ABSENT for one in (old, new))
            yield from differences(was, now, f"{path}[{index}]")
    elif old != new:
        yield path, old, new


# ------------------------------------------------------------------------------------------------ one writer at a time


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Wait until no other process changes the file at `path`, and hold the others off; the lock is a file beside it.

    Where the file system has no locks, nobody waits.
    """
    beside = path.with_name(f".{path.name}.lock")
    with writing(path):
        handle = os.open(beside, os.O_RDWR | os.O_CREAT, 0o666)
    hold(handle)
    try:
        wait_for(handle)
        yield
    finally:
        let_go(handle)


def lock(path: Path) -> int:
    """Hold `path` for this process until `let_go`, or until the process dies in whichever way."""
    with writing(path):
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(handle, 20).decode(errors="replace").strip() or "unknown"
        os.close(handle)
        problem = f"process {holder} is writing a run here. Wait for it, stop it, or choose another --out."
        raise DataError(problem, path=str(path.parent)) from error
    except (ImportError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in UNLOCKABLE:
            os.close(handle)
            raise DataError(f"cannot be locked ({error.strerror}). Choose another --out.", path=str(path)) from error
        warnings.warn(f"{path.parent}: no locks on this file system; see to it that one run writes here.", stacklevel=2)
    hold(handle)
    try:
        with writing(path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    except DataError:
        let_go(handle)
        raise
    return handle
