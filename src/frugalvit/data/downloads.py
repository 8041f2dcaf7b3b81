"""Files of public data sets: fetched once, from the first address that answers, and checked by their md5."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from frugalvit.data.own import refuse_own_pictures
from frugalvit.errors import DataError
from frugalvit.offline import OFFLINE, offline

PATIENCE = 30  # seconds without a byte until the next address is tried


@dataclass(frozen=True)
class Download:
    """A file, its md5, and the addresses that have it, tried in order."""

    name: str
    md5: str
    urls: tuple[str, ...]


def fetched(download: Download, folder: Path) -> Path:
    """The file in `folder`, downloaded if it is not there or not whole."""
    (path,) = all_fetched((download,), folder)
    return path


def all_fetched(downloads: Sequence[Download], root: Path, inside: str = "") -> list[Path]:
    """The files in the folder `inside` of a root; those that are not there, or not whole, are downloaded."""
    folder = root / inside
    absent = [one for one in downloads if not is_whole(folder / one.name, one)]
    if absent:
        refuse_own_pictures(root, absent[0].name)
    if absent and offline():
        raise missing(absent, folder, f"{OFFLINE} is set")
    for one in absent:
        with no_empty_folders(folder):
            from_somewhere(one, folder)
    return [folder / one.name for one in downloads]


def is_whole(path: Path, download: Download) -> bool:
    return path.is_file() and md5(path) == download.md5


def from_somewhere(download: Download, folder: Path) -> None:
    path = folder / download.name
    failures = []
    for url in download.urls:
        try:
            retrieve(url, path)
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
            continue
        if is_whole(path, download):
            return
        path.unlink()
        failures.append(f"{url}: its md5 differs")
    raise missing([download], folder, "; ".join(failures))


def missing(absent: Sequence[Download], folder: Path, why: str) -> DataError:
    files = " and ".join(f"{one.name} (md5 {one.md5}) from {one.urls[-1]}" for one in absent)
    them = "it" if len(absent) == 1 else "them"
    return DataError(
        f"missing, and not to be downloaded ({why}). Fetch {files} on a machine that can, and place {them} in {folder}.",
        path=str(folder / absent[0].name),
    )


@contextlib.contextmanager
def no_empty_folders(folder: Path) -> Iterator[None]:
    """Make a folder, and remove it again, with those above that had to be made, where nothing comes into it."""
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # another process has put something there
            for one in made:
                one.rmdir()
        raise


def unpacked(archive: Path) -> None:
    """Unpack a .tar.gz beside itself, all or nothing; members that point outside are refused."""
    try:
        with tarfile.open(archive) as file, tempfile.TemporaryDirectory(dir=archive.parent, prefix=".unpacking-") as inner:
            file.extractall(inner, filter="data")
            for one in Path(inner).iterdir():
                place = archive.parent / one.name
                if place.is_dir():
                    shutil.copytree(one, place, dirs_exist_ok=True)
                else:
                    one.replace(place)
    except (tarfile.TarError, OSError, EOFError) as error:
        why = str(error).splitlines()[0].rstrip(":")
        raise DataError(f"cannot be unpacked ({why}). Delete it and start again.", path=str(archive)) from error


def retrieve(url: str, path: Path) -> None:
    """Into a file beside it first, so that an interrupted download leaves nothing that looks whole."""
    from rich.console import Console
    from rich.progress import wrap_file

    part = path.with_name(path.name + ".part")
    request = urllib.request.Request(url, headers={"User-Agent": "frugalvit"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            total = int(response.headers.get("Content-Length", 0))
            bar = wrap_file(response, total, description=path.name, console=Console(stderr=True))
            with bar as stream, part.open("wb") as file:
                shutil.copyfileobj(stream, file, 1 << 20)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
