"""Recipes by name: `deit.imagenet` is the function `imagenet` in recipes/deit.py; `mylab.runs:night` is the user's own."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from frugalvit import recipes
from frugalvit.assign import override
from frugalvit.errors import FrugalError, SpecError, at, brief, own_line, suggestion
from frugalvit.slots import slots
from frugalvit.spec import decode
from frugalvit.training.recipe import Recipe
from frugalvit.zoo.find import called, refuse_unknown

BESIDE = (
    "data_fingerprint",
    "init",
    "origin",
    "ready_model",
    "ready_objective",
    "teacher_fingerprint",
)  # what a run's recipe.json holds beside the recipe


@functools.cache
def functions() -> dict[str, Callable[..., Recipe]]:
    """Every recipe of the package."""
    found: dict[str, Callable[..., Recipe]] = {}
    for file in pkgutil.iter_modules(recipes.__path__):
        if file.name != "find":
            module = importlib.import_module(f"{recipes.__name__}.{file.name}")
            for name, value in vars(module).items():
                if inspect.isfunction(value) and value.__module__ == module.__name__ and is_recipe(value):
                    found[f"{file.name}.{name}"] = value
    return found


def is_recipe(function: Callable[..., object]) -> bool:
    """A recipe is called by keywords alone, all of which have defaults."""
    signature = inspect.signature(function)
    keywords = all(one.kind is one.KEYWORD_ONLY and one.default is not one.empty for one in signature.parameters.values())
    return keywords and signature.return_annotation in (Recipe, "Recipe")


def recipe(name: str, *overrides: str, parts: Iterable[type] = ()) -> Recipe:
    """The recipe of that name, of a run folder, or of a function of the user's, with `name=value` texts carried out."""
    saved = Path(name) / "recipe.json" if Path(name).is_dir() else Path(name)
    if saved.suffix == ".json" and saved.exists():
        with at(str(saved)):
            refuse_unknown((one.partition("=")[0].strip() for one in overrides), (), slots(Recipe))
            return override(from_file(saved, parts), *overrides)
    function = function_named(name)
    if function is None:
        raise SpecError(f"no recipe is called '{name}'. {suggestion(name, functions())} `frugalvit list recipes` shows all.")
    with at(name):
        with told_briefly("the function fails", name, overrides):
            made = called(function, {}, overrides)
        if not isinstance(made, Recipe):
            raise SpecError(f"the function returned {type(made).__name__}, not a Recipe.")
        return made


def function_named(name: str) -> Callable[..., Recipe] | None:
    """The function of a recipe, of ours or of the user's."""
    refuse_file_of_python(name)
    return own_function(name) if ":" in name else functions().get(name)


def refuse_file_of_python(name: str) -> None:
    """Raise for `mine.py` and `lab/mine.py:night`, with the name that is meant."""
    file, _, function = name.partition(":")
    if file.endswith(".py"):
        where = "" if Path(file).parent == Path() else f", called in {Path(file).parent}"
        meant = f"{Path(file).stem}:{function or 'FUNCTION'}"
        raise SpecError(f"is a file. A recipe of your own is named by its module and its function, {meant}{where}.", path=name)


def refuse_misspelled(name: str, path: str = "") -> None:
    """Raise for what begins as recipes do, and is none and no file: where a model would be taken, too."""
    family, dot, _ = name.partition(".")
    if dot and name not in functions() and not Path(name).exists() and family in {one.partition(".")[0] for one in functions()}:
        raise SpecError(f"no recipe is called '{name}'. {suggestion(name, functions())}", path=path)


def from_file(path: Path, parts: Iterable[type]) -> Recipe:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"is not JSON ({error}).") from error
    held = {key: value for key, value in found.items() if key not in BESIDE} if isinstance(found, dict) else found
    return decode(held, Recipe, parts)


@contextmanager
def told_briefly(problem: str, name: str, overrides: Iterable[str]) -> Iterator[None]:
    """An error of the user's own code as one of ours: its line, what it says, and how to see all that led to it."""
    try:
        yield
    except FrugalError:
        raise
    except Exception as error:  # code of the user's may fail in any way
        if ":" not in name:  # of ours, and that is a mistake of ours
            raise
        line, again = own_line(error), ", ".join(map(repr, (name, *overrides)))
        place, cure = (f" at {line}", f" In Python, frugalvit.recipe({again}) shows the whole traceback.") if line else ("", "")
        raise SpecError(f"{problem}{place} ({brief(error)}).{cure}") from error


def own_function(name: str) -> Callable[..., Recipe]:
    """`mylab.runs:night7`, imported from the current folder as well."""
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        with at(name), told_briefly(f"'{module}' cannot be imported", name, ()):
            found = getattr(importlib.import_module(module), attribute, None)
    finally:
        sys.path.remove("")
    if not callable(found):
        raise SpecError(f"'{module}' has no function '{attribute}'.", path=name)
    return found
