"""The packed file as bytes: what is written is read, and what is damaged is refused."""

from __future__ import annotations

import json
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import frugalvit
from frugalvit.deploy.packed_file import Packed, decoded, encoded, read_packed, read_program, signs_of, words_of
from frugalvit.deploy.program import ProgramWriter
from frugalvit.errors import SpecError, WeightsError

DRAW = np.random.default_rng(0)
PACKED = Packed(
    {"name": 'ä "quoted" 😀', "steps": [{"kind": "affine", "gain": "t0"}], "buffers": {"x": [3, 5]}, "logits": "x"},
    {"t0": DRAW.normal(size=5).astype("<f4"), "t1": words_of(DRAW.random((3, 70)) < 0.5), "t2": np.ones((2, 3), "<f2")},
)


@pytest.mark.parametrize("columns", [1, 63, 64, 65, 130])
def test_signs_are_words_of_64_bits_and_back(columns: int) -> None:
    minus_RC = DRAW.random((3, columns)) < 0.5
    words_RW = words_of(minus_RC)
    assert words_RW.shape == (3, -(-columns // 64))
    for row, column in ((0, 0), (2, columns - 1)):
        assert bool(int(words_RW[row, column // 64]) >> (column % 64) & 1) == minus_RC[row, column]
    if columns % 64:
        assert not (words_RW[:, -1] >> np.uint64(columns % 64)).any()
    assert np.array_equal(signs_of(words_RW, columns), np.where(minus_RC, -1, 1))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.fvit"
    file.write_bytes(encoded(PACKED))
    again = read_packed(file)
    assert again.program == PACKED.program == read_program(file)
    assert list(again.tensors) == list(PACKED.tensors)
    for name, tensor in PACKED.tensors.items():
        assert again.tensors[name].dtype == tensor.dtype and np.array_equal(again.tensors[name], tensor)
    assert int.from_bytes(file.read_bytes()[:8], "little") % 8 == 0


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_must_be_finite(number: float) -> None:
    odd = Packed(PACKED.program, PACKED.tensors | {"t2": np.array([1, number], "<f2")})
    with pytest.raises(WeightsError, match=r"t2: not all its numbers are finite"):
        decoded(encoded(odd))


def test_the_writer_for_random_weights_writes_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).parents[2] / "runtime" / "tests"
    if not folder.exists():
        pytest.skip("the runtime's sources are not here")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    import packed

    assert packed.encode(PACKED.program, PACKED.tensors) == encoded(PACKED)


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path: Path) -> None:
    whole = encoded(PACKED)
    for place in (*range(0, len(whole), 7), *range(len(whole) - 40, len(whole))):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        with pytest.raises(WeightsError):
            decoded(bytes(damaged))
    for length in (0, 5, 8, 100, len(whole) - 1):
        with pytest.raises(WeightsError):
            decoded(whole[:length])
    with pytest.raises(WeightsError, match="checksum"):
        decoded(whole + b"\0")
    with pytest.raises(WeightsError, match=r"b\.fvit: there is no such file"):
        read_packed(tmp_path / "b.fvit")


def rewritten(metadata: dict[str, str] | None = None, tensors: dict[str, Any] | None = None) -> bytes:
    """The file with other entries in its header, and a checksum that fits."""
    whole = encoded(PACKED)
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    header["__metadata__"] |= (metadata or {}) | {"checksum": "00000000"}
    text = json.dumps(header | (tensors or {}), separators=(",", ":")).encode()
    made = len(text).to_bytes(8, "little") + text + whole[8 + size :]
    place = made.index(b'"checksum":"') + 12
    return made[:place] + b"%08x" % zlib.crc32(made) + made[place + 8 :]


@pytest.mark.parametrize(
    ("metadata", "tensors", "problem"),
    [
        ({"format": "pt"}, {}, "not a packed model"),
        ({"version": "2"}, {}, "version '2'"),
        ({"more": "x"}, {}, "metadata"),
        ({"program": '{"a": 1, "a": 2}'}, {}, "a repeated name"),
        ({"program": "[1]"}, {}, "no JSON object"),
        ({}, {"t0": {"dtype": "F32", "shape": [5], "data_offsets": [4, 24]}}, r"t0: begins at byte 4 and not at 0"),
        ({}, {"t0": {"dtype": "F32", "shape": [4], "data_offsets": [0, 20]}}, r"t0.data_offsets: .* does not lie at 0 to 20"),
        ({}, {"t0": {"dtype": "I8", "shape": [20], "data_offsets": [0, 20]}}, r"t0.dtype: numbers of the type 'I8'"),
    ],
)
def test_what_the_format_does_not_say_is_refused(metadata: dict[str, str], tensors: dict[str, Any], problem: str) -> None:
    assert decoded(rewritten()).program == PACKED.program
    with pytest.raises(WeightsError, match=problem):
        decoded(rewritten(metadata, tensors))


def refusal(file: Path, data: bytes) -> str:
    """Why the runtime does not take a file of these bytes."""
    native = pytest.importorskip("frugalvit.deploy._native", reason="the runtime is not built")
    file.write_bytes(data)
    with pytest.raises(ValueError) as error:
        native.PackedModel(file)
    return str(error.value)


def test_writer_and_runtime_count_the_same_numbers_of_buffers(tmp_path: Path) -> None:
    image = {"height": 8, "width": 8, "cover": [8, 8], "filter": "bicubic", "mean": [0.5], "std": [0.5]}
    for columns, most in ((64, 1 << 20), (50, 1 << 20), (1, 1 << 20)):  # 50 count as 64, and 1 as 16
        writer, filled = ProgramWriter("single"), 0
        for name in "abcd"[: 64 // (-(-columns // 16) * 16)]:
            filled += most * -(-columns // 16) * 16
            writer.buffer(name, most, columns)
        assert filled == 1 << 26
        program = {"name": "x", "image": image, "buffers": dict(writer.buffers), "steps": [], "logits": "a"}
        assert "no steps" in refusal(tmp_path / "full.fvit", encoded(Packed(program, {})))
        with pytest.raises(SpecError, match="its tokens are more than 67108864 numbers"):
            writer.buffer("more", 1, 1)
        program["buffers"] = writer.buffers
        assert "more than 2^26 numbers in all" in refusal(tmp_path / "over.fvit", encoded(Packed(program, {})))


def test_a_tensor_has_at_most_2_to_the_28_bytes(tmp_path: Path) -> None:
    for kind, size in (("F32", 4), ("F16", 2), ("U64", 8)):
        for side, problem in (((1 << 28) // size, "does not lie at"), ((1 << 28) // size + 1, "more than 2^28 bytes")):
            entry = {"dtype": kind, "shape": [side], "data_offsets": [0, 20]}
            assert problem in refusal(tmp_path / "a.fvit", rewritten(tensors={"t0": entry}))


def test_load_says_what_to_use_instead(tmp_path: Path) -> None:
    file = tmp_path / "a.fvit"
    file.write_bytes(encoded(PACKED))
    with pytest.raises(WeightsError, match=r"is a packed model.*load_packed"):
        frugalvit.load(file)


def test_a_folder_is_no_packed_file(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"is a folder\. Give the \.fvit file in it"):
        frugalvit.load_packed(tmp_path)
