"""The same training with several seeds: on CUDA at once, each on a stream of its own and exactly as it would train alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from frugalvit.beginning import opened
from frugalvit.data.source import Source
from frugalvit.errors import DataError, SpecError
from frugalvit.report.files import write_json
from frugalvit.report.progress import Display, Silent
from frugalvit.report.statistics import Summary, summarize
from frugalvit.run import Run, train
from frugalvit.training.devices import place_for
from frugalvit.training.recipe import Recipe


def train_seeds(
    recipe: Recipe,
    seeds: Sequence[int],
    *,
    out: str | Path,
    data: str | Path | Mapping[str, Source] | None = None,
    resume: bool = False,
    device: str = "auto",
    workers: int = 0,
    init: str = "",
    origin: str = "",
    display: Display | None = None,
) -> list[Run]:
    """One run a seed, in `out/seed-0`, `out/seed-1`, ...; `out/seeds.json` gets the mean, deviation and n of every result.

    A small model leaves most of a GPU idle, so on CUDA all train at the same time; elsewhere one after the other.
    """
    refuse_seeds(seeds)
    if not isinstance(recipe, Recipe):
        raise SpecError(f"a Recipe is needed, not {type(recipe).__name__}. Use frugalvit.recipe('vit.digits').", path="recipe")
    refuse_taken(Path(out), seeds, resume)
    display = display or Silent()
    sources = opened(recipe, data)
    cuda = place_for(device, recipe.precision).device.type == "cuda"
    found: dict[int, Run] = {}

    def one(seed: int, watched: Display) -> None:
        found[seed] = train(
            replace(recipe, seed=seed),
            out=Path(out) / f"seed-{seed}",
            data=sources,
            resume=resume,
            device=device,
            workers=workers,
            init=init,
            origin=origin,
            display=watched,
        )

    if cuda and len(seeds) > 1:
        at_once([partial(one, seed, display if seed == seeds[0] else Silent()) for seed in seeds])
    else:
        for seed in seeds:
            display.note(f"seed {seed}")
            one(seed, display)
    runs = [found[seed] for seed in seeds]
    write_json(Path(out) / "seeds.json", {"seeds": list(seeds), **described(runs)})
    return runs


def refuse_seeds(seeds: Sequence[int]) -> None:
    whole = isinstance(seeds, Sequence) and not isinstance(seeds, str) and all(type(one) is int for one in seeds)
    if not whole or not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise SpecError(f"{seeds!r}. Give whole numbers from 0 on, each once, as in 0,1,2.", path="seeds")


def refuse_taken(out: Path, seeds: Sequence[int], resume: bool) -> None:
    """Before the first seed trains: a folder that cannot be written would be noticed when others are done."""
    if (out / "recipe.json").exists():
        raise DataError("holds a run of one seed. Seeds need a folder of their own: use another --out.", path=str(out))
    taken = [str(seed) for seed in seeds if (out / f"seed-{seed}" / "recipe.json").exists()]
    if taken and not resume:
        problem = f"holds runs of seed {', '.join(taken)} already. Use --resume to continue them, or another --out."
        raise DataError(problem, path=str(out))


def at_once(jobs: Sequence[Callable[[], None]]) -> None:
    """Each job in a thread and on a CUDA stream of its own; the first that fails is raised once all have ended."""
    failed: list[BaseException] = []

    def work(job: Callable[[], None]) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                job()
        except BaseException as error:  # raised again by the thread that asked
            failed.append(error)

    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]  # Ctrl-C ends all of them
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


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
