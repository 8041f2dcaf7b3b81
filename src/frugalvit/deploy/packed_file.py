"""The packed file of docs/format.md: a program and its tensors, as bytes and back."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from frugalvit.deploy.fields import Fields
from frugalvit.errors import WeightsError, at

ENDING = ".fvit"
TYPES = {"U64": "<u8", "F32": "<f4", "F16": "<f2"}
NAMES = {kind: name for name, kind in TYPES.items()}
METADATA = {"format", "version", "checksum", "program"}
LONGEST_HEADER, LARGEST_TENSOR, LARGEST_FILE = 16 << 20, 1 << 28, 1 << 30  # bytes
MOST_VALUES, DEEPEST = 1 << 20, 16  # of a JSON document
EXACT = 1 << 53  # whole numbers up to this are exact in 64 bits
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
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise WeightsError(
                f"{size} bytes are no packed model: it has at most {LARGEST_FILE}. `frugalvit pack RUN` writes one."
            )
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
    """The inverse of `encoded`. Whether the program is as the format says, whoever runs it tries."""
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
        found = json.loads(
            text.decode(), object_pairs_hook=once, parse_int=number, parse_float=number, parse_constant=refuse_constant
        )
        if values(found, 0) > MOST_VALUES:
            raise ValueError(f"more than {MOST_VALUES} values")
        json.dumps(found, ensure_ascii=False).encode()  # fails where a text has half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{what} is not JSON as the format has it ({error}).") from error
    if not isinstance(found, dict):
        raise WeightsError(f"{what} is no JSON object.")
    return found


def values(tree: Any, level: int) -> int:
    """How many values a document has, each list and object counted as well."""
    if level > DEEPEST:
        raise ValueError(f"more than {DEEPEST} levels")
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return 1 + sum(values(one, level + 1) for one in inner)


def number(text: str) -> float:
    """In 64 bits, as the runtime reads it; an `int` where it is whole, however it is written."""
    value = float(text)
    if not math.isfinite(value) or (value == 0 and text.lower().partition("e")[0].strip("-0.")):
        raise ValueError(f"the number {text[:20]} is out of range")
    return int(value) if value.is_integer() and abs(value) <= EXACT else value


def refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


def refuse_damage(whole: bytes, stated: str) -> None:
    place = whole.find(CHECKSUM) + len(CHECKSUM)
    sum_here = zlib.crc32(whole[place + 8 :], zlib.crc32(whole[:place] + b"0" * 8))
    if whole[place : place + 8] != stated.encode() or stated != f"{sum_here:08x}":
        raise WeightsError("the checksum does not fit: the file is damaged. Copy it again, or pack it again.")


def tensors_of(header: dict[str, Any], data: bytes) -> dict[str, np.ndarray]:
    places = {name: place_of(name, entry, len(data)) for name, entry in header.items()}
    found, covered = {}, 0
    for name, (begin, end) in sorted(places.items(), key=lambda pair: pair[1]):
        if begin != covered:
            raise WeightsError(f"begins at byte {begin} and not at {covered}. Leave no gaps or overlaps.", path=name)
        entry = header[name]
        found[name] = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
        covered = end
    if covered != len(data):
        raise WeightsError("there are bytes after the last tensor.")
    return found


def place_of(name: str, entry: Any, length: int) -> tuple[int, int]:
    """Where a tensor begins and ends in data of so many bytes, which must be what its type and shape need."""
    fields = Fields(entry, name)
    kind, shape, offsets = fields.text("dtype"), fields.items("shape"), fields.items("data_offsets")
    fields.done()
    if kind not in TYPES:
        fields.refuse(f"numbers of the type '{kind}' are unknown. Use {', '.join(TYPES)}.", "dtype")
    size = np.dtype(TYPES[kind]).itemsize
    for place, side in enumerate(shape):
        size *= fields.whole_of(side, f"shape[{place}]", 1, LARGEST_TENSOR // size)
    if len(offsets) != 2:
        fields.refuse(f"{len(offsets)} numbers. Use [begin, end].", "data_offsets")
    begin, end = (fields.whole_of(one, f"data_offsets[{place}]", 0, length) for place, one in enumerate(offsets))
    if end - begin != size:
        fields.refuse(f"{kind} {shape} does not lie at {begin} to {end}. It takes {size} bytes.", "data_offsets")
    return begin, end
