"""`show`: a model's parts and costs, or a recipe's words and what they make."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from frugalvit.cli.console import AsJson, Overrides, With, app, console, own_parts
from frugalvit.cli.words import in_words
from frugalvit.errors import SpecError

if TYPE_CHECKING:
    from frugalvit.measure.cost import ModelCost
    from frugalvit.nn.architecture import Architecture
    from frugalvit.outline import Fields
    from frugalvit.training.recipe import Recipe

FEW = 10  # classes to count with where the data decide


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A model's or a recipe's name, a recipe's .json, or what holds a classifier.")],
    overrides: Overrides = None,
    all_: Annotated[bool, typer.Option("--all", help="Also the fields that are at their defaults; JSON has them.")] = False,
    as_json: AsJson = False,
    with_: With = None,
) -> None:
    """Show a model: its parts as a tree, and what each costs for one picture. Of a recipe, what it takes, says and costs.

    Fields at their defaults are left out, unless --all asks for them; name=value edits those as well, by their paths.
    """
    from frugalvit.measure.cost import cost
    from frugalvit.measure.table import cost_table
    from frugalvit.outline import chosen, describe, every
    from frugalvit.recipes.find import refuse_misspelled

    parts, fields = own_parts(with_ or []), every if all_ else chosen
    if is_recipe(name):
        show_recipe(name, overrides or [], parts, as_json, fields)
        return
    refuse_misspelled(name)
    model = model_or_saved(name, overrides or [], parts)
    costs = cost(model)
    packed = packed_bytes(model, costs)
    if as_json:
        print(json.dumps(summary(name, model, costs, packed), indent=2))
    else:
        console.print(f"[bold]{name}[/bold]")
        console.print(describe(model, fields=fields), markup=False)
        console.print(cost_table(model, costs, packed))
        console.print("[dim]leaves: tokens x width. kept: memory for the backward pass of one picture in fp32.[/dim]")


def model_or_saved(name: str, overrides: list[str], parts: list[type]) -> Architecture:
    from frugalvit.assign import override
    from frugalvit.zoo.find import functions, model

    if name not in functions() and is_saved(name):
        from frugalvit.deploy.classifier import read_spec

        return override(read_spec(Path(name), parts).model, *overrides)
    folder = is_folder(name)
    if name.partition("+")[0] not in functions() and ":" not in name and ("/" in name or folder):
        from frugalvit.weights.own import refuse_several, refuse_unfinished

        if folder:
            refuse_unfinished(Path(name))
            refuse_several(Path(name))
        there = "the folder holds no model.safetensors" if folder else "there is no such folder or file"
        raise SpecError(f"{there}. Name a finished run, a file, a model or a recipe.", path=name)
    return model(name, *overrides)


def is_folder(name: str) -> bool:
    try:
        return bool(name) and Path(name).is_dir()
    except OSError:  # no path at all
        return False


def is_saved(name: str) -> bool:
    try:
        return (Path(name) / "model.safetensors").is_file() or Path(name).is_file()
    except OSError:
        return False


def packed_bytes(model: Architecture, costs: ModelCost) -> int | None:
    """Of the file that it packs into, about; None where it does not."""
    from frugalvit.deploy.packed_size import packed_size

    return packed_size(model) if costs.bops else None


def summary(name: str, model: Architecture, costs: ModelCost, packed: int | None) -> dict[str, Any]:
    from frugalvit.spec import encode

    return {
        "name": name,
        **figures(costs, packed),
        "image": [model.image.height, model.image.width],
        "channels": model.image.channels,
        "classes": model.classes,
        "model": encode(model),
    }


def figures(costs: ModelCost, packed: int | None) -> dict[str, Any]:
    return {
        "parameters": costs.parameters,
        "macs": costs.macs,
        "activation_bytes": costs.activations,
        "bits": costs.bits,
        "bops": costs.bops,
        "flops": costs.flops,
        "ops": costs.ops,
        "packed_bytes": packed,
    }


def is_recipe(name: str) -> bool:
    """Whether this names a recipe, of ours or of the user's, or a file that holds one; `timm:resnet18` is a model."""
    from frugalvit.nn.foreign import LIBRARIES
    from frugalvit.recipes.find import functions

    own = ":" in name and name.partition(":")[0] not in LIBRARIES and not is_saved(name)
    return name in functions() or own or (name.endswith(".json") and is_saved(name))


def show_recipe(name: str, overrides: list[str], parts: list[type], as_json: bool, fields: Fields) -> None:
    """What `name=value` may set by a word, the recipe that comes of it, and what its model costs."""
    from frugalvit.measure.cost import cost
    from frugalvit.measure.table import cost_line
    from frugalvit.outline import chosen, describe, short
    from frugalvit.recipes.find import function_named, recipe
    from frugalvit.spec import encode, plain
    from frugalvit.training.recipe import preprocess_of

    function = None if name.endswith(".json") else function_named(name)
    made = recipe(name, *overrides, parts=parts)
    classes = FEW if made.model.classes is None else made.model.classes
    model = replace(made.model, classes=classes)
    with in_words(name, overrides, parts):
        costs = cost(model)
    packed = packed_bytes(model, costs)
    words = {} if function is None else inspect.signature(function).parameters
    hints = {} if function is None else get_type_hints(function)
    kinds = {word: hints.get(word, Any) for word in words}  # a user's function need not say
    if as_json:
        taken = {word: {"type": kind_text(kinds[word]), "default": plain(one.default)} for word, one in words.items()}
        counted = {"classes": classes, **figures(costs, packed)}
        print(json.dumps({"name": name, "words": taken, "recipe": encode(made), "costs": counted}, indent=2))
        return
    console.print(f"[bold]{name}[/bold]")
    if function is not None:
        console.print(inspect.cleandoc(function.__doc__ or ""), markup=False)
    if words:
        console.print("\nIt takes, as name=value:", markup=False)
        for word, one in words.items():
            console.print(f"  {word} = {short(one.default)}  [dim]{kind_text(kinds[word])}[/dim]")
        more = " (--all shows those at their defaults too)" if fields is chosen else ""
        console.print(f"\nand any field of{more}:\n", markup=False)
    console.print(describe(made, fields=fields), markup=False)
    example = " (an example: the data decide)" if made.model.classes is None else ""
    console.print(f"\nThe model for {classes} classes{example}: {cost_line(costs, packed)}", markup=False)
    size = own_size(made, function, overrides)
    text = preprocess_of(made).resizing(*size) if size else ""
    if text:
        console.print(f"{type(made.data.dataset).__name__}: {text}", markup=False)


def own_size(made: Recipe, function: Callable[..., Recipe] | None, overrides: list[str]) -> tuple[int, int] | None:
    """Height and width of the data set's pictures, where all have one; of others, what a recipe's word `image` says."""
    from frugalvit.assign import parse
    from frugalvit.data.dataset import SIDES
    from frugalvit.nn.shape import Size, pair

    side: Any = SIDES.get(type(made.data.dataset))
    word = None if function is None else inspect.signature(function).parameters.get("image")
    if side is None and word is not None and get_type_hints(function).get("image") in (int, Size):
        pairs = [text.partition("=") for text in overrides]
        given = [value.strip() for name, _, value in pairs if name.strip() == "image"]
        side = parse(given[-1], Size) if given else word.default
    return None if side is None else pair(side)


def kind_text(kind: Any) -> str:
    """`int`, `str | None`; of a choice, what there is to choose."""
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    return inspect.formatannotation(kind)
