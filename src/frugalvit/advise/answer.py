"""An advice as text for a terminal, and as data for JSON."""

from __future__ import annotations

import dataclasses
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frugalvit.advise.advise import Advice
from frugalvit.advise.choose import Option, named, time_of
from frugalvit.advise.facts import Facts, Machine, Speed
from frugalvit.advise.notes import counted
from frugalvit.advise.plan import fits

WIDTH = 118


def command(advice: Advice, option: Option, file: Path | None = None) -> str:
    """The command that trains an option; or the recipe that was written to `file`."""
    plan, facts = option.plan, advice.facts
    words = ["frugalvit", "train", *((str(file),) if file else (plan.candidate.recipe, *plan.overrides))]
    words += ["--data", facts.place] if facts.place else []
    words += ["--init", plan.candidate.init] if plan.candidate.init else []
    words += ["--device", advice.device] if advice.device != "auto" else []
    words += ["--workers", str(option.cost.workers)] if option.cost.workers else []
    name = Path(facts.place).resolve().stem if facts.place else facts.dataset.lower()
    return shlex.join([*words, "--out", f"runs/{name or 'advised'}"])


def lines(advice: Advice, width: int = WIDTH, file: Path | None = None) -> Iterator[str]:
    """The answer, section by section."""
    option = advice.decision.option
    yield from data_lines(advice.facts)
    yield machine_line(advice.machine)
    yield ""
    yield heading(advice)
    yield f"  {command(advice, option, file)}"
    yield ""
    yield "Why"
    for choice in advice.choices:
        yield from wrapped(f"{choice.chosen}: {choice.why} [{choice.source}]", width, f"  {choice.about:9s}")
    for text in advice.decision.given_up:
        yield from wrapped(f"{text}.", width, "  given up ")
    yield ""
    yield "Expected, on this machine"
    yield from (part for text in cost_lines(option) for part in wrapped(text, width, "  "))
    if advice.alternatives:
        yield ""
        yield "Instead"
    for other in advice.alternatives:
        yield f"  {command(advice, other.option)}"
        told = "" if other.option.speed.how.startswith("measured") else ", estimated"
        over = beyond(other.option, advice.hours)
        yield from wrapped(f"{time_of(other.option.cost.hours)}{told}{over}; {other.why}", width, "    ")
    if advice.notes:
        yield ""
        yield "Note"
    for note in advice.notes:
        yield from wrapped(note, width, "  ")


def heading(advice: Advice) -> str:
    if advice.hours is None:
        return "Recommended"
    if advice.decision.fits:
        return f"Recommended, within {time_of(advice.hours)}"
    least = time_of(advice.decision.option.cost.hours)
    return f"Nothing fits {time_of(advice.hours)}. The smallest that is worth it takes {least}"


def beyond(option: Option, hours: float | None) -> str:
    """A word where an option takes more than the hours, or too much of them."""
    if hours is None or fits(option.cost, hours):
        return ""
    if option.cost.hours > hours:
        return f", which is over the {time_of(hours)} that you have"
    return f", which leaves too little of your {time_of(hours)} for validation and checkpoints"


def data_lines(facts: Facts) -> Iterator[str]:
    known = f", which looks like {facts.known}" if facts.known and facts.place else ""
    yield f"{facts.place or facts.dataset}: read as {facts.dataset}{known}"
    val = f", {facts.held:,} for validation" if facts.held else ""
    spread = counted(facts.most) if facts.least == facts.most else f"{facts.least:,} to {counted(facts.most)}"
    yield f"  {facts.pictures:,} pictures to train on{val}; {facts.classes:,} classes, {spread} in each"
    size = (
        f"{facts.side} pixels on the shorter side"
        if facts.sizes == 1
        else (f"{facts.sizes} sizes, shorter sides from {facts.shortest} pixels, median {facts.side}")
    )
    looked = "all were" if facts.looked == facts.pictures else f"{facts.looked:,} were"
    yield f"  {size}; {facts.gray:,} gray, {len(facts.unreadable):,} unreadable ({looked} looked at)"


def machine_line(machine: Machine) -> str:
    threads = f", {machine.threads} thread{'s' * (machine.threads > 1)}" if machine.is_cpu else ""
    memory = f", {machine.memory / 2**30:.0f} GiB" if machine.memory else ""
    return f"{machine.name} ({machine.device}), {machine.precision}{threads}{memory}"


def cost_lines(option: Option) -> Iterator[str]:
    plan, speed, cost = option.plan, option.speed, option.cost
    unit = plan.candidate.length.keyword
    length = "" if unit == "steps" else f"{plan.count:,} {unit}, "
    yield f"{length}{cost.steps:,} steps of {plan.batch * plan.accumulate:,}: {cost.pictures:,} pictures seen"
    yield (
        f"{time_of(cost.hours)} at {cost.images_per_second:,.1f} images/s: training {speed.images_per_second:,.1f} "
        f"({speed.how}), {reading(speed)}; validation and checkpoints come on top"
    )
    if cost.slower == "reading":
        yield "reading is slower than training here: more processes, or smaller files, would shorten it"
    yield (
        f"about {bytes_of(cost.memory)}; {speed.parameters / 1e6:.1f} M parameters, {speed.macs / 1e9:.3g} G "
        f"multiply-accumulates a picture, {cost.macs:.2g} in all (three times that and the pictures seen)"
    )
    if plan.candidate.top1 and plan.candidate.recipe != "vit.digits":
        usual = " at its usual length" if plan.shortened else ""
        known = f"{named(plan.candidate)}{usual}"
        told = f"measured by us: {known}, {plan.candidate.ours}" if plan.candidate.ours else f"published: {known}"
        yield f"{told}; what it gives on your pictures, only training tells"


def bytes_of(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def reading(speed: Speed) -> str:
    kept = "pictures kept on the device, their augmentation there not timed"
    return kept if speed.kept else f"reading {speed.reads_per_second:,.1f} a process"


def wrapped(text: str, width: int, start: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False, break_on_hyphens=False
    )


def plain(advice: Advice) -> dict[str, Any]:
    """For JSON."""
    return {
        "data": dataclasses.asdict(advice.facts),
        "machine": dataclasses.asdict(advice.machine),
        "hours": advice.hours,
        "fits": advice.decision.fits,
        "recommended": plain_option(advice, advice.decision.option),
        "choices": [dataclasses.asdict(choice) for choice in advice.choices],
        "given_up": list(advice.decision.given_up),
        "alternatives": [
            {**plain_option(advice, one.option), "fits": fits(one.option.cost, advice.hours), "why": one.why}
            for one in advice.alternatives
        ],
        "notes": list(advice.notes),
    }


def plain_option(advice: Advice, option: Option) -> dict[str, Any]:
    plan = option.plan
    return {
        "command": command(advice, option),
        "recipe": plan.candidate.recipe,
        "overrides": list(plan.overrides),
        "init": plan.candidate.init,
        "model": plan.candidate.model,
        "speed": dataclasses.asdict(option.speed),
        "expected": dataclasses.asdict(option.cost),
    }
