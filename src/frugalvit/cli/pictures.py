"""Which pictures a verb measures: the split that is meant, and whether its classes are the model's."""

from __future__ import annotations

import itertools
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from frugalvit.cli.console import stderr
from frugalvit.errors import DataError, FrugalError, at

if TYPE_CHECKING:
    from frugalvit.data.source import DatasetPart, Source
    from frugalvit.data.subset import Subset

OWN_DATA = "name your own with --dataset ImageFolder"


def some_of(data: tuple[str, ...], model: tuple[str, ...]) -> bool:
    """Whether the data has some of the model's classes alone, by names that are no places."""
    return set(data) < set(model) and not all(name.isdigit() for name in data)


def unlike(data: tuple[str, ...], model: tuple[str, ...]) -> str:
    """How two lists of classes differ."""
    if len(data) != len(model):
        return f"the data has {len(data)} classes, and the model {len(model)}: {some(data)} against {some(model)}"
    first = next(place for place, pair in enumerate(zip(data, model, strict=True)) if pair[0] != pair[1])
    return f"the data's classes are not the model's: class {first} is {data[first]} there, and {model[first]} here."


def some(classes: tuple[str, ...]) -> str:
    return ", ".join(classes[:4]) + ", ..." * (len(classes) > 4)


def same_classes(data: tuple[str, ...], model: tuple[str, ...]) -> bool:
    """Equal names; or as many numbers, which are places; or ImageNet's WordNet ids for its words, in the same order."""
    if data == model:
        return True
    if set(data) == set(model):
        return False  # the same names in another order: a place is another class
    if len(data) == len(model) and data == tuple(map(str, range(len(model)))):
        return True
    from frugalvit.deploy.adopt import imagenet_names

    return len(data) == 1000 and all(name[:1] == "n" and name[1:].isdigit() for name in data) and model == imagenet_names()


def split_of(source: Path, data: Path | None, split: str, dataset: str, parts: list[type]) -> Source:
    """The split of the data set that was named, of the run's own, or of what lies at --data."""
    from frugalvit.beginning import refuse_own_data
    from frugalvit.data.dataset import whole
    from frugalvit.data.mistaken import naming_what_is_there
    from frugalvit.data.split import Picked
    from frugalvit.data.subset import FirstClasses

    named, subset = dataset_of(source, data, dataset, parts)
    if data is not None:
        refuse_own_data(named, OWN_DATA)
    with at("--dataset") if dataset else nullcontext(), naming_what_is_there(named, data, "--dataset"):
        try:
            found = whole(named, data) if split == "all" else named.open(split, data)
        except DataError as error:
            if data is None and (told := trained_on(source)):
                error.problem += f" The run was trained with --data {told}."
            raise
    picked = subset.pick(found) if isinstance(subset, FirstClasses) else found
    if split == "val" and data is not None and isinstance(found, Picked) and not learned_beside(source, picked):
        tell_held_out(source, named, data, found)
    return picked


def dataset_of(source: Path, data: Path | None, dataset: str, parts: list[type]) -> tuple[DatasetPart, Subset | None]:
    """The data set that is meant, and which part of it the run has."""
    from frugalvit.assign import parse
    from frugalvit.data.dataset import Dataset
    from frugalvit.data.recognize import recognized
    from frugalvit.recipes.find import recipe

    if dataset:
        with at("--dataset"):
            return parse(dataset, Dataset), None
    if (source / "recipe.json").exists():
        made = recipe(str(source), parts=parts).data
        return made.dataset, made.subset
    if data is None:
        raise DataError(
            "which pictures? Only a run folder, or a packed file in one, can tell. Say --data PATH, or --dataset Digits for "
            "those that come along (see `list datasets`).",
            path="--data",
        )
    return recognized(data), None


def trained_on(source: Path) -> str:
    """Where the data of a run lay, by the command that began it."""
    from frugalvit.report.files import read_json

    file = source / "environment.json"
    words = read_json(file).get("command", []) if file.exists() else []
    return next((after for word, after in itertools.pairwise(words) if word == "--data"), "")


def learned_beside(source: Path, val: Source) -> bool:
    """Whether the run has learned from the rest of the pictures of which these were held out."""
    known = fingerprint_of(source, "val")
    return known is not None and known == val.fingerprint()  # which looks at every file


def fingerprint_of(source: Path, split: str) -> str | None:
    """Of the pictures that a run had as that split."""
    from frugalvit.report.files import read_json

    file = source / "recipe.json"
    return read_json(file).get("data_fingerprint", {}).get(split) if file.exists() else None


def tell_held_out(source: Path, dataset: DatasetPart, data: Path, val: Source) -> None:
    """A word where a share of other pictures stands for all of them."""
    from frugalvit.data.dataset import whole

    try:
        everything = len(whole(dataset, data))
    except DataError:  # with splits of its own
        return
    few = f"{len(val)} of {everything} pictures, those that a training would hold out of these"
    stderr.print(f"note: {few}; `--split all` takes all of them", markup=False)
    if (source / "recipe.json").exists():
        stderr.print("note: if the run has learned from some of these pictures, they flatter it", markup=False)


def tell_learned(source: Path, data: Path | None, split: str, dataset: str, parts: list[type]) -> None:
    """A word where a run is measured on pictures that it has learned from."""
    known = fingerprint_of(source, "train") if split in ("train", "all") else None
    if known is None:
        return
    with suppress(FrugalError):  # all of a folder without splits; a recipe with parts that are not here
        if split_of(source, data, "train", dataset, parts).fingerprint() == known:
            which = "these" if split == "train" else "most of these"
            stderr.print(f"note: {source} has learned from {which} pictures, which flatters it", markup=False)
