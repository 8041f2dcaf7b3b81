"""What the verbs that train share about going on: flags that exclude each other, and a folder of several seeds."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from frugalvit.errors import DataError, SpecError

TORCHRUN = "TORCHELASTIC_RUN_ID"  # is set by it

Extend = Annotated[bool, typer.Option("--extend", help="With --resume: allow another length of training.")]


def refuse_exclusive(overrides: Sequence[str], seeds: str | None, resume: bool, extend: bool, log: Sequence[str]) -> None:
    """Before anything is trained: what cannot be said together."""
    refuse_several_processes()
    if extend and not resume:
        raise SpecError("only a resumed run can be extended. Say --resume too.", path="--extend")
    if seeds is None:
        return
    if any(is_seed(one) for one in overrides):
        raise SpecError("seed=... and --seeds exclude each other.", path="--seeds")
    if extend or log:
        raise SpecError("--extend and --log go with one seed. Leave them out, or train each by itself.", path="--seeds")


def refuse_several_processes() -> None:
    """Where torchrun starts a command once for each GPU: all of them would train the same, into one folder."""
    count = os.environ.get("WORLD_SIZE", "1")
    if TORCHRUN in os.environ and count.isdigit() and int(count) > 1:
        raise SpecError(
            f"it has started {count} processes, and a training takes one on one device. Start the command by itself; other "
            "GPUs are for other trainings, with --device cuda:1.",
            path="torchrun",
        )


def is_seed(override: str) -> bool:
    return override.partition("=")[0].strip() == "seed"


def refuse_recipe_of_seeds(name: str) -> None:
    """A folder of several runs where a recipe, or the folder of one, is wanted."""
    seeds = seeds_in(Path(name))
    if seeds:
        problem = f"was made by --seeds: it holds a run folder a seed ({', '.join(seeds)}), and no recipe of its own."
        raise SpecError(f"{problem} Name one of them, as in {Path(name) / f'seed-{seeds[0]}'}.", path=name)
    if "/" in name and not (Path(name) / "recipe.json").exists():
        from frugalvit.weights.own import runs_in

        if runs := runs_in(Path(name)):
            raise SpecError(f"holds several runs: {', '.join(runs)}. Name one of them: {Path(name) / runs[-1]}.", path=name)


def refuse_recipe_of_own_parts(name: str) -> None:
    """A run that trained a module or an objective of the user's, which a command cannot be given."""
    from frugalvit.report.record import RunFolder

    held = RunFolder(Path(name)).recipe() if (Path(name) / "recipe.json").exists() else {}
    described = (Path(name) / "config.json").exists()  # a model of ours that was built before
    for what, word in (("ready_model", "model"), ("ready_objective", "objective")):
        if what in held and not (described and word == "model"):
            problem = f"it trained the {word} {held[what]}, a ready object that its recipe.json does not describe."
            cure = f"Train again in Python: frugalvit.train(frugalvit.recipe({name!r}), {word}=..., out=...)."
            raise SpecError(f"{problem} {cure}", path=name)


def refuse_folder_of_seeds(context: typer.Context, folder: Path) -> None:
    """Where one run was asked for, and several lie in its folder: what they are, and the command that goes on with them."""
    seeds = seeds_in(folder)
    if context.params["seeds"] is not None or not seeds:
        return
    problem = f"was made by --seeds: it holds a run folder a seed ({', '.join(seeds)}), and no single run to --resume."
    cure, changes = going_on(context, folder, seeds)
    raise DataError(f"{problem} Use another --out, or go on with {cure}: {command(context, changes)}", path=str(folder))


def going_on(context: typer.Context, folder: Path, seeds: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """With what, and the words of the command that change for it."""
    overrides = [one for one in context.params["overrides"] or [] if not is_seed(one)]
    changes: dict[str, Any] = {"overrides": overrides, "resume": True, "seeds": ",".join(seeds)}
    if own := seeds_in(Path(context.params.get("name", ""))):
        changes["name"] = str(Path(context.params["name"]) / f"seed-{own[0]}")
    if not context.params["extend"] and not context.params.get("log"):
        return "all", changes
    if folder != context.params["out"]:  # of `distill`, whose students have no command of their own
        return "all, without --extend and --log, which go with one seed", changes | {"extend": False, "log": None}
    alone = {"overrides": [*overrides, f"seed={seeds[0]}"], "seeds": None, "out": folder / f"seed-{seeds[0]}"}
    return "each by itself, as --extend and --log need it", changes | alone


def seeds_in(folder: Path) -> list[str]:
    """The seeds whose runs lie in a folder that is no run itself, in order."""
    if (folder / "recipe.json").exists():
        return []
    names = [one.parent.name.removeprefix("seed-") for one in folder.glob("seed-*/recipe.json")]
    return sorted(filter(re.compile(r"\d+").fullmatch, names), key=int)


def command(context: typer.Context, changes: Mapping[str, Any]) -> str:
    """The command that was given, with other values for some of its words; what is as by default is left out."""
    arguments, options = [], []
    for one in context.command.params:
        value = changes.get(one.name or "", context.params.get(one.name or ""))
        values = value if isinstance(value, list | tuple) else [value]
        if one.param_type_name == "argument":
            arguments += [str(word) for word in values if word is not None]
        elif value is True:
            options.append(one.opts[0])
        elif value is not None and value is not False and value != one.default:
            options += [word for inner in values for word in (one.opts[0], str(inner))]
    return shlex.join(["frugalvit", str(context.info_name), *arguments, *options])
