"""The files of a store: a JSON header that names one file of pixels, both written whole or not at all.

<name>                      the header; it comes last, and with it the store is whole
<name>.<token>.pixels       one picture after the other, height x width x channels, uint8; the token differs from build to build
<name>.<token>.*.part       what is being written, or what a killed build left; the next build in this folder removes it
<name>.lock                 held by the process that builds
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from frugalvit.errors import DataError
from frugalvit.handles import hold, let_go, try_for, wait_for

FORMAT = 2  # 1 had no `written`
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PART = re.compile(r"(.+)\.[0-9a-f]{16}\.(pixels|header)\.part")
LARGER = "Free some, set FRUGALVIT_CACHE to a folder on a larger disk, or store smaller pictures (limit)"


class StaleStore(DataError):
    """A store that is missing, damaged, or of something else than what is asked for."""


@dataclass(frozen=True, eq=False)
class Header:
    """What is known of the pictures of a store. Their offsets follow from their sizes."""

    pixels: str  # the name of the file with the pixels, beside the header
    bytes: int  # its length
    fingerprint: str  # of the source
    written: str  # of the files behind the source (see `backing.written`)
    mode: str
    limit: int | None  # of the shorter side
    decoder: str
    shrunk: int  # pictures that the limit made smaller
    classes: list[str]
    names: list[str]
    labels: np.ndarray  # int64
    heights: np.ndarray  # int64
    widths: np.ndarray  # int64
    unreadable: list[tuple[int, str, str]]  # index, name and problem; such pictures are black, or empty


def encoded(header: Header) -> bytes:
    """JSON whose first entry is the checksum of the rest."""
    fields = {key: getattr(header, key) for key in Header.__dataclass_fields__}
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in fields.items()}
    rest = json.dumps({"format": FORMAT, **plain}, separators=(",", ":")).encode()  # in ASCII: names may hold any byte
    return b'{"checksum":"%s",' % checksum(rest).encode() + rest[1:]


def decoded(data: bytes, path: Path) -> Header:
    try:
        found = json.loads(data)
        written, said = found.pop("format"), found.pop("checksum")
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise StaleStore("is not the header of a store, or damaged. Remove it, and build it again.", path=str(path)) from error
    if written != FORMAT:
        raise StaleStore(f"has format {written}, and this version reads {FORMAT}. Build it again.", path=str(path))
    if said != checksum(b"{" + data.partition(b",")[2]):
        raise StaleStore("does not have the checksum that it states: it is damaged. Build it again.", path=str(path))
    for key in ("labels", "heights", "widths"):
        found[key] = np.array(found[key], dtype=np.int64)
    found["unreadable"] = [(index, name, problem) for index, name, problem in found["unreadable"]]
    return Header(*(found[key] for key in Header.__dataclass_fields__))


def checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_header(path: Path) -> Header:
    try:
        return decoded(path.read_bytes(), path)
    except FileNotFoundError as error:
        raise StaleStore("there is no store here. Build it first.", path=str(path)) from error
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror}).", path=str(path)) from error


def map_pixels(path: Path, size: int) -> np.ndarray:
    """The bytes of a file, mapped; an empty file cannot be."""
    try:
        found = path.stat().st_size
        if found != size:
            raise StaleStore(f"has {found:,} bytes instead of {size:,}. Build the store again.", path=str(path))
        return np.memmap(path, dtype=np.uint8, mode="r") if size else np.zeros(0, dtype=np.uint8)
    except FileNotFoundError as error:
        raise StaleStore("the pixels of a store are gone. Build it again.", path=str(path)) from error
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror}).", path=str(path)) from error


# ------------------------------------------------------------------------------------------------ writing


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what a disk can say into a DataError at `path` with a cure."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            problem = f"no space is left (disk, quota or file size limit). {LARGER}."
        else:
            problem = f"cannot be written ({error.strerror}). Change that, or set FRUGALVIT_CACHE to another folder."
        raise DataError(problem, path=str(path)) from error


class Whole:
    """A file that is written beside its name, and gets it in `keep` once all of it is on the disk."""

    def __init__(self, path: Path, part: Path):
        self.path, self.part = path, part
        self.file = part.open("wb", buffering=0)

    def write(self, data: bytes | memoryview) -> None:
        """All of it. A disk that fills up takes a part first, and says why when it is handed the rest."""
        while len(data):
            data = data[self.file.write(data) :]

    def keep(self) -> None:
        os.fsync(self.file.fileno())
        self.file.close()
        self.part.replace(self.path)
        with contextlib.suppress(OSError):  # not every system can do this with a folder
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def drop(self) -> None:
        """Remove what was not kept."""
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            self.part.unlink(missing_ok=True)


def new_pixels(path: Path) -> Whole:
    """The file that will hold the pixels of the store at `path`, under a name that no other build has."""
    name = f"{path.name}.{secrets.token_hex(8)}.pixels"
    return Whole(path.with_name(name), path.with_name(f"{name}.part"))


def write_header(path: Path, header: Header) -> None:
    """Makes the store whole: whoever opens it sees the old header with the old pixels until here, and then the new ones."""
    file = Whole(path, path.with_name(header.pixels.removesuffix("pixels") + "header.part"))
    try:
        file.write(encoded(header))
        file.keep()
    finally:
        file.drop()


def sweep(path: Path) -> None:
    """Remove what killed builds and earlier ones left. Only while the lock is held: else it might be in use."""
    try:
        kept = read_header(path).pixels
    except DataError:
        kept = ""
    ours = re.compile(re.escape(path.name) + r"\.[0-9a-f]{16}\.(pixels|pixels\.part|header\.part)")
    for one in path.parent.iterdir():
        if ours.fullmatch(one.name) and one.name != kept:
            with contextlib.suppress(OSError):
                one.unlink()


def parts(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Each file in a folder of stores that is not whole yet, and the store that it was to be of."""
    for one in sorted(folder.iterdir()):
        found = PART.fullmatch(one.name)
        if found:
            yield one, folder / found[1]


