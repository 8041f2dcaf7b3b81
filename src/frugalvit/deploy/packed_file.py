"""The packed file of docs/format.md: a program and its tensors, as bytes and back."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from frugalvit.errors import WeightsError, at

ENDING = ".fvit"
TYPES = {"U64": "<u8", "F32": "<f4", "F16": "<f2"}
NAMES = {kind: name for name, kind in TYPES.items()}
METADATA = {"format", "version", "checksum", "program"}
LONGEST_HEADER = 16 << 20
CHECKSUM = b'"checksum":"'

Step = dict[str, Any]


@dataclass(frozen=True)
class Packed:
    """What a packed file holds: the program as JSON has it, and its tensors by name."""

    program: dict[str, Any]
    tensors: dict[str, np.ndarray]

    @property
    def steps(self) -> list[Step]:
        return self.program["steps"]

    @property
    def classes(self) -> int:
        return self.program["buffers"][self.program["logits"]][1]


def words_of(minus_RC: np.ndarray) -> np.ndarray:
    """Rows of booleans (true is −1) as words of 64 bits, the bits past the end of a row 0."""
    rows, columns = minus_RC.shape
    padded = np.zeros((rows, -(-columns // 64) * 64), dtype=bool)
    padded[:, :columns] = minus_RC
    return np.packbits(padded, axis=1, bitorder="little").view("<u8")


def signs_of(words_RW: np.ndarray, columns: int) -> np.ndarray:
    """The inverse of `words_of`, as ±1 in float32."""
    bits = np.unpackbits(np.ascontiguousarray(words_RW).view(np.uint8), axis=1, bitorder="little")[:, :columns]
    return 1 - 2 * bits.astype(np.float32)


def encoded(packed: Packed) -> bytes:
    """The bytes of the file."""
    whole = beginning(packed) + b"".join(tensor.tobytes() for tensor in packed.tensors.values())
    place = whole.index(CHECKSUM) + len(CHECKSUM)
    return whole[:place] + b"%08x" % zlib.crc32(whole) + whole[place + 8 :]


def encoded_size(packed: Packed) -> int:
    """How many bytes `encoded` gives."""
    return len(beginning(packed)) + sum(tensor.nbytes for tensor in packed.tensors.values())


def beginning(packed: Packed) -> bytes:
    """All before the tensors' bytes, the checksum still zeros."""
    program = json.dumps(packed.program, separators=(",", ":"), allow_nan=False)
    header: dict[str, Any] = {
        "__metadata__": {"format": "frugalvit-packed", "version": "1", "checksum": "0" * 8, "program": program}
    }
    offset = 0
    for name, tensor in packed.tensors.items():
        ends = [offset, offset + tensor.nbytes]
        header[name] = {"dtype": NAMES[tensor.dtype.str], "shape": list(tensor.shape), "data_offsets": ends}
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read_packed(path: Path) -> Packed:
    """The program and the tensors of a file, its checksum tried."""
    refuse_missing(path)
    with at(str(path)):
        return decoded(path.read_bytes())


def read_program(path: Path) -> dict[str, Any]:
    """The program alone, of a file that has been tried."""
    refuse_missing(path)
    with at(str(path)), path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return program_and_tensors(file.read(min(size, LONGEST_HEADER)))[0]


def begins_packed(path: Path) -> bool:
    """Whether a file begins as packed files do, whatever its name."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return b'"frugalvit-packed"' in file.read(256)


def refuse_missing(path: Path) -> None:
    if path.is_dir():
        raise WeightsError(f"is a folder. Give the {ENDING} file in it, or write one: `frugalvit pack RUN`.", path=str(path))
    if not path.is_file():
        raise WeightsError("there is no such file. `frugalvit pack RUN` writes one.", path=str(path))


def decoded(whole: bytes) -> Packed:
    """The inverse of `encoded`. What the steps say is tried when they run."""
    size = int.from_bytes(whole[:8], "little")
    if len(whole) < 8 or size > min(LONGEST_HEADER, len(whole) - 8):
        raise WeightsError("not a packed model, or a part of one. `frugalvit pack RUN` writes one.")
    program, header, checksum = program_and_tensors(whole[8 : 8 + size])
    refuse_damage(whole, checksum)
    tensors = tensors_of(header, whole[8 + size :])
    for name, value in tensors.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise WeightsError("not all its numbers are finite.", path=name)
    return Packed(program, tensors)


def program_and_tensors(text: bytes) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The program, where the tensors lie, and the checksum, from the text of a header."""
    header = parsed(text, "its header")
    metadata = header.pop("__metadata__", None)
    if not isinstance(metadata, dict) or metadata.get("format") != "frugalvit-packed":
        raise WeightsError("not a packed model. `frugalvit pack RUN` writes one.")
    if metadata.get("version") != "1":
        raise WeightsError(f"version {metadata.get('version')!r} of the format. This program reads version 1: upgrade it.")
    if set(metadata) != METADATA or not all(isinstance(value, str) for value in metadata.values()):
        raise WeightsError(f"metadata {', '.join(map(str, metadata))}. Expected {', '.join(sorted(METADATA))}, as texts.")
    return parsed(metadata["program"].encode(), "its program"), header, metadata["checksum"]


def parsed(text: bytes, what: str) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a repeated name")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{what} is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{what} is no JSON object.")
    return found


def refuse_damage(whole: bytes, stated: str) -> None:
    place = whole.find(CHECKSUM) + len(CHECKSUM)
    sum_here = zlib.crc32(whole[place + 8 :], zlib.crc32(whole[:place] + b"0" * 8))
    if whole[place : place + 8] != stated.encode() or stated != f"{sum_here:08x}":
        raise WeightsError("the checksum does not fit: the file is damaged. Copy it again, or pack it again.")


def tensors_of(header: dict[str, Any], data: bytes) -> dict[str, np.ndarray]:
    found, covered = {}, 0
    try:
        for name, entry in sorted(header.items(), key=lambda pair: pair[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            if begin != covered or end > len(data) or set(entry) != {"dtype", "shape", "data_offsets"}:
                raise ValueError(f"bytes {begin} to {end}")
            found[name] = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
            covered = end
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"its tensors do not lie as the format says ({error}).") from error
    if covered != len(data):
        raise WeightsError("there are bytes after the last tensor.")
    return found
