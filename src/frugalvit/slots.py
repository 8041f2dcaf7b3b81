"""What may stand where in a spec, read from its annotations. No torch.

A union of dataclasses is the list of the built-in parts for a slot; a Protocol in the union admits parts of the user's.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
import typing
from typing import Any

from frugalvit.errors import SpecError

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", types.NoneType: "none"}


@functools.cache
def slots(kind: type) -> dict[str, Any]:
    """The fields of a spec class, each with its resolved annotation."""
    try:
        hints = typing.get_type_hints(kind)
    except NameError as error:
        raise SpecError(f"the annotations of {kind.__name__} cannot be resolved: {error}") from error
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def members(annotation: Any) -> list[Any]:
    """The alternatives of an annotation: those of a union, else itself."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [one for part in typing.get_args(annotation) for one in members(part)]
    return [types.NoneType if annotation is None else annotation]


def choices(annotation: Any) -> dict[str, type]:
    """The built-in parts that may stand under an annotation, by name."""
    kinds = [kind for kind in members(annotation) if isinstance(kind, type) and dataclasses.is_dataclass(kind)]
    return {kind.__name__: kind for kind in kinds}


def parts_of(kind: type) -> dict[str, tuple[list[str], str]]:
    """Every slot reachable from a spec class, `Attention.scale`, with its built-in parts and its protocol's name."""
    found: dict[str, tuple[list[str], str]] = {}
    waiting = [kind]
    done = set()
    while waiting:
        owner = waiting.pop()
        if owner in done:
            continue
        done.add(owner)
        for name, annotation in slots(owner).items():
            inner = typing.get_args(annotation)[0] if typing.get_origin(annotation) is tuple else annotation
            known = choices(inner)
            protocols = [one.__name__ for one in members(inner) if is_protocol(one)]
            if known:
                found[f"{owner.__name__}.{name}"] = list(known), protocols[0] if protocols else ""
                waiting += known.values()
    return found


def is_protocol(annotation: Any) -> bool:
    return getattr(annotation, "_is_protocol", False)


def expected(annotation: Any) -> str:
    """What an annotation admits, in words."""
    found = []
    for kind in members(annotation):
        origin = typing.get_origin(kind)
        if kind in WORDS:
            found.append(WORDS[kind])
        elif origin is typing.Literal:
            found += [repr(value) for value in typing.get_args(kind)]
        elif origin is tuple:
            found.append(f"a list of {expected(typing.get_args(kind)[0])}")
        elif is_protocol(kind):
            found.append(f"a part of your own ({kind.__name__})")
        else:
            found.append(kind.__name__)
    return found[0] if len(found) == 1 else ", ".join(found[:-1]) + " or " + found[-1]


def method_of(protocol: type) -> str:
    """The method that a slot calls: `build` of most parts, `open` of data sets."""
    return next(name for name, value in vars(protocol).items() if inspect.isfunction(value) and not name.startswith("_"))


def fits(part: Any, protocol: type) -> bool:
    """Whether a part has the protocol's method, with the arguments that the slot hands it."""
    name = method_of(protocol)
    wanted = arguments_of(getattr(protocol, name))
    return hasattr(part, name) and arguments_of(getattr(part, name))[: len(wanted)] == wanted


def arguments_of(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]
