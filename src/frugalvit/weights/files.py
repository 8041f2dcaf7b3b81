"""Weight files, read without running anything that they contain, and written whole or not at all."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import pickletools
import secrets
import stat
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from frugalvit.errors import WeightsError, first_line

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar")
KNOWN = (".safetensors", ".npz", *PICKLES)


def read_file(path: Path) -> dict[str, Any]:
    """The contents of a weight file, by its ending."""
    if not path.exists():
        raise WeightsError("there is no such file.", path=str(path))
    if path.is_dir():
        raise WeightsError(f"this is a folder. Give a file ({', '.join(KNOWN)}).", path=str(path))
    if path.suffix not in KNOWN:
        raise WeightsError(f"'{path.suffix}' is not an ending of a weight file. Use {', '.join(KNOWN)}.", path=str(path))
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        return read_npz(path) if path.suffix == ".npz" else read_pickle(path)
    except WeightsError as error:
        error.path = str(path)
        raise
    except (SafetensorError, zipfile.BadZipFile, EOFError, RuntimeError, OSError, ValueError, KeyError) as error:
        said = "" if path.suffix == ".npz" else f" ({first_line(error)})"  # numpy advises to allow pickles
        raise WeightsError(f"{damage(path)}{said}", path=str(path)) from error


def read_npz(path: Path) -> dict[str, Any]:
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        if isinstance(arrays, np.ndarray):
            raise WeightsError("a single array, not an archive of them.")
        return {name: torch.from_numpy(np.array(arrays[name])) for name in arrays.files}


class NumberKind:
    """Stands for numpy.dtype in a pickle. The file's own settings would reach numpy's memory layout; only two are kept."""

    code, order = "", "<"

    def __init__(self, code: object, *_: object):
        self.code = str(code)

    def __setstate__(self, state: Sequence[object]) -> None:
        self.order = str(state[1])


def number(kind: object, data: object) -> bool | int | float:
    """Stands for numpy's `scalar` in a pickle: a plain number of Python's, from its bytes. Objects are made by neither."""
    if not (isinstance(kind, NumberKind) and kind.code in NUMBERS and kind.order in ORDERS and isinstance(data, bytes)):
        raise pickle.UnpicklingError("Unsupported global: GLOBAL numpy.scalar of what is no number")
    (found,) = np.frombuffer(data, kind.order + kind.code).tolist()
    return found


NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
ORDERS = ("<", ">", "|")
LEFT_BY_TRAINERS: list[Any] = [  # what checkpoints hold beside tensors, under the names that pickles have for it
    argparse.Namespace,
    (NumberKind, "numpy.dtype"),
    *((number, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    *((PurePosixPath, f"{module}.{kind}PosixPath") for module in ("pathlib", "pathlib._local") for kind in ("", "Pure")),
    *((PureWindowsPath, f"{module}.{kind}WindowsPath") for module in ("pathlib", "pathlib._local") for kind in ("", "Pure")),
]
REFUSALS = ("GLOBAL ", "Unsupported class ", "allowlisted", "unrecognized function")  # torch's words; all others are of damage


def read_pickle(path: Path) -> dict[str, Any]:
    """Tensors and plain containers only; arguments, numbers and paths, which trainers leave in checkpoints, are let in."""
    try:
        with torch.serialization.safe_globals(LEFT_BY_TRAINERS):
            found = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, TypeError, IndexError, AttributeError) as error:  # also of arguments that do not fit
        text = str(error)
        if not any(word in text for word in REFUSALS):
            raise WeightsError(f"{damage(path)} ({reason(error)})") from error
        part, hint = (".state_dict()", "") if is_object(path) else ("['model']", ", with its own key for 'model'")
        raise WeightsError(
            f"refused: the pickle asks for {asked_for(text)}, and loading it could run code. Nothing of it was run. "
            "Get the weights as .safetensors, or have whoever made the file save a plain state_dict. If you made it yourself: "
            f"torch.save(torch.load({str(path)!r}, weights_only=False){part}, 'plain.pth'){hint}."
        ) from error
    if not isinstance(found, Mapping):
        raise WeightsError(f"it holds {type(found).__name__}, not a dict of tensors.")
    return dict(found)


def reason(error: Exception) -> str:
    """What torch says behind its advice to load the file at any risk."""
    behind = str(error).partition("WeightsUnpickler error:")[2].strip()
    return first_line(behind or error)


def asked_for(text: str) -> str:
    """The name in torch's refusal, `Unsupported global: GLOBAL posix.system ...`."""
    for marker in ("GLOBAL ", "Unsupported class "):
        if marker in text:
            return f"'{text.partition(marker)[2].split(maxsplit=1)[0]}'"
    return "something that is not a tensor"


def is_object(path: Path) -> bool:
    """Whether torch saved an object, as a whole module is, and not a dict. It is looked at, and not run."""
    if not zipfile.is_zipfile(path):  # a file of before torch 1.6, or no file of torch's
        return False
    with zipfile.ZipFile(path) as archive:
        inner = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        _, (code, argument, _) = islice(pickletools.genops(archive.read(inner)), 2)  # behind the protocol
    return code.name == "GLOBAL" and argument != "collections OrderedDict"


def damage(path: Path) -> str:
    return f"the file cannot be read as {path.suffix}: it is truncated, or of another kind. Download or copy it again."


def write_safetensors(path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    tensors = apart({name: value.detach().cpu().contiguous() for name, value in state.items()})
    whole(path, lambda part: safetensors.torch.save_file(tensors, part, metadata=dict(metadata or {"format": "pt"})))


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of what lies in the memory of an earlier one, as tied weights do: safetensors refuses them."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, value in tensors.items():
        place = value.untyped_storage().data_ptr()
        found[name] = value.clone() if place in places else value
        places.add(place)
    return found


def write_npz(path: Path, state: Mapping[str, Tensor]) -> None:
    arrays = {name: value.detach().cpu().contiguous().float().numpy() for name, value in state.items()}

    def write(part: Path) -> None:
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    whole(path, write)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    text = json.dumps(data, indent=2, allow_nan=False) + "\n"
    whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write beside the target and move into place, so that a crash leaves the old file or none."""
    try:
        replaced(path, write)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"cannot be written ({getattr(error, 'strerror', None) or error}).", path=str(path)) from error


def replaced(path: Path, write: Callable[[Path], object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask, which only setting it would tell
    mode = stat.S_IMODE(os.fstat(handle).st_mode)
    os.close(handle)
    try:
        write(part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.chmod(mode)  # a writer may have made the file anew
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_metadata(path: Path) -> dict[str, str]:
    """The text entries in a safetensors file's header."""
    try:
        with safe_open(path, "pt") as file:
            return file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{damage(path)} ({first_line(error)})", path=str(path)) from error
