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
from frugalvit.errors import SpecError
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
    if not seeds or len(set(seeds)) < len(seeds):
        raise SpecError(f"seeds {list(seeds)}. Give one and more, each once, as in 0,1,2.", path="--seeds")
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
    write_json(Path(out) / "seeds.json", {"seeds": list(seeds), **described(summaries(runs))})
    return runs


def at_once(jobs: Sequence[Callable[[], None]]) -> None:
    """Each job in a thread and on a CUDA stream of its own; the first that fails is raised once all have ended."""
    failed: list[BaseException] = []

    def work(job: Callable[[], None]) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                job()
        except BaseException as error:  # raised again by the thread that asked
            failed.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def summaries(runs: Sequence[Run]) -> dict[str, Summary]:
    """The mean and deviation of each accuracy and loss that the runs have."""
    names = [name for name in runs[0].summary if name.endswith(("_top1", "_top5", "_loss", "_calibration_error"))]
    values = {name: [run.summary[name] for run in runs] for name in names}
    return {name: summarize(given) for name, given in values.items() if None not in given}


def described(found: Mapping[str, Summary]) -> dict[str, Any]:
    return {name: {"mean": one.mean, "sd": one.sd, "n": one.n} for name, one in found.items()}
