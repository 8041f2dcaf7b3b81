"""Writes packed files as docs/format.md says, with random numbers in them. Needs numpy alone."""

from __future__ import annotations

import json
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {"<u8": "U64", "<f4": "F32", "<f2": "F16"}
Step = dict[str, Any]


def pack_signs(minus_RC: np.ndarray) -> np.ndarray:
    """Rows of booleans (true is -1) as 64-bit words."""
    rows, columns = minus_RC.shape
    padded = np.zeros((rows, -(-columns // 64) * 64), dtype=bool)
    padded[:, :columns] = minus_RC
    return np.packbits(padded, axis=1, bitorder="little").view("<u8")


def unpack_signs(words_RW: np.ndarray, columns: int) -> np.ndarray:
    """±1 in float32."""
    bits = np.unpackbits(np.ascontiguousarray(words_RW).view(np.uint8), axis=1, bitorder="little")[:, :columns]
    return (1 - 2 * bits.astype(np.int8)).astype(np.float32)


def encode(program: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """The bytes of a packed file."""
    header: dict[str, Any] = {
        "__metadata__": {
            "format": "frugalvit-packed",
            "version": "1",
            "checksum": "00000000",
            "program": json.dumps(program, separators=(",", ":")),
        }
    }
    offset, data = 0, []
    for name, tensor in tensors.items():
        raw = tensor.tobytes()
        kind = TYPES[tensor.dtype.str]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        data.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + b"".join(data)
    place = whole.index(b'"checksum":"') + len(b'"checksum":"')
    return whole[:place] + b"%08x" % zlib.crc32(whole) + whole[place + 8 :]


@dataclass(frozen=True)
class Stage:
    dim: int
    depth: int
    heads: int
    expand: int
    side: int


@dataclass
class Writer:
    """A program and its tensors, filled with numbers of the size that trained models have."""

    name: str
    image: int
    generator: np.random.Generator
    cover: int = 0
    real: str = "<f4"
    buffers: dict[str, list[int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def tensor(self, value: np.ndarray) -> str:
        name = f"t{len(self.tensors)}"
        self.tensors[name] = np.ascontiguousarray(value)
        return name

    def normal(self, *shape: int, mean: float = 0.0, scale: float = 1.0, real: str = "<f4") -> str:
        return self.tensor((mean + scale * self.generator.standard_normal(shape)).astype(real))

    def words(self, rows: int, columns: int, parts: int = 1) -> str:
        bits = self.generator.random((parts, rows, columns)) < 0.5
        return self.tensor(np.concatenate([pack_signs(part) for part in bits], axis=1))

    def activation(self, depth: int, out: int) -> Step:
        return {
            "gain": self.normal(out, mean=depth**-0.5, scale=0.2 * depth**-0.5),
            "bias": self.normal(out, scale=0.3),
            "slope": self.normal(out, mean=0.25, scale=0.1),
            "move": self.normal(out, scale=0.1),
        }

    def linear(self, columns: int, out: int) -> Step:
        threshold = self.normal(columns, scale=0.3)
        return {"threshold": threshold, "weight": self.words(out, columns), **self.activation(columns, out)}

    def affine(self, columns: int, gain: float = 1.0) -> Step:
        return {"gain": self.normal(columns, mean=gain, scale=0.1 * gain), "bias": self.normal(columns, scale=0.1)}

    def step(self, kind: str, **fields: Any) -> None:
        self.steps.append({"kind": kind, **fields})

    def buffer(self, name: str, rows: int, columns: int) -> str:
        self.buffers[name] = [rows, columns]
        return name

    def stem(self, to: str, patch: int, dim: int, first: int = 0) -> None:
        grid, depth = (self.image // patch) ** 2, 3 * patch * patch
        self.step(
            "patches",
            to=to,
            patch=patch,
            first=first,
            weight=self.normal(dim, depth, scale=depth**-0.5),
            bias=self.normal(dim, scale=0.1),
            positions=self.normal(grid, dim, scale=0.2, real=self.real),
        )

    def block(self, at: str, shape: tuple[int, int], stage: Stage, width: int, before: int, pools: bool = True) -> None:
        """One block on the buffers whose names start with `at`; the residual stream has grown through those `before` it."""
        (rows, dim), heads, expand, side = shape, stage.heads, stage.expand, stage.side
        x, u, q, z, y = (self.buffer(at + part, rows, dim) for part in "xuqzy")
        k, v = (self.buffer(at + part, rows // side**2, dim) for part in "kv")
        normal = self.affine(dim, 1 / (1 + before))
        if side > 1:
            pooled, keys, reduced = (self.buffer(at + part, rows // side**2, dim) for part in ("pooled", "keys", "reduced"))
            self.step("pool", **{"from": x}, to=pooled, width=width, side=side)
            self.step("affine", **{"from": pooled}, to=keys, **normal)
            self.step("linear", **{"from": keys}, to=reduced, **self.linear(dim, dim))
        else:
            reduced = u
            self.step("affine", **{"from": x}, to=u, **normal)
        self.step("linear", **{"from": reduced}, to=k, **self.linear(dim, dim))
        self.step("linear", **{"from": reduced}, to=v, **self.linear(dim, dim))
        if side > 1:
            self.step("affine", **{"from": x}, to=u, **normal)
        self.step("linear", **{"from": u}, to=q, **self.linear(dim, dim))
        thresholds = {f"{part}_threshold": self.normal(dim, scale=0.3) for part in ("query", "key", "value")}
        count = rows // side**2
        self.step(
            "attention",
            query=q,
            key=k,
            value=v,
            to=y,
            heads=heads,
            width=width,
            side=side,
            scale=(dim // heads) ** -0.5,
            limit=float(np.float32(0.7 / count)),
            **thresholds,
            **self.activation(count, dim),
        )
        self.step("linear", **{"from": y}, to=u, **self.linear(dim, dim))
        self.step("add", **{"from": u}, to=x, **self.affine(dim, 0.2))
        self.step("affine", **{"from": x}, to=z, **self.affine(dim, 1 / (2 + before)))
        up, down = self.linear(dim, dim * expand), self.linear(dim * expand, dim)
        self.step("mlp", **{"from": z}, to=y, expand=expand, up=up, down=down)
        self.step("add", **{"from": y}, to=x, **self.affine(dim, 0.2))
        if pools:
            places = ("center", "near_rows", "far_rows", "near_columns", "far_columns", "bias")
            self.step("cross", **{"from": z}, to=x, width=width, **{place: self.normal(dim, scale=0.05) for place in places})

    def merge(self, source: str, to: str, rows: int, dim: int, out: int, width: int, normed: str) -> None:
        self.step("affine", **{"from": source}, to=normed, **self.affine(dim, 0.25))
        threshold, weight = self.normal(dim, scale=0.3), self.words(out, dim, parts=4)
        after, positions = self.activation(4 * dim, out), self.normal(rows // 4, out, scale=0.2, real=self.real)
        self.step(
            "merge", **{"from": normed}, to=to, width=width, threshold=threshold, weight=weight, positions=positions, **after
        )

    def merge_real(self, source: str, to: str, rows: int, dim: int, out: int, width: int) -> None:
        self.step(
            "merge_real",
            **{"from": source},
            to=to,
            width=width,
            weight=self.normal(out, 4 * dim, scale=0.25 * (4 * dim) ** -0.5),
            bias=self.normal(out, scale=0.1),
            positions=self.normal(rows // 4, out, scale=0.2, real=self.real),
        )

    def readout(self, source: str, dim: int, classes: int, first: int, count: int) -> None:
        features, logits = self.buffer("features", 1, dim), self.buffer("logits", 1, classes)
        self.step("mean", **{"from": source}, to=features, first=first, count=count)
        weight, bias = self.normal(classes, dim, scale=dim**-0.5, real=self.real), self.normal(classes, scale=0.1)
        self.step("head", **{"from": features}, to=logits, weight=weight, bias=bias)

    def program(self) -> dict[str, Any]:
        cover = self.cover or self.image
        image = {
            "height": self.image,
            "width": self.image,
            "cover": [cover, cover],
            "filter": "bicubic",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        }
        return {"name": self.name, "image": image, "buffers": self.buffers, "steps": self.steps, "logits": "logits"}

    def encode(self) -> bytes:
        return encode(self.program(), self.tensors)


def pyramid(writer: Writer, patch: int, stages: tuple[Stage, ...], classes: int, star: bool = False) -> Writer:
    """BinaryViT; with real merging where `star`."""
    width = writer.image // patch
    rows = width * width
    writer.buffer("0x", rows, stages[0].dim)
    writer.stem("0x", patch, stages[0].dim)
    for i, stage in enumerate(stages):
        if i:
            before = stages[i - 1].dim
            to = writer.buffer(f"{i}x", rows // 4, stage.dim)
            if star:
                writer.merge_real(f"{i - 1}x", to, rows, before, stage.dim, width)
            else:
                writer.merge(f"{i - 1}x", to, rows, before, stage.dim, width, f"{i - 1}u")
            width, rows = width // 2, rows // 4
        for before in range(stage.depth):
            writer.block(str(i), (rows, stage.dim), stage, width, before)
    writer.readout(f"{len(stages) - 1}x", stages[-1].dim, classes, 0, rows)
    return writer


SMALL = (Stage(64, 3, 1, 8, 8), Stage(128, 4, 2, 8, 4), Stage(256, 8, 4, 4, 1), Stage(512, 4, 8, 4, 1))
TINY = (Stage(16, 1, 1, 4, 2), Stage(32, 1, 2, 2, 1))
ODD = (Stage(20, 2, 5, 3, 2), Stage(40, 1, 4, 3, 1))


def binaryvit_small(seed: int, real: str = "<f4", star: bool = False) -> Writer:
    name = "binaryvit_small_star" if star else "binaryvit_small"
    writer = Writer(name, 224, np.random.default_rng(seed), cover=256, real=real)
    return pyramid(writer, 4, SMALL, 1000, star)


def tiny(seed: int) -> Writer:
    return pyramid(Writer("tiny", 16, np.random.default_rng(seed), cover=18), 2, TINY, 5)


def odd(seed: int) -> Writer:
    """Widths that are no multiples of anything."""
    return pyramid(Writer("odd", 24, np.random.default_rng(seed)), 2, ODD, 7)


def binary_deit_small(seed: int, depth: int = 12, real: str = "<f4") -> Writer:
    """Flat: 384 wide, six heads, a class token, no pooling branches."""
    writer = Writer("binary_deit_small", 224, np.random.default_rng(seed), cover=256, real=real)
    x = writer.buffer("x", 197, 384)
    writer.step("tokens", to=x, first=0, count=1, value=writer.normal(1, 384, real=real))
    writer.stem(x, 16, 384, first=1)
    for before in range(depth):
        writer.block("", (197, 384), Stage(384, depth, 6, 4, 1), 197, before, pools=False)
    writer.readout(x, 384, 1000, 0, 1)
    return writer


MODELS = {
    "binaryvit": binaryvit_small,
    "binaryvit_half": lambda seed: binaryvit_small(seed, real="<f2"),
    "binaryvit_star": lambda seed: binaryvit_small(seed, star=True),
    "binary_deit": binary_deit_small,
    "tiny": tiny,
    "odd": odd,
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in sys.argv[2:] or MODELS:
        (folder / f"{name}.fvit").write_bytes(MODELS[name](0).encode())
