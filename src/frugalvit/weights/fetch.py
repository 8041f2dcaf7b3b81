"""From what a user writes after `--init` to a file on disk: a path, a released name, or `hf-hub:owner/name`.

Downloads are kept where torch and HF keep theirs (TORCH_HOME, HF_HOME). Offline, the error names the file to place.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from frugalvit.errors import WeightsError
from frugalvit.offline import OFFLINE, offline
from frugalvit.weights import own
from frugalvit.weights.published import Published, published

HUB, CONFIG = "hf-hub:", "config.json"
PICKLED = "pytorch_model.bin"  # what timm and HF wrote before model.safetensors
CHUNK = 1 << 20


@dataclass(frozen=True)
class Fetched:
    """Weights on disk, and what their source declares of them: nothing for a plain path."""

    path: Path
    origin: str = ""
    classes: int | None = None
    names: tuple[str, ...] = ()  # of the classes
    eps: float | None = None  # of its norms, where that is said
    released: Published | None = None


def fetch(init: str) -> Fetched:
    """The file that `--init` names, downloaded if it must be."""
    if init.startswith(HUB):
        return from_hub(init.removeprefix(HUB))
    if Path(init).is_dir():
        return in_folder(Path(init))
    if Path(init).exists() or "/" in init or Path(init).suffix in (".safetensors", ".npz", ".pth", ".pt", ".bin"):
        return Fetched(Path(init))
    return fetch_released(init)


def in_folder(folder: Path) -> Fetched:
    """The weights in a folder: a run's, finished or not, those of `import` and `Classifier.save`, or timm's or HF's."""
    weights, pickled, checkpoint = folder / own.FILE, folder / PICKLED, own.newest(folder)
    for file in (weights, pickled):
        if file.is_file() and (folder / CONFIG).is_file():
            return declared(file, read_config(folder / CONFIG, str(folder)))
    if weights.is_file():
        return Fetched(weights, "frugalvit" if own.wrote(weights) else "")
    if checkpoint is not None:
        return Fetched(checkpoint, "frugalvit")
    if pickled.is_file():
        return Fetched(pickled)
    own.refuse_unfinished(folder)
    own.refuse_several(folder)
    raise WeightsError(
        f"there is no {own.FILE} in this folder, no {PICKLED}, and no checkpoint of a run. Give a file of weights, or a folder "
        "that a run, `import`, `Classifier.save`, timm or HF has written.",
        path=str(folder),
    )


def read_config(file: Path, init: str) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise WeightsError(f"{file} is not JSON ({error}).", path=init) from error
    if not isinstance(config, dict):
        raise WeightsError(f"{file} does not hold a JSON object.", path=init)
    return config


def declared(weights: Path, config: Mapping[str, Any]) -> Fetched:
    """Weights, and what their config.json says of them: ours, timm's, HF transformers', or no origin that it names."""
    if config.get("part") == own.KIND:
        classes = config.get("classes")
        known = tuple(map(str, classes)) if isinstance(classes, list) else ()
        return Fetched(weights, "frugalvit", len(known) or None, known)
    if "architecture" in config:
        names = config.get("label_names") or ()
        return Fetched(weights, "timm", config.get("num_classes"), tuple(map(str, names)))
    if config.get("model_type") in ("vit", "deit"):
        names = (config.get("id2label") or {}).values()
        return Fetched(weights, "hf", len(names) or None, tuple(map(str, names)), float(config.get("layer_norm_eps", 1e-12)))
    return Fetched(weights)


def fetch_released(name: str) -> Fetched:
    """Released weights by name, also where a folder here is called like them."""
    file = published(name)
    return Fetched(download(file), file.origin, file.classes, released=file)


def cache() -> Path:
    """Where torch keeps downloaded weights: TORCH_HOME, else ~/.cache/torch."""
    return Path(torch.hub.get_dir()) / "checkpoints"


def download(file: Published) -> Path:
    """The released file in torch's cache, its hash checked where one is published."""
    path = cache() / file.file
    if not path.exists():
        if offline():
            raise absent(file, path, f"{OFFLINE} is set")
        try:
            retrieve(file.url, path)
        except (urllib.error.URLError, OSError) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()
            raise absent(file, path, str(getattr(error, "reason", error))) from error
    digest = sha256(path)
    if not digest.startswith(file.sha256):
        raise WeightsError(
            f"{path} has SHA-256 {digest[:8]}..., published is {file.sha256}...: it is damaged or not the released file. "
            "Delete it and try again.",
            path=file.name,
        )
    return path


def absent(file: Published, path: Path, why: str) -> WeightsError:
    return WeightsError(
        f"cannot be downloaded ({why}). Fetch {file.url} by other means and place it at {path}, or give its path.",
        path=file.name,
    )


def retrieve(url: str, path: Path) -> None:
    """Download beside the target with a progress bar, and move into place when whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    part = Path(name)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    try:
        with os.fdopen(handle, "wb") as target, urllib.request.urlopen(url, timeout=30) as source:
            size = int(source.headers.get("Content-Length", 0))
            with Progress(*columns, transient=True) as bar:
                task = bar.add_task(path.name, total=size or None)
                while chunk := source.read(CHUNK):
                    target.write(chunk)
                    bar.advance(task, len(chunk))
            if size and target.tell() != size:
                raise OSError(f"the connection ended after {target.tell()} of {size} bytes")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unknown_host(url: str) -> str:
    """Why the host of an address cannot be asked; empty where it has one, or a proxy is asked instead."""
    host = urllib.parse.urlsplit(url).hostname
    if urllib.request.getproxies():
        return ""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    return ""


def from_hub(name: str) -> Fetched:
    """A hub repository's weights; its config.json says whose names they have."""
    repository = name.partition("@")[0]
    if repository.count("/") != 1:
        raise WeightsError(f"'{HUB}{name}' is not of the form {HUB}owner/name.")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError as error:
        raise WeightsError("hub names need one more package: pip install 'frugalvit[hub]'.", path=HUB + name) from error
    placed = Path(HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "snapshots" / "placed"
    revision = name.partition("@")[2] or None
    unknown = unknown_host(ENDPOINT)
    here = bool(unknown)  # it would try six times, for 23 seconds
    try:
        files = [
            placed / file
            if (placed / file).exists()
            else Path(hf_hub_download(repository, file, revision=revision, local_files_only=here))
            for file in (CONFIG, own.FILE)
        ]
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        why = unknown or str(error).strip().splitlines()[0][:120]
        raise WeightsError(
            f"cannot be downloaded ({why}). Fetch config.json and model.safetensors "
            f"of {repository} by other means and place them in {placed}.",
            path=HUB + name,
        ) from error
    config = read_config(files[0], HUB + name)
    found = declared(files[1], config)
    if not found.origin:
        raise WeightsError(
            f"its config.json declares neither a timm architecture nor a ViT or DeiT of HF transformers, nor a model of ours "
            f"(model_type {config.get('model_type')!r}).",
            path=HUB + name,
        )
    return found
