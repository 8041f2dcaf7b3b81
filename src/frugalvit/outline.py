"""A spec as text for people: defaults left out unless asked for, equal blocks folded, all under its path. No torch."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from frugalvit.errors import join
from frugalvit.slots import slots

Fields = Callable[[Any], dict[str, Any]]  # those of a spec that are told


def chosen(spec: Any) -> dict[str, Any]:
    """The fields of a spec that are not at their defaults."""
    defaults = {
        f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        for f in dataclasses.fields(spec)
    }
    return {name: getattr(spec, name) for name in slots(spec.__class__) if getattr(spec, name) != defaults[name]}


def every(spec: Any) -> dict[str, Any]:
    """All fields of a spec."""
    return {name: getattr(spec, name) for name in slots(spec.__class__)}


def short(value: Any, fields: Fields = chosen) -> str:
    """A spec on one line, without the fields that are at their defaults: `Attention(heads=3)`."""
    if isinstance(value, tuple):
        return "(" + ", ".join(short(one, fields) for one in value) + ")"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return repr(value) if isinstance(value, str) else str(value)
    return f"{type(value).__name__}({', '.join(f'{k}={short(v, fields)}' for k, v in fields(value).items())})"


def flatten(tree: Any, path: str = "") -> dict[str, Any]:
    """Every leaf of a tree under its path; a part's name stands under the part's own path."""
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        found: dict[str, Any] = {path: type(tree).__name__}
        for name in slots(type(tree)):
            found |= flatten(getattr(tree, name), join(path, name))
        return found
    if isinstance(tree, tuple) and tree:
        return {k: v for i, one in enumerate(tree) for k, v in flatten(one, f"{path}[{i}]").items()}
    return {path: tree}


def alike(one: Any, other: Any) -> bool:
    """Whether two parts are the same but for fractions such as a drop rate: they fold into one line."""
    a, b = flatten(one), flatten(other)
    return a.keys() == b.keys() and all(a[k] == b[k] or isinstance(a[k], float) is isinstance(b[k], float) is True for k in a)


def folds(parts: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """Runs of consecutive parts that are alike, as [start, stop)."""
    start = 0
    for index in range(1, len(parts) + 1):
        if index == len(parts) or not alike(parts[start], parts[index]):
            yield start, index
            start = index


def fold_label(parts: Sequence[Any]) -> str:
    """`12 × ` for a run of alike parts, and what changes along it: `residual.drop 0 → 0.1`."""
    first, last = flatten(parts[0]), flatten(parts[-1])
    changing = [f"{path} {first[path]:g} → {last[path]:g}" for path in first if first[path] != last[path]]
    return f"{len(parts)} × " + (f"[{', '.join(changing)}] " if changing else "")


def describe(tree: Any, width: int = 100, fields: Fields = chosen) -> str:
    """The tree as indented text: defaults left out unless `fields` is `every`, equal blocks folded into one."""
    return "\n".join(lines(tree, "", "", width, fields))


def lines(value: Any, label: str, indent: str, width: int, fields: Fields) -> Iterator[str]:
    line = f"{indent}{label}{short(value, fields)}"
    nested = dataclasses.is_dataclass(value) or (isinstance(value, tuple) and any(map(dataclasses.is_dataclass, value)))
    if not nested or (len(line) <= width and " × " not in label and not isinstance(value, tuple)):
        yield line
        return
    if isinstance(value, tuple):
        for start, stop in folds(value):
            many = stop - start > 1
            index = f"[{start}..{stop - 1}]" if many else f"[{start}]"
            head = fold_label(value[start:stop]) if many else ""
            yield from lines(value[start], f"{label.removesuffix(': ')}{index}: {head}", indent, width, fields)
        return
    told = fields(value)
    leaves = {k: v for k, v in told.items() if not dataclasses.is_dataclass(v) and not isinstance(v, tuple)}
    listed = f"({', '.join(f'{k}={short(v)}' for k, v in leaves.items())})" if leaves else ""
    yield from wrapped(f"{indent}{label}{type(value).__name__}{listed}", indent + 4 * " ", width)
    for name, child in told.items():
        if name not in leaves:
            yield from lines(child, f"{name}: ", indent + "  ", width, fields)


def wrapped(line: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
