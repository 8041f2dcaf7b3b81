"""Models by name: a name is that of a function in a file of this folder. There is no registry."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from frugalvit import zoo
from frugalvit.assign import override, parse
from frugalvit.errors import FrugalError, SpecError, at, suggestion
from frugalvit.nn.architecture import Architecture
from frugalvit.nn.foreign import ForeignModel, Library, usual_image
from frugalvit.nn.shape import Size, image_of
from frugalvit.slots import members
from frugalvit.spec import check
from frugalvit.zoo import change

T = TypeVar("T")
SET_BY_KEYWORD = ("resized", "with_classes")  # a model's name is for its parts
LENGTHS = ("passes", "epochs", "steps", "iterations")  # words that people try for how long a recipe trains
APART = ("find", "change", "grids", "binarize")  # files of the folder that hold no families


@functools.cache
def sized() -> dict[str, Callable[..., Architecture]]:
    """The named sizes: every family's function with the paper's sizes filled in."""
    return {name: made for name, made in functions().items() if isinstance(made, functools.partial)}


@functools.cache
def functions() -> dict[str, Callable[..., Architecture]]:
    """The named sizes and the families' own functions."""
    found: dict[str, Callable[..., Architecture]] = {}
    for file in pkgutil.iter_modules(zoo.__path__):
        if file.name in APART:
            continue
        module = importlib.import_module(f"{zoo.__name__}.{file.name}")
        for name, value in vars(module).items():
            family = value.func if isinstance(value, functools.partial) else value
            if name.islower() and inspect.isfunction(family) and family.__module__ == module.__name__ and is_family(family):
                found[name] = value
    return found


def is_family(function: Callable[..., object]) -> bool:
    """Whether a function returns a model; what else stands in a family's file is its own business."""
    return typing.get_type_hints(function).get("return") in members(Architecture)


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
    dropout: float | None = None,
) -> Architecture:
    """The spec of a model by name, `model("deit_tiny_patch16_224", classes=10).build()`.

    `"deit_tiny_patch16_224+spt+lsa"` has changes of `zoo/change.py`, in this order; `+windows(7)` gives one its arguments.
    `"timm:resnet26d"` and `"torchvision:mobilenet_v3_small"` are models of those libraries. Overrides are texts, as on the
    command line: `"depth=6"` sets a keyword of the family's function, `"layers[2].attention.heads=4"` edits the result.
    """
    base, *words = name.split("+")
    function = foreign_named(base) if ":" in base else functions().get(base)
    if function is None:
        raise SpecError(f"no model is called '{base}'. {suggestion(base, functions())} `frugalvit list models` shows all.")
    given = {
        "image": image,
        "channels": channels,
        "classes": classes,
        "patch": patch,
        "drop_path": drop_path,
        "dropout": dropout,
    }
    keywords: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    with at(name):
        steps = [change_named(word) for word in words]
        return called(function, keywords, [text.removeprefix("model.") for text in overrides], steps)


def changes() -> dict[str, Callable[..., Architecture]]:
    """The changes that a model's name can end in, `lsa` for with_lsa."""
    return {name.removeprefix("with_"): getattr(change, name) for name in change.__all__ if name not in SET_BY_KEYWORD}


def change_named(text: str) -> Callable[[T], T]:
    """The change that `lsa` or `windows(7)` stands for."""
    word, _, inside = text.partition("(")
    if word not in changes():
        raise SpecError(f"no change is called '{word}'. {suggestion(word, changes())} `frugalvit list changes` shows all.")
    function = changes()[word]
    hints = typing.get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name != "model"]
    given: dict[str, object] = {}
    if inside and not inside.endswith(")"):
        raise SpecError(f"'{text}' has no closing bracket. Write {text}).")
    for place, one in enumerate(part.strip() for part in inside.removesuffix(")").split(",") if part.strip()):
        name, equals, value = one.partition("=")
        name, value = (name.strip(), value) if equals else (names[place] if place < len(names) else one, one)
        if name in given:
            raise SpecError(f"{name} is given twice.")
        if name not in names:
            raise SpecError(f"{word} has no '{name}'. {suggestion(name, names) if names else 'It takes nothing.'}")
        with at(f"{word}.{name}"):
            given[name] = parse(value.strip(), hints[name])
    required = [name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty][1:]
    if missing := [name for name in required if name not in given]:
        raise SpecError(f"{missing[0]} must be given: +{word}({missing[0]}=...)")
    return functools.partial(function, **given)  # type: ignore[return-value]


