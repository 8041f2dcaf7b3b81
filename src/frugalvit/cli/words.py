"""Errors of a recipe's model, told by the words that the user wrote."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from frugalvit.errors import SpecError

if TYPE_CHECKING:
    from frugalvit.training.recipe import Recipe


@contextmanager
def in_words(name: str, overrides: list[str], parts: list[type]) -> Iterator[None]:
    """Where parts of the model do not fit because of a recipe's own words, as in dim=50, the error names them and the part."""
    from frugalvit.recipes.find import function_named, recipe
    from frugalvit.zoo.find import causes

    try:
        yield
    except SpecError as error:
        fits_not = error.path.partition(".")[0] == "model"
        function = function_named(name) if fits_not and not Path(name).exists() else None  # a run folder has no words
        if function is not None:
            known = inspect.signature(function).parameters
            found = causes(error, overrides, lambda some: refuse_unbuildable(recipe(name, *some, parts=parts)))
            words = [text.partition("=")[0].strip() for text in found]
            if words and all(word in known for word in words):
                error.path = f"{name}.{' and '.join(words)} ({error.path})"
        raise


def refuse_unbuildable(made: Recipe) -> None:
    """What training would refuse: parts that do not fit each other. Nothing is allocated."""
    import torch

    from frugalvit.nn.foreign import ForeignModel

    if not isinstance(made.model, ForeignModel):  # those need their library
        with torch.device("meta"):
            replace(made.model, classes=1 if made.model.classes is None else made.model.classes).build()
