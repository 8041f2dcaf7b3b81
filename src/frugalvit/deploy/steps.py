"""What each step of a packed program must say: its fields, their kinds and their shapes, as docs/format.md has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from frugalvit.deploy.fields import Fields
from frugalvit.deploy.packed_file import NAMES
from frugalvit.errors import suggestion

MOST_ROWS, MOST_COLUMNS = 1 << 20, 1 << 16
WIDEST_HEAD = 255
LARGEST_SCORE = 40  # scale · K; no exponential underflows
ACTIVATION = ("gain", "bias", "slope", "move")
CROSS = ("center", "near_rows", "far_rows", "near_columns", "far_columns", "bias")


@dataclass(frozen=True)
class Buffer:
    """A named place for [rows, columns] of real numbers."""

    name: str
    rows: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def __str__(self) -> str:
        return f"buffer '{self.name}' {list(self.shape)}"


class StepRules:
    """The buffers, tensors and image (height, width, channels) that steps may speak of, and which tensors they did."""

    def __init__(self, buffers: dict[str, Buffer], tensors: dict[str, np.ndarray], image: tuple[int, int, int]):
        self.buffers, self.tensors, self.image = buffers, tensors, image
        self.used: set[str] = set()

    def check(self, step: Fields) -> None:
        kind = step.text("kind")
        if kind not in KINDS:
            step.refuse(f"a step of the kind '{kind}' is unknown. {suggestion(kind, KINDS)}")
        KINDS[kind](self, step, self.buffer(step, "to"))
        step.done()

    # ------------------------------------------------------------------------------------------------ what recurs

    def buffer(self, fields: Fields, role: str) -> Buffer:
        name = fields.text(role)
        if name not in self.buffers:
            fields.refuse(f"there is no buffer '{name}'. {suggestion(name, self.buffers)}", role)
        return self.buffers[name]

    def source(self, step: Fields, to: Buffer, shape: tuple[int, int] | None = None, role: str = "from") -> Buffer:
        """The input of that role, which is another buffer than `to` and has the shape, where one is asked for."""
        found = self.buffer(step, role)
        if found.name == to.name:
            step.refuse(f"{found} is also 'to'. Use another one.", role)
        self.refuse_shape(step, found, shape or found.shape, role)
        return found

    def refuse_shape(self, step: Fields, buffer: Buffer, shape: tuple[int, int], role: str) -> None:
        if buffer.shape != shape:
            step.refuse(f"{buffer} does not fit. Use one of {list(shape)}.", role)

    def tensor(self, fields: Fields, role: str, shape: Sequence[int], kinds: tuple[str, ...] = ("F32", "F16")) -> np.ndarray:
        name = fields.text(role)
        if name not in self.tensors:
            fields.refuse(f"there is no tensor '{name}'. {suggestion(name, self.tensors)}", role)
        self.used.add(name)
        found = self.tensors[name]
        kind = NAMES[found.dtype.str]
        if kind not in kinds or found.shape != tuple(shape):
            wanted = f"{' or '.join(kinds)} {list(shape)}"
            fields.refuse(f"tensor '{name}' is {kind} {list(found.shape)}. Use one that is {wanted}.", role)
        return found

    def vectors(self, fields: Fields, roles: Sequence[str], columns: int) -> None:
        for role in roles:
            self.tensor(fields, role, (columns,))

    def signs(self, fields: Fields, fan_in: int, fan_out: int, taps: int = 1) -> None:
        """One-bit weights, each tap's row padded to whole words of 64 whose last bits are 0."""
        words = -(-fan_in // 64)
        found = self.tensor(fields, "weight", (fan_out, taps * words), ("U64",))
        if fan_in % 64 and (found[:, words - 1 :: words] >> np.uint64(fan_in % 64)).any():
            fields.refuse(f"bits past the end of a row of {fan_in}. Set them to 0.", "weight")

    def binary(self, fields: Fields, fan_in: int, fan_out: int, taps: int = 1) -> None:
        self.signs(fields, fan_in, fan_out, taps)
        self.vectors(fields, ("threshold",), fan_in)
        self.vectors(fields, ACTIVATION, fan_out)

    def real(self, fields: Fields, fan_in: int, fan_out: int) -> None:
        self.tensor(fields, "weight", (fan_out, fan_in))
        self.vectors(fields, ("bias",), fan_out)

    def width(self, step: Fields, tokens: Buffer, side: int) -> None:
        """Of the grid that the tokens are, whose rows and columns are divisible by `side`."""
        width = step.whole("width", 1, MOST_ROWS)
        if tokens.rows % width or width % side or tokens.rows // width % side:
            fitting = f"Use a width whose grid squares of {side} tile." if side > 1 else f"Use a divisor of {tokens.rows}."
            step.refuse(f"{tokens.rows} tokens are no such grid of width {width}. {fitting}", "width")

    def span(self, step: Fields, rows: int) -> int:
        """The `count` of rows from `first` on, of so many."""
        first = step.whole("first", 0, rows - 1)
        return step.whole("count", 1, rows - first)

    # ------------------------------------------------------------------------------------------------ kinds of steps

    def tokens(self, step: Fields, to: Buffer) -> None:
        self.tensor(step, "value", (self.span(step, to.rows), to.columns))

    def patches(self, step: Fields, to: Buffer) -> None:
        height, width, channels = self.image
        patch = step.whole("patch", 1, min(height, width))
        if height % patch or width % patch:
            step.refuse(f"patches of {patch} do not tile {height} x {width}. Use a side that divides both.", "patch")
        count = height // patch * (width // patch)
        if step.whole("first", 0, MOST_ROWS) + count > to.rows:
            step.refuse(f"{count} patches from row {step.value['first']} on, in {to.rows} rows. Use a larger buffer.", "first")
        self.real(step, channels * patch**2, to.columns)
        self.tensor(step, "positions", (count, to.columns))

    def affine(self, step: Fields, to: Buffer) -> None:
        self.refuse_shape(step, self.buffer(step, "from"), to.shape, "from")
        self.vectors(step, ("gain", "bias"), to.columns)

    def linear(self, step: Fields, to: Buffer) -> None:
        self.source(step, to, to.shape)
        self.binary(step, to.columns, to.columns)

    def mlp(self, step: Fields, to: Buffer) -> None:
        self.source(step, to, to.shape)
        hidden = to.columns * step.whole("expand", 1, MOST_COLUMNS // to.columns)
        for name, fan_in, fan_out in (("up", to.columns, hidden), ("down", hidden, to.columns)):
            inner = step.inner(name)
            self.binary(inner, fan_in, fan_out)
            inner.done()

    def attention(self, step: Fields, to: Buffer) -> None:
        query, side = self.source(step, to, to.shape, "query"), step.whole("side", 1, MOST_ROWS)
        self.width(step, query, side)
        for role in ("key", "value"):
            self.source(step, to, (query.rows // side**2, to.columns), role)
        heads = step.whole("heads", 1, to.columns)
        if to.columns % heads or to.columns // heads > WIDEST_HEAD:
            step.refuse(f"{heads} heads of {to.columns} columns. Use a divisor, and heads of up to {WIDEST_HEAD}.", "heads")
        if not 0 < step.number("scale") * (to.columns // heads) <= LARGEST_SCORE:
            most = LARGEST_SCORE / (to.columns // heads)
            step.refuse(f"{step.value['scale']} is not above 0 and at most {most:.4g}. Use 1 / sqrt(K).", "scale")
        if not 0 <= step.number("limit") <= 1:
            step.refuse(f"{step.value['limit']} is no probability. Use 0 to 1.", "limit")
        self.vectors(step, ("query_threshold", "key_threshold", "value_threshold", *ACTIVATION), to.columns)

    def pool(self, step: Fields, to: Buffer) -> None:
        source, side = self.source(step, to), step.whole("side", 1, MOST_ROWS)
        self.width(step, source, side)
        self.refuse_shape(step, to, (source.rows // side**2, source.columns), "to")

    def cross(self, step: Fields, to: Buffer) -> None:
        self.width(step, self.source(step, to, to.shape), 1)
        self.vectors(step, CROSS, to.columns)

    def merged(self, step: Fields, to: Buffer) -> Buffer:
        """What a merge reads: four rows for each of `to`."""
        source = self.source(step, to)
        self.width(step, source, 2)
        self.refuse_shape(step, to, (source.rows // 4, to.columns), "to")
        self.tensor(step, "positions", to.shape)
        return source

    def merge(self, step: Fields, to: Buffer) -> None:
        columns = self.merged(step, to).columns
        if to.columns % columns:
            step.refuse(f"{to.columns} columns of {columns}. Use a multiple.", "to")
        self.binary(step, columns, to.columns, taps=4)

    def merge_real(self, step: Fields, to: Buffer) -> None:
        self.real(step, 4 * self.merged(step, to).columns, to.columns)

    def mean(self, step: Fields, to: Buffer) -> None:
        source = self.source(step, to)
        self.span(step, source.rows)
        self.refuse_shape(step, to, (1, source.columns), "to")

    def head(self, step: Fields, to: Buffer) -> None:
        source = self.source(step, to)
        self.refuse_shape(step, source, (1, source.columns), "from")
        self.refuse_shape(step, to, (1, to.columns), "to")
        self.real(step, source.columns, to.columns)


KINDS: dict[str, Callable[[StepRules, Fields, Buffer], None]] = {
    "tokens": StepRules.tokens,
    "patches": StepRules.patches,
    "affine": StepRules.affine,
    "add": StepRules.affine,
    "linear": StepRules.linear,
    "mlp": StepRules.mlp,
    "attention": StepRules.attention,
    "pool": StepRules.pool,
    "cross": StepRules.cross,
    "merge": StepRules.merge,
    "merge_real": StepRules.merge_real,
    "mean": StepRules.mean,
    "head": StepRules.head,
}
