"""The same training with several seeds: on CUDA at once, each on a stream of its own and exactly as it would train alone."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from frugalvit.beginning import opened
from frugalvit.data.source import Source
from frugalvit.errors import DataError, FrugalError, SpecError
from frugalvit.first_weights import FRESH, Begun
from frugalvit.report.files import ABSENT, differences, write_json
from frugalvit.report.progress import Display, Silent
from frugalvit.report.record import AnotherLength, RunFolder
from frugalvit.report.statistics import Summary, summarize
from frugalvit.run import Run, train
from frugalvit.spec import encode, shown
from frugalvit.stopping import interrupt, together
from frugalvit.teaching import Given
from frugalvit.training.devices import place_for
from frugalvit.training.recipe import Recipe

AT_ONCE = "cuda"  # where seeds train at the same time
SOON = 5.0  # seconds that an interrupted seed has to end; one that computes while the program ends would abort it


def train_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    out: str | Path,
    data: str | Path | Mapping[str, Source] | None = None,
    teacher: Given | None = None,
    resume: bool = False,
    device: str = "auto",
    workers: int = 0,
    init: str | Begun = "",
    origin: str = "",
    display: Display | None = None,
) -> list[Run]:
    """One run a seed, in `out/seed-0`, `out/seed-1`, ...; `out/seeds.json` gets the mean, deviation and n of every result.

    A small model leaves most of a GPU idle, so on CUDA all train at the same time; elsewhere one after the other. Where one of
    those at the same time fails, the others train to their end before it is raised. `teacher` is one of one's own, as in
    `train`; a module is copied for each seed.
    """
    refuse_seeds(seeds)
    if not isinstance(recipe, Recipe):
        raise SpecError(f"a Recipe is needed, not {type(recipe).__name__}. Use frugalvit.recipe('vit.digits').", path="recipe")
    refuse_taken(Path(out), seeds, resume)
    display = display or Silent()
    sources = opened(recipe, data)
    refuse_another_training(Path(out), recipe, sources, init, seeds)
    place = place_for(device, recipe.precision)
    several = len(seeds) > 1 and place.device.type == AT_ONCE
    found: dict[int, Run] = {}

    def one(seed: int, watched: Display, told: Display) -> None:
        with naming(seed, seeds, Path(out), told):
            found[seed] = train(
                replace(recipe, seed=seed),
                out=Path(out) / f"seed-{seed}",
                data=sources,
                teacher=teacher,
                resume=resume,
                device=device,
                workers=workers,
                init=init,
                origin=origin,
                display=watched,
            )

    with together():
        if several:
            jobs = [partial(one, seed, display if seed == seeds[0] else Silent(), display) for seed in seeds]
            at_once(jobs, place.device)
        else:
            for seed in seeds:
                display.note(f"seed {seed}")
                one(seed, display, Silent())
    every = earlier(Path(out), recipe, seeds) | {seed: found[seed] for seed in seeds}
    write_json(Path(out) / "seeds.json", {"seeds": [*every], **described([*every.values()])})
    return [found[seed] for seed in seeds]


def earlier(out: Path, recipe: Recipe, seeds: Sequence[int]) -> dict[int, Run]:
    """The seeds in a folder that earlier commands have trained to the same length."""
    length, runs = encode(recipe)["duration"], {}
    for seed in (one for one in seeds_begun(out) if one not in seeds):
        folder = RunFolder(out / f"seed-{seed}")
        if (results := folder.results()) and folder.recipe()["duration"] == length:
            runs[seed] = Run(folder.path, results, None)
    return runs


def refuse_seeds(seeds: Sequence[int]) -> None:
    whole = isinstance(seeds, Sequence) and not isinstance(seeds, str) and all(type(one) is int for one in seeds)
    if not whole or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise SpecError(f"{seeds!r}. Give whole numbers from 0 on, each once, as in 0,1,2.", path="seeds")


def refuse_taken(out: Path, seeds: Sequence[int], resume: bool) -> None:
    """Before the first seed trains: a folder that cannot be written would be noticed when others are done."""
    if (out / "recipe.json").exists():
        raise DataError("holds a run of one seed. Seeds need a folder of their own: use another --out.", path=str(out))
    taken = seeds_begun(out)
    if taken and not resume:
        problem = f"holds runs of seed {', '.join(map(str, taken))} already."
        raise DataError(f"{problem} Use --resume to continue them or to add others, or another --out.", path=str(out))


def begun(out: Path, seed: int) -> bool:
    return (out / f"seed-{seed}" / "recipe.json").exists()


def seeds_begun(out: Path) -> list[int]:
    """Those whose runs lie in the folder, in order."""
    numbers = (one.parent.name.removeprefix("seed-") for one in out.glob("seed-*/recipe.json"))
    return sorted(int(number) for number in numbers if number.isdigit())


def refuse_another_training(
    out: Path, recipe: Recipe, sources: Mapping[str, Source], init: str | Begun, seeds: Sequence[int]
) -> None:
    """Seeds that are added to those of another training: their mean would be of neither. Each may be extended by itself."""
    begun_from = init.init if isinstance(init, Begun) else "" if init == FRESH else init
    asked = encode(recipe) | {"data_fingerprint": {name: source.fingerprint() for name, source in sources.items()}}
    asked |= {"init": begun_from}
    for seed in (one for one in seeds_begun(out) if one not in seeds):
        saved = {"init": ""} | RunFolder(out / f"seed-{seed}").recipe()
        for where, old, new in differences(saved, asked):
            filled = (new is None and where.endswith("classes")) or (where == "path" and new == "auto")
            if not (filled or where == "seed" or where.startswith("duration") or ABSENT in (old, new)):
                problem = f"holds seed {seed} of another training: {where} is {shown(old)} there, and {shown(new)} here."
                raise DataError(f"{problem} Use another --out.", path=str(out))


@contextmanager
def naming(seed: int, seeds: Sequence[int], out: Path, told: Display) -> Iterator[None]:
    """Let an error say which seed failed and how to leave it out, and tell it now to whoever watches the others go on."""
    try:
        yield
    except SpecError:  # of the recipe, which all seeds share
        raise
    except AnotherLength as error:  # of the recipe, too
        folder = shlex.quote(error.path)
        cure = f"extend each by itself: frugalvit train {folder} 'duration=...' --out {folder} --resume --extend"
        error.problem = f"{error.found}. Resume with the length it has, use another --out, or {cure}"
        raise
    except Exception as error:
        others, cure = ",".join(str(one) for one in seeds if one != seed), ""
        if others and begun(out, seed):
            told.note(f"seed {seed} failed, and the others go on: {type(error).__name__}: {error}")
            cure = f" Without this seed: --seeds {others} --resume."
        if isinstance(error, FrugalError):
            error.path = ": ".join(filter(None, (f"seed {seed}", error.path)))
            error.problem += cure
        else:
            error.add_note(f"This was seed {seed}.{cure}")
        raise


def at_once(jobs: Sequence[Callable[[], None]], device: torch.device) -> None:
    """Each job in a thread and, on CUDA, on a stream of its own.

    Once all have ended, the first that failed is raised; an interrupt only where nothing else went wrong.
    """
    failed: list[BaseException] = []
    ends = [threading.Event() for _ in jobs]  # a `join` that Ctrl-C interrupts takes its thread for ended, until Python 3.13

    def work(job: Callable[[], None], end: threading.Event) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream(device) if device.type == "cuda" else None):
                job()
        except BaseException as error:  # raised again by the thread that asked
            failed.append(error)
        finally:
            end.set()

    given = zip(jobs, ends, strict=True)
    threads = [threading.Thread(target=copy_context().run, args=(work, *one), daemon=True) for one in given]
    try:
        for thread in threads:
            thread.start()
        for end in ends:
            end.wait()
    except KeyboardInterrupt:
        interrupt(threads)
        for end in ends:
            end.wait(SOON)
        raise
    if failed:
        raise next((one for one in failed if isinstance(one, Exception)), failed[0])


def summaries(runs: Sequence[Run]) -> dict[str, Summary]:
    """The mean and deviation of each accuracy and loss that the runs have."""
    ends = ("_top1", "_top5", "_loss", "_calibration_error")
    names = [name for name in runs[0].summary if name.endswith(ends) or "_top1_" in name]
    values = {name: [run.summary[name] for run in runs] for name in names}
    return {name: summarize(given) for name, given in values.items() if None not in given}


def described(runs: Sequence[Run]) -> dict[str, Any]:
    """The same with every seed's value."""
    return {
        name: {"mean": one.mean, "sd": one.sd, "n": one.n, "values": [run.summary[name] for run in runs]}
        for name, one in summaries(runs).items()
    }
