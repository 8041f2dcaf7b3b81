"""Trees of frozen dataclasses: read, write, check and change them. No torch.

A spec holds numbers, strings, tuples and specs, nothing else. A field's annotation says what may stand in it (slots.py).
A file names parts; it never names a module to import.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from frugalvit.errors import SpecError, at, suggestion, whole_number
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


def override(tree: T, *assignments: str) -> T:
    """The tree with `"layers[3].attention.heads=4"` and the like carried out, each checked against its annotation."""
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise SpecError(f"'{assignment}' is not of the form path=value, as in layers[3].attention.heads=4.")
        tree = edit(tree, type(tree), steps(path.strip()), text.strip())
    return tree


def steps(path: str) -> list[str | int]:
    """`layers[3].attention` as `["layers", 3, "attention"]`."""
    found: list[str | int] = []
    for word in path.split("."):
        name, *indices = word.replace("]", "").split("[")
        if name:
            found.append(int(name) if name.isdigit() else name)
        for index in indices:
            number = whole_number(index)
            if number is None and index != "*":
                raise SpecError(f"'{path}' is not a path; an index is a whole number or *, as in layers[3].attention.heads.")
            found.append(index if number is None else number)
    if not found:
        raise SpecError("an assignment starts with a path, as in layers[3].attention.heads=4.")
    return found


def edit(node: Any, annotation: Any, path: Sequence[str | int], text: str) -> Any:
    if not path:
        return parse(text, annotation, node)
    step, rest = path[0], path[1:]
    if step == "*":
        return edit_all(node, annotation, rest, text)
    if isinstance(step, int):
        if not isinstance(node, tuple):
            raise SpecError(f"{shown(node)} is not a list, so it has no entry [{step}].")
        if not -len(node) <= step < len(node):
            raise SpecError(f"there is no entry [{step}]; the list has {len(node)} (0 to {len(node) - 1}).")
        inner = next(typing.get_args(kind) for kind in members(annotation) if typing.get_origin(kind) is tuple)
        with at(f"[{step}]"):
            new = edit(node[step], inner[0] if inner[-1] is Ellipsis else inner[step], rest, text)
        entries = list(node)
        entries[step] = new
        return tuple(entries)
    if not dataclasses.is_dataclass(node) or isinstance(node, type):
        raise SpecError(f"{shown(node)} has no fields, so there is no '{step}' in it.")
    fields = slots(type(node))
    if step not in fields:
        raise SpecError(f"{type(node).__name__} has no field '{step}'. {suggestion(step, fields)}")
    with at(step):
        value = edit(getattr(node, step), fields[step], rest, text)
    return dataclasses.replace(node, **{step: value})


def edit_all(nodes: Any, annotation: Any, path: Sequence[str | int], text: str) -> Any:
    """Every entry of a list that has the field the path goes on with."""
    fitting = [i for i, node in enumerate(nodes) if path and hasattr(node, str(path[0]))] if isinstance(nodes, tuple) else []
    if not fitting:
        raise SpecError(f"no entry [*] here has '{path[0] if path else ''}'.")
    for index in fitting:
        nodes = edit(nodes, annotation, [index, *path], text)
    return nodes


def parse(text: str, annotation: Any, current: Any = None) -> Any:
    """The value that `text` stands for where `annotation` is expected."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]  # quoted as in Python
    if text.startswith(("{", "[")):
        try:
            return read(json.loads(text), annotation, {})
        except json.JSONDecodeError as error:
            raise SpecError(f"'{text}' is not JSON: {error.msg} at character {error.pos}.") from error
    known = choices(annotation)
    name, _, inner = text.partition("(")
    if name in known and (text == name or inner.endswith(")")):
        return read_part({"part": name, **arguments(inner[:-1], known[name])}, annotation, {})
    if hasattr(current, "parsed"):
        return current.parsed(text)
    for kind in members(annotation):
        found = parse_one(text, kind)
        if found:
            return found[0]
    examples = [f"{name}({text})" for name, kind in known.items() if takes(text, kind)]
    if examples:
        cure = f" Write {' or '.join(examples[:2])}."
    else:
        cure = f" {suggestion(text, known)}" if known and len(text) > 1 else ""
    raise SpecError(f"'{text}' does not fit here. Expected {expected(annotation)}.{cure}")


def takes(text: str, kind: type) -> bool:
    """Whether a part's first field is a number, and this is one."""
    first = next(iter(slots(kind).values()), None)
    return any(parse_one(text, one) is not None for one in members(first) if one in (int, float))


def arguments(text: str, kind: type) -> dict[str, Any]:
    """The fields in `Epochs(5)` or `Cosine(end=1e-5)`: plain values, in order or by name."""
    found: dict[str, Any] = {}
    fields = slots(kind)
    for position, word in enumerate(word.strip() for word in text.split(",") if word.strip()):
        name, equals, value = word.partition("=")
        if not equals:
            name, value = (list(fields)[position], word) if position < len(fields) else (word, word)
        if name not in fields:
            raise SpecError(f"{kind.__name__} has no field '{name}'. {suggestion(name, fields)}")
        with at(name):
            found[name] = plain(parse(value.strip(), fields[name]))
    return found


def parse_one(text: str, kind: Any) -> tuple[Any] | None:
    """The one value in a tuple, or None where the text is not of that kind."""
    if kind is types.NoneType:
        return (None,) if text.lower() in ("none", "null") else None
    if kind is bool:
        return (text.lower() == "true",) if text.lower() in ("true", "false") else None
    if kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            return None
        return (number,) if math.isfinite(number) else None
    if typing.get_origin(kind) is typing.Literal:
        return next(((one,) for one in typing.get_args(kind) if str(one) == text), None)
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        words = (
            [word.strip() for word in text.replace("x", ",").split(",")]
            if inner[0] in (int, float)
            else [word.strip() for word in text.split(",")]
        )
        inner = (inner[0],) * len(words) if inner[-1] is Ellipsis else inner
        if len(words) != len(inner):
            return None
        found = [parse_one(word, one) for word, one in zip(words, inner, strict=True)]
        return (tuple(one[0] for one in found if one),) if all(found) else None
    return (text,) if kind is str else None


def shown(value: Any) -> str:
    """A value in an error message: never longer than a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
