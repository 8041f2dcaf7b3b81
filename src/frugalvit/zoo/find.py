"""Models by name: a name is that of a function in a file of this folder. There is no registry."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterable

from frugalvit import zoo
from frugalvit.errors import SpecError, at, suggestion
from frugalvit.nn.model import Model
from frugalvit.nn.shape import Size
from frugalvit.spec import override, parse

APART = ("find", "change")  # files of the folder that hold no families


@functools.cache
def sized() -> dict[str, Callable[..., Model]]:
    """The named sizes: every family's function with the paper's sizes filled in."""
    return {name: made for name, made in functions().items() if isinstance(made, functools.partial)}


@functools.cache
def functions() -> dict[str, Callable[..., Model]]:
    """The named sizes and the families' own functions."""
    found: dict[str, Callable[..., Model]] = {}
    for file in pkgutil.iter_modules(zoo.__path__):
        if file.name in APART:
            continue
        module = importlib.import_module(f"{zoo.__name__}.{file.name}")
        for name, value in vars(module).items():
            family = value.func if isinstance(value, functools.partial) else value
            if inspect.isfunction(family) and family.__module__ == module.__name__:
                found[name] = value
    return found


def models() -> list[str]:
    """The names of all models with published sizes."""
    return sorted(sized())


def model(
    name: str,
    *overrides: str,
    image: Size | None = None,
    channels: int | None = None,
    classes: int | None = None,
    patch: Size | None = None,
    drop_path: float | None = None,
) -> Model:
    """The spec of a model by name, `model("deit_tiny_patch16_224", classes=10).build()`.

    Overrides are texts, as on the command line: `"depth=6"` sets a keyword of the family's function,
    `"layers[2].attention.heads=4"` edits the spec it returns.
    """
    given = {"image": image, "channels": channels, "classes": classes, "patch": patch, "drop_path": drop_path}
    keywords: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    function = functions().get(name)
    if function is None:
        raise SpecError(f"no model is called '{name}'. {suggestion(name, functions())} `frugalvit list models` shows all.")
    with at(name):
        plain, dotted = sorted_overrides(overrides)
        keywords |= parsed_keywords(function, plain)
        for key in keywords:
            refuse_unknown(key, function)
        refuse_missing(function, keywords)
        built = function(**keywords)
        with at("model"):
            return override(built, *dotted)


def sorted_overrides(overrides: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """The plain `name=value` pairs, and the assignments to dotted or indexed paths."""
    plain, dotted = {}, []
    for text in overrides:
        path, equals, value = text.partition("=")
        if not equals:
            raise SpecError(f"'{text}' is not of the form name=value, as in image=384 or layers[2].mlp.ratio=2.")
        if "." in path or "[" in path:
            dotted.append(text.removeprefix("model."))
        else:
            plain[path.strip()] = value.strip()
    return plain, dotted


def parsed_keywords(function: Callable[..., Model], texts: dict[str, str]) -> dict[str, object]:
    hints = typing.get_type_hints(function.func if isinstance(function, functools.partial) else function)
    found = {}
    for key, text in texts.items():
        refuse_unknown(key, function)
        with at(key):
            found[key] = parse(text, hints[key])
    return found


def refuse_unknown(key: str, function: Callable[..., Model]) -> None:
    known = inspect.signature(function).parameters
    if key not in known:
        raise SpecError(f"there is no parameter '{key}'. {suggestion(key, known)}")


def refuse_missing(function: Callable[..., Model], keywords: dict[str, object]) -> None:
    required = [key for key, one in inspect.signature(function).parameters.items() if one.default is one.empty]
    missing = [key for key in required if key not in keywords]
    if missing:
        example = " ".join(f"{key}=..." for key in missing)
        raise SpecError(f"{', '.join(missing)} must be given: {example}")
