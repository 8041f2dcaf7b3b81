"""Trees of frozen dataclasses: read, write, check and change them; `assign.py` edits them by text. No torch.

A spec holds numbers, strings, tuples and specs, nothing else. A field's annotation says what may stand in it (slots.py).
A file names parts; it never names a module to import.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from frugalvit.errors import SpecError, at, suggestion
from frugalvit.migrate import FORMAT, migrate
from frugalvit.slots import WORDS, arguments_of, choices, expected, fits, is_protocol, members, method_of, slots

T = TypeVar("T")


# ------------------------------------------------------------------------------------------------ writing


def encode(tree: Any) -> dict[str, Any]:
    """A spec as JSON data, every field written out, with the `format` it is written in."""
    return {"format": FORMAT, **plain(tree)}


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        data: dict[str, Any] = {"part": type(value).__name__}
        for name in slots(type(value)):
            with at(name):
                data[name] = plain(getattr(value, name))
        return data
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise SpecError(f"{value!r} cannot be part of a spec. Use finite numbers, strings, tuples and specs.")


# ------------------------------------------------------------------------------------------------ reading


def decode(data: Mapping[str, Any], kind: type[T], parts: Iterable[type] = ()) -> T:
    """The spec of type `kind` that `encode` wrote. `parts` are the user's own classes that it may contain."""
    with at(kind.__name__.lower()):
        try:
            return typing.cast(T, read(migrate(data), kind, own_parts(parts)))
        except RecursionError as error:
            raise SpecError("the description is nested too deeply to be one of ours.") from error


def own_parts(parts: Iterable[type]) -> dict[str, type]:
    """The user's spec classes by name."""
    listed = list(parts) if isinstance(parts, Iterable) else [parts]
    for part in listed:
        if not isinstance(part, type) or not dataclasses.is_dataclass(part):
            raise SpecError(f"{shown(part)} is not a dataclass. Give classes with @dataclass(frozen=True), as in parts=[Mine].")
    return {part.__name__: part for part in listed}


def read(value: Any, annotation: Any, own: Mapping[str, type]) -> Any:
    kinds = members(annotation)
    if isinstance(value, Mapping):
        return read_part(value, annotation, own)
    for kind in kinds:
        if is_scalar(value, kind):
            return float(value) if kind is float else value
        if typing.get_origin(kind) is typing.Literal and value in typing.get_args(kind):
            return value
        if typing.get_origin(kind) is tuple and isinstance(value, (list, tuple)):
            return read_tuple(value, kind, own)
    raise SpecError(f"{shown(value)} does not fit here. Expected {expected(annotation)}.")


def read_part(data: Mapping[str, Any], annotation: Any, own: Mapping[str, type]) -> Any:
    known = choices(annotation)
    protocols = [kind for kind in members(annotation) if is_protocol(kind)]
    if not known and not protocols:
        raise SpecError(f"a part cannot stand here. Expected {expected(annotation)}.")
    name = data.get("part", next(iter(known)) if len(known) == 1 and not protocols else None)
    if name is None:
        raise SpecError(f"the part has no name ('part'). Expected {expected(annotation)}.")
    if not isinstance(name, str):
        raise SpecError(f"{shown(name)} is not the name of a part.")
    if name in known and name in own:
        raise SpecError(f"'{name}' is the name of a part of the package. Give yours another.")
    kind = known.get(name)
    if kind is None and name in own:
        kind = own[name]
        if not any(fits(kind, protocol) for protocol in protocols):
            wanted = " or ".join(called(protocol) for protocol in protocols) or expected(annotation)
            raise SpecError(f"'{name}' does not fit here. Expected {wanted}.")
    if kind is None:
        cure = " A part of your own must be passed along (parts=[...], or --with module)." if protocols else ""
        raise SpecError(f"no part is called '{name}' here. {suggestion(str(name), known)}{cure}")
    fields = {key: value for key, value in data.items() if key not in ("part", "format")}
    wanted_fields = slots(kind)
    values = {}
    for key, value in fields.items():
        if key not in wanted_fields:
            raise SpecError(f"{kind.__name__} has no field '{key}'. {suggestion(key, wanted_fields)}")
        with at(key):
            values[key] = read(value, wanted_fields[key], own)
    for field in dataclasses.fields(kind):
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise SpecError(f"{kind.__name__} needs a value for '{field.name}'.")
    return kind(**values)


def read_tuple(values: Sequence[Any], annotation: Any, own: Mapping[str, type]) -> tuple[Any, ...]:
    inner = typing.get_args(annotation)
    if inner[-1] is Ellipsis:
        inner = (inner[0],) * len(values)
    if len(inner) != len(values):
        raise SpecError(f"{len(values)} entries where {len(inner)} belong.")
    found = []
    for index, (value, kind) in enumerate(zip(values, inner, strict=True)):
        with at(f"[{index}]"):
            found.append(read(value, kind, own))
    return tuple(found)


def is_scalar(value: Any, kind: Any) -> bool:
    """Whether a value is of a plain kind; whole numbers are fractions too, booleans are no numbers, NaN is nothing."""
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return kind in WORDS and type(value) is kind


def check(value: Any, annotation: Any) -> None:
    """Raise unless a spec made in Python holds what its annotations say, down to the leaves."""
    for kind in members(annotation):
        if dataclasses.is_dataclass(kind) and isinstance(value, typing.cast(type, kind)):
            return check_fields(value)
        if is_protocol(kind) and not isinstance(value, type) and fits(value, kind):
            return check_fields(value) if dataclasses.is_dataclass(value) else None
        if typing.get_origin(kind) is tuple and isinstance(value, tuple):
            inner = typing.get_args(kind)
            inner = (inner[0],) * len(value) if inner[-1] is Ellipsis else inner
            if len(inner) == len(value):
                for index, (one, wanted) in enumerate(zip(value, inner, strict=True)):
                    with at(f"[{index}]"):
                        check(one, wanted)
                return None
        elif is_scalar(value, kind) or (typing.get_origin(kind) is typing.Literal and value in typing.get_args(kind)):
            return None
    raise SpecError(f"{shown(value)} does not fit here. Expected {expected(annotation)}.{why_not(value, annotation)}")


def why_not(value: Any, annotation: Any) -> str:
    """A word on the two mistakes that are easily made in Python."""
    if isinstance(value, list):
        return " Write a tuple, (a, b) or (a,), where you have a list."
    for protocol in filter(is_protocol, members(annotation)):
        if hasattr(value, method_of(protocol)):
            return f" It is called as {called(protocol)}, with arguments of these names."
    return ""


def called(protocol: type) -> str:
    """How a slot calls a part: `LayerPart.build(shape)`."""
    name = method_of(protocol)
    return f"{protocol.__name__}.{name}({', '.join(arguments_of(getattr(protocol, name)))})"


def check_fields(spec: Any) -> None:
    for name, annotation in slots(spec.__class__).items():
        with at(name):
            check(getattr(spec, name), annotation)


# ------------------------------------------------------------------------------------------------ changing


def swap(tree: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """The tree with every node of type `kind` replaced by `change(node)`. Scope it by giving it a subtree."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, tuple):
        changed = tuple(swap(one, kind, change) for one in tree)
        return changed if any(a is not b for a, b in zip(changed, tree, strict=True)) else tree
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        new = {name: swap(getattr(tree, name), kind, change) for name in slots(type(tree))}
        new = {name: value for name, value in new.items() if value is not getattr(tree, name)}
        return dataclasses.replace(tree, **new) if new else tree
    return tree


def shown(value: Any) -> str:
    """A value in an error message: never longer than a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