def foreign_named(name: str) -> Callable[..., ForeignModel]:
    """The function of a model of another library, `timm:resnet26d`."""
    library, _, inner = name.partition(":")
    with at(name):
        usual = usual_image(library, inner, 3)
    return functools.partial(foreign, library=typing.cast(Library, library), name=inner, image=(usual.height, usual.width))


def foreign(*, library: Library, name: str, image: Size = 224, channels: int = 3, classes: int | None = 1000) -> ForeignModel:
    """A classifier of timm or torchvision."""
    return ForeignModel(library, name, classes, image_of(image, channels))


def called(
    function: Callable[..., T], keywords: dict[str, object], overrides: Iterable[str], then: Iterable[Callable[[T], T]] = ()
) -> T:
    """The spec that a function returns, changed by `then`; its keywords and then its value set by `name=value` texts."""
    known = inspect.signature(function).parameters
    hints = typing.get_type_hints(function.func if isinstance(function, functools.partial) else function)
    edits = []
    for text in overrides:
        name, equals, value = (word.strip() for word in text.partition("="))
        if not equals:
            raise SpecError(f"'{text}' is not of the form name=value, as in image=384 or layers[2].mlp.ratio=2.")
        if name in known:
            with at(name):
                if name not in hints:
                    raise SpecError(f"the function does not say of which type it is. Write it there, as in {name}: int = 3.")
                keywords[name] = parse(value, hints[name])
        else:
            edits.append(text)
    refuse_unknown(keywords, known, ())
    for key, given in keywords.items():
        with at(key):
            check(given, hints[key])
    missing = [key for key, one in known.items() if one.default is one.empty and key not in keywords]
    if missing:
        raise SpecError(f"{', '.join(missing)} must be given: {' '.join(f'{key}=...' for key in missing)}")
    made = returned(function, keywords)
    if not dataclasses.is_dataclass(made):
        raise SpecError(f"the function returned {type(made).__name__}, not a description.")
    for step in then:
        made = step(made)
    fields = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]
    refuse_unknown([text.partition("=")[0].strip() for text in edits], known, fields)
    return override(made, *edits)


def returned(function: Callable[..., T], keywords: dict[str, object]) -> T:
    """What the function returns. An error from inside is told of the keywords that it comes from, not of a part's field."""
    try:
        return function(**keywords)
    except FrugalError as error:
        known = inspect.signature(function).parameters
        free = [key for key in keywords if known[key].default is not inspect.Parameter.empty]
        if error.path.partition("[")[0] not in known:
            fixed = {key: value for key, value in keywords.items() if key not in free}
            found = causes(error, free, lambda some: function(**fixed, **{key: keywords[key] for key in some}))
            error.path = " and ".join(found) or error.path
        raise


def causes(error: FrugalError, words: Sequence[str], attempt: Callable[[list[str]], object]) -> list[str]:
    """The words that an error comes from: those that raise it alone, or else another; or those without which there is none."""

    def problem(some: list[str]) -> str:
        try:
            attempt(some)
        except Exception as other:  # a function of the user's may fail in any way
            return other.problem if isinstance(other, FrugalError) else repr(other)
        return ""

    if problem([]):
        return []
    alone = {word: problem([word]) for word in words}
    same = [word for word in words if alone[word] == error.problem]
    wrong = [word for word in words if alone[word]]
    return same or wrong or [word for word in words if not problem([one for one in words if one != word])]


def refuse_unknown(names: Iterable[str], known: Iterable[str], fields: Iterable[str]) -> None:
    """A plain name is a parameter of the function, or a field of what it returned; a path is looked up there."""
    for name in names:
        if not {".", "["} & set(name) and name not in known and name not in fields:
            raise SpecError(f"there is no parameter '{name}'. {cure(name, {*known, *fields})}")


def cure(name: str, known: set[str]) -> str:
    """What to write instead; recipes have different words for how long they train."""
    if name in LENGTHS and "duration" in known:
        ways = [f"{one}=2" for one in LENGTHS if one in known] + ["'duration=Epochs(2)'", "'duration=Steps(100)'"]
        return f"Say {' or '.join(ways)}."
    return suggestion(name, known)
