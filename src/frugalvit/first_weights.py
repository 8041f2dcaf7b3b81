"""The weights that a training begins from: given ones, those of a run that is resumed or repeated, or none."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from frugalvit.cautions import other_colors
from frugalvit.deploy.packed_file import ENDING
from frugalvit.errors import NOTICING, SpecError, WeightsError
from frugalvit.nn.network import Network
from frugalvit.report.record import RunFolder
from frugalvit.training.adapt import listed, numbered
from frugalvit.training.prepare import Training
from frugalvit.training.tune import heads_of
from frugalvit.weights.fetch import fetch
from frugalvit.weights.load import load_weights

FRESH = "none"  # of --init: no weights, though the run that is repeated began from some


class Begun(NamedTuple):
    """The weights that a run began from, and whose names they have where that had to be said."""

    init: str
    origin: str


class Start(NamedTuple):
    """What a training begins from: as `--init` and `--origin` say it, and what of that its recipe.json holds."""

    init: str
    origin: str
    kept: dict[str, str]


def start_of(init: str | Begun, origin: str, out: Path, resume: bool) -> Start:
    """A run that is there already keeps what it began from. `init` is Begun where another run is repeated."""
    here = begun_from(out) if resume else None
    if here is None:
        here = init if isinstance(init, Begun) else Begun("" if init == FRESH else init, origin)
        return Start(here.init, origin or here.origin, told(here.init, origin or here.origin))
    given = "" if isinstance(init, Begun) or init == FRESH else init
    return Start(given or here.init, origin or here.origin, told(given or here.init, here.origin))


def told(init: str, origin: str) -> dict[str, str]:
    """Runs of older versions do not tell the origin."""
    return {name: text for name, text in (("init", init), ("origin", origin)) if text}


def repeated(init: str, name: str) -> str | Begun:
    """What `--init` says; without it, what the run began from whose recipe is trained again."""
    return init or begun_from(Path(name)) or ""


def begun_from(run: Path) -> Begun | None:
    """What a run (its folder, or its recipe.json) began from, so that resuming or repeating it need not name it again."""
    folder = run.parent if run.name == "recipe.json" else run
    if not (folder / "recipe.json").exists():
        return None
    saved = RunFolder(folder).recipe()
    return Begun(str(saved.get("init", "")), str(saved.get("origin", "")))


@contextmanager
def naming_repeated(init: str, repeats: bool) -> Iterator[None]:
    """Where weights are not there that nobody named but the run that is repeated: who did, and how to go without."""
    try:
        yield
    except WeightsError as error:
        if repeats:
            error.problem += f" The run that is repeated began from {init}; --init none begins without."
        raise


def initialized(training: Training, init: str, origin: str) -> list[str]:
    """Start from given weights, if there are any, and return what there is to say of them. Before a folder is made."""
    if not init:
        return []
    fetched = fetch(init)
    if not Path(fetched.path).exists():
        raise WeightsError("there is no such file or folder, and no model of that name.", path=init)
    if Path(fetched.path).suffix == ENDING:
        raise WeightsError("is a packed model, whose weights are gone. Give the run it was made of.", path=init)
    if Path(fetched.path).suffix == ".onnx":
        raise WeightsError("is a computation, whose weights have lost their names. Give the folder it was made of.", path=init)
    if not (origin or fetched.origin):
        raise SpecError(f"whose names does {fetched.path} have? Say --origin.", path="--init")
    with NOTICING, warnings.catch_warnings(record=True) as notices:
        warnings.simplefilter("always")
        load_weights(training.state.module, fetched.path, origin or fetched.origin)
    named = by_names(training.state.module, fetched.names, training.sources["train"].classes)
    if training.state.average is not None:
        training.state.average.load(training.state.module.state_dict())
    return [*other_colors(training.preprocess, fetched.released), *(str(notice.message) for notice in notices), *named]


def ids(names: tuple[str, ...]) -> bool:
    """Whether they are WordNet's, such as n01440764."""
    return all(name[:1] == "n" and name[1:].isdigit() for name in names)


def by_names(module: nn.Module, theirs: tuple[str, ...], ours: tuple[str, ...]) -> list[str]:
    """Put heads that know the data's classes in another order into the data's; a word on that, or on heads of other classes."""
    if len(theirs) != len(ours) or theirs == ours or not isinstance(module, Network) or numbered(theirs) or numbered(ours):
        return []  # where there are not as many, the heads are fresh
    if set(theirs) != set(ours) and (ids(theirs) or ids(ours)):
        return []  # ImageNet's, one by words and one by WordNet's ids, by which all released weights are sorted
    if set(theirs) != set(ours):
        other = listed(name for name in theirs if name not in ours)
        return [f"caution: the heads begin with what they learned for other classes, as many as the data's: {other}"]
    order, starts = [theirs.index(name) for name in ours], heads_of(module)
    with torch.no_grad():
        for name, one in module.named_parameters():
            if name.startswith(starts) and len(one) == len(ours):
                one.copy_(one[order])
    return ["the weights know the data's classes in another order; their heads are put into the data's"]