def sweep_beside(path: Path) -> None:
    """Remove what killed builds of other stores left in the folder; what a live one writes is behind its lock, and stays."""
    for store in {store for _, store in parts(path.parent)} - {path}:
        try:
            handle = os.open(lock_of(store), os.O_RDWR)
        except OSError:  # not ours to open, or gone: nobody can tell whether it is in use
            continue
        hold(handle)
        try:
            if try_for(handle) == "ours":
                for one in [one for one, of in parts(path.parent) if of == store]:
                    with contextlib.suppress(OSError):
                        one.unlink()
        finally:
            let_go(handle)


def refuse_small_disk(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        problem = f"the pictures need about {gigabytes(needed)}, and {gigabytes(free)} are free here. {LARGER}."
        raise DataError(f"{problem}{unfinished(path.parent)}", path=str(path))


def unfinished(folder: Path) -> str:
    """A word where builds that are not finished, or whose end nobody can tell, take room."""
    sizes = []
    for one, _ in parts(folder):
        with contextlib.suppress(OSError):  # finished meanwhile
            sizes.append(one.stat().st_size)
    return f" Unfinished builds hold {gigabytes(sum(sizes))} here ({len(sizes)} x *.part)." if sizes else ""


def gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"


# ------------------------------------------------------------------------------------------------ one builder at a time


def lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Wait until no other process builds the store at `path`, and clear up before and after: before, in the whole folder.

    Where the file system has no locks, nobody waits or clears up. Builds still do each other no harm, since each has its own
    file of pixels: all but the last are work for nothing.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock_of(path), os.O_RDWR | os.O_CREAT, 0o666)
    hold(handle)
    try:
        locked = wait_for(handle)
        if locked:
            sweep(path)
            sweep_beside(path)
        try:
            yield
        finally:
            if locked:
                sweep(path)
    finally:
        let_go(handle)
