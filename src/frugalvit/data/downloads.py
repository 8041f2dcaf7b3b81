"""Files of public data sets: fetched once, from the first address that answers, and checked by their md5."""

from __future__ import annotations

import hashlib
import http.client
import shutil
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from frugalvit.errors import DataError

PATIENCE = 30  # seconds without a byte until the next address is tried


@dataclass(frozen=True)
class Download:
    """A file, its md5, and the addresses that have it, tried in order."""

    name: str
    md5: str
    urls: tuple[str, ...]


def fetched(download: Download, folder: Path) -> Path:
    """The file in `folder`, downloaded if it is not there or not whole."""
    path = folder / download.name
    if path.is_file() and md5(path) == download.md5:
        return path
    failures = []
    for url in download.urls:
        try:
            retrieve(url, path)
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
            continue
        if md5(path) == download.md5:
            return path
        path.unlink()
        failures.append(f"{url}: its md5 differs")
    raise DataError(
        f"missing, and not to be downloaded ({'; '.join(failures)}). Fetch {download.name} (md5 {download.md5}) from "
        f"{download.urls[-1]} on a machine that can, and place it in {folder}.",
        path=str(path),
    )


def unpacked(archive: Path) -> None:
    """Unpack a .tar.gz beside itself; members that point outside are refused."""
    try:
        with tarfile.open(archive) as file:
            file.extractall(archive.parent, filter="data")
    except (tarfile.TarError, OSError, EOFError) as error:
        why = str(error).splitlines()[0].rstrip(":")
        raise DataError(f"cannot be unpacked ({why}). Delete it and start again.", path=str(archive)) from error


def retrieve(url: str, path: Path) -> None:
    """Into a file beside it first, so that an interrupted download leaves nothing that looks whole."""
    from rich.console import Console
    from rich.progress import wrap_file

    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
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
