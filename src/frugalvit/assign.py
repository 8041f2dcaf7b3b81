"""Specs edited by text, as on a command line: `layers[3].attention.heads=4`, each checked against its annotation. No torch."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Sequence
from dataclasses import MISSING
from typing import Any, TypeVar

from frugalvit.errors import SpecError, at, suggestion, whole_number
from frugalvit.slots import choices, expected, members, slots
from frugalvit.spec import plain, read, read_part, shown

T = TypeVar("T")


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
            if number is None and index not in ("*", "+"):
                raise SpecError(f"'{path}' is not a path; an index is a whole number, * or +, as in layers[3].attention.heads.")
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
    if step == "+":
        return added(node, annotation, rest, text)
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


def added(nodes: Any, annotation: Any, path: Sequence[str | int], text: str) -> Any:
    """The list with one entry more."""
    inner = list_of(annotation)
    if not isinstance(nodes, tuple) or inner is None or inner[-1] is not Ellipsis or path:
        raise SpecError("[+] adds a whole entry to a list of any length, as in objective.terms[+]=Supervised(distill).")
    with at(f"[{len(nodes)}]"):
        return (*nodes, parse(text, inner[0]))


def parse(text: str, annotation: Any, current: Any = None) -> Any:
    """The value that `text` stands for where `annotation` is expected."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]  # quoted as in Python
    entries = list_of(annotation)
    if text.startswith(("{", "[")):
        return bracketed(text, annotation, entries)
    known = choices(annotation)
    name, _, inner = text.partition("(")
    if name in known and (text == name or inner.endswith(")")):
        return read_part({"part": name, **arguments(inner[:-1], known[name])}, annotation, {})
    if name in known and "(" in text:
        raise SpecError(f"'{text}': the parenthesis behind {name} is not closed.")
    if hasattr(current, "parsed"):
        return current.parsed(text)
    for kind in members(annotation):
        found = parse_one(text, kind)
        if found:
            return found[0]
    if entries is not None and choices(entries[0]) and well_formed(words := words_of(text)):
        return parse_each(words, entries)
    examples = [f"{name}({text})" for name, kind in known.items() if takes(text, kind)]
    if entries is not None:
        cure = spellings(entries)
    elif examples:
        cure = f" Write {' or '.join(examples[:2])}."
    else:
        cure = f" {suggestion(name, known)}" if known and len(text) > 1 else ""
    raise SpecError(f"'{text}' does not fit here. Expected {expected(annotation)}.{cure}")


def bracketed(text: str, annotation: Any, entries: tuple[Any, ...] | None) -> Any:
    """What JSON says, in which a part of a list may be its name alone; or a list of words without quotes."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        words = words_of(text[1:-1])
        if entries is not None and text[0] + text[-1] == "[]" and not set(text) & set("{}\"'") and well_formed(words):
            return parse_each(words, entries)
        cure = "" if entries is None else spellings(entries)
        raise SpecError(f"'{text}' is not JSON: {error.msg} at character {error.pos}.{cure}") from error
    if entries is not None and isinstance(found, list):
        known = choices(entries[0])
        found = [{"part": one} if isinstance(one, str) and one in known else one for one in found]
    return read(found, annotation, {})


def list_of(annotation: Any) -> tuple[Any, ...] | None:
    """What the entries of a list are, `(kind, ...)` or one each; None where no list may stand."""
    return next((typing.get_args(kind) for kind in members(annotation) if typing.get_origin(kind) is tuple), None)


def words_of(text: str) -> list[str]:
    """The words between commas; those inside of brackets do not count."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter
    return [word.strip() for word in found]


def well_formed(words: Sequence[str]) -> bool:
    """Whether every word is there, and no bracket has lost its partner."""
    return all(word and all(word.count(a) == word.count(b) for a, b in ("()", "[]", "{}")) for word in words)


def parse_each(words: Sequence[str], entries: tuple[Any, ...]) -> tuple[Any, ...]:
    kinds = (entries[0],) * len(words) if entries[-1] is Ellipsis else entries
    if len(words) != len(kinds):
        raise SpecError(f"{len(words)} entries where {len(kinds)} belong.")
    found = []
    for index, (word, kind) in enumerate(zip(words, kinds, strict=True)):
        with at(f"[{index}]"):
            found.append(parse(word, kind))
    return tuple(found)


def spellings(entries: tuple[Any, ...]) -> str:
    """Both ways to write a list, in a closing sentence; of lists in lists there is JSON alone."""
    kinds = members(entries[0])
    examples: list[Any] = [name for name, kind in choices(entries[0]).items() if not needs_fields(kind)]
    examples += [one for kind in kinds if typing.get_origin(kind) is typing.Literal for one in typing.get_args(kind)]
    examples += [1, 2, 3] if {int, float} & set(kinds) else ["one", "two", "three"] if str in kinds else []
    some = examples[: 2 if entries[-1] is Ellipsis else len(entries)]
    return f" Write {','.join(map(str, some))} or, as JSON, {json.dumps(some)}." if some else ""


def needs_fields(kind: type) -> bool:
    """Whether a part's name alone does not say what it is."""
    return any(one.default is MISSING and one.default_factory is MISSING for one in dataclasses.fields(kind) if one.init)


def takes(text: str, kind: type) -> bool:
    """Whether a part's first field is a number, and this is one."""
    first = next(iter(slots(kind).values()), None)
    return any(parse_one(text, one) is not None for one in members(first) if one in (int, float))


def arguments(text: str, kind: type) -> dict[str, Any]:
    """The fields in `Epochs(5)` or `Cosine(end=1e-5)`: plain values, in order or by name."""
    found: dict[str, Any] = {}
    fields = slots(kind)
    for position, word in enumerate(word for word in words_of(text) if word):
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
        if len(words) != len(inner) or any(not word or {word[0], word[-1]} & set("[]\"'") for word in words):
            return None
        found = [parse_one(word, one) for word, one in zip(words, inner, strict=True)]
        return (tuple(one[0] for one in found if one),) if all(found) else None
    return (text,) if kind is str else None
