"""The whole advice: look, measure, choose, and say why."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from frugalvit.advise import notes, rules
from frugalvit.advise.choose import Decision, Option, choose, faster, ladders_for, option, others
from frugalvit.advise.facts import Facts, Machine, Speed
from frugalvit.advise.look import dataset_at, look
from frugalvit.advise.plan import Candidate, Plan
from frugalvit.advise.rules import Choice, Start
from frugalvit.advise.speed import estimated, machine, measured, read_rate
from frugalvit.data.augment import Augment
from frugalvit.data.source import Source
from frugalvit.errors import SpecError, at
from frugalvit.nn.shape import Image
from frugalvit.recipes.find import recipe
from frugalvit.training.recipe import Recipe
from frugalvit.weights.published import published

SECONDS = 20.0  # of measuring, after which speeds are estimated from those that were measured


@dataclass(frozen=True)
class Alternative:
    """A runner-up, and why it was not chosen."""

    option: Option
    why: str


@dataclass(frozen=True)
class Advice:
    """A recipe for a data set on a machine, the reasons, the costs, and what else there would be."""

    facts: Facts
    machine: Machine
    device: str  # as it was asked for
    hours: float | None
    decision: Decision
    choices: tuple[Choice, ...]
    alternatives: tuple[Alternative, ...]
    notes: tuple[str, ...]

    @property
    def recipe(self) -> Recipe:
        """The recipe that was chosen, ready to be written or trained."""
        return recipe_of(self.decision.option.plan)


def advise(
    data: Path | None,
    *,
    dataset: str = "",
    hours: float | None = None,
    init: str = "auto",
    device: str = "auto",
    tell: Callable[[str], None] = lambda text: None,
) -> Advice:
    """What to train on the pictures at `data`, or on a data set by name, within `hours` on `device`.

    `init` is "auto" where released weights may be used, "none" where they may not, or the name of some. `tell` hears what is
    being done.
    """
    refuse_impossible_hours(hours)
    init = init if init in ("auto", "none") else released_name(init)
    here = machine(device)
    found = dataset_at(data, dataset)
    tell(f"looking at {data or dataset}")
    train = found.open("train", data)
    facts = look(found, data, train)
    prices = Clocked(facts, train, device, tell)
    way = rules.start_of(facts, init)
    decision = choose(ladders_for(facts, way, init, here), prices, here, hours)
    chosen = decision.option.plan.candidate
    runners_up = others(facts, "transfer" if chosen.init else way, chosen, here)
    runners_up += faster(decision, prices.in_time, here)
    alternatives = [Alternative(option(one, prices.in_time, here), why) for one, why in runners_up]
    choices = tuple(reasons(facts, way, init, decision, here, hours))
    told = (*notes.of_data(facts), *notes.all_pictures(chosen.recipe, chosen.pictures, facts))
    told += notes.too_long(decision.option.cost.hours, hours)
    return Advice(facts, here, device, hours, decision, choices, tuple(alternatives), told)


def refuse_impossible_hours(hours: float | None) -> None:
    if hours is not None and not (0 < hours < math.inf):
        raise SpecError(f"{hours:g} hours. Use a number above 0, or leave it out.", path="--hours")


def released_name(init: str) -> str:
    """In full: model.tag."""
    if Path(init).exists() or "/" in init:
        raise SpecError(
            "a file does not say which model it is for. Use auto, none, or a released name (`list weights`).",
            path=f"--init {init}",
        )
    with at("--init"):
        return published(init).name


def recipe_of(plan: Plan) -> Recipe:
    return recipe(plan.candidate.recipe, *plan.overrides)


class Clocked:
    """The speed of each candidate, measured when it is first asked for."""

    def __init__(self, facts: Facts, source: Source, device: str, tell: Callable[[str], None]):
        self.facts = facts
        self.source = source
        self.device = device
        self.tell = tell
        self.spent = 0.0
        self.known: dict[tuple[str, ...], Speed] = {}
        self.guessed: dict[tuple[str, ...], Speed] = {}
        self.read: dict[tuple[Augment, Image], float] = {}
        self.last = ""  # the model that was measured last

    def measured(self, candidate: Candidate) -> Speed:
        name = name_of(candidate)
        if name not in self.known:
            self.tell(f"measuring {candidate.model} ({candidate.recipe})")
            began = time.perf_counter()
            made = self.recipe(candidate)
            self.known[name] = measured(made, self.facts, self.reads(made), self.device)
            self.spent += time.perf_counter() - began
            self.last = candidate.model
        return self.known[name]

    def rough(self, candidate: Candidate) -> Speed:
        """By the multiply-accumulates of what was measured last."""
        name = name_of(candidate)
        if name in self.known or not self.known:
            return self.measured(candidate)
        if name not in self.guessed:
            like = next(reversed(self.known.values()))
            made = self.recipe(candidate)
            self.guessed[name] = estimated(made, self.facts, self.reads(made), self.device, like, self.last)
        return self.guessed[name]

    def in_time(self, candidate: Candidate) -> Speed:
        """Measured, as long as there is time."""
        return self.measured(candidate) if self.spent < SECONDS else self.rough(candidate)

    def reads(self, made: Recipe) -> float:
        """Pictures a second that one process reads: for each augmentation and size once."""
        kind = made.data.augment, made.model.image
        if kind not in self.read:
            self.read[kind] = read_rate(made, self.source)
        return self.read[kind]

    def recipe(self, candidate: Candidate) -> Recipe:
        made = recipe(candidate.recipe, *candidate.overrides)
        return replace(made, model=replace(made.model, classes=self.facts.classes))


def name_of(candidate: Candidate) -> tuple[str, ...]:
    return candidate.recipe, *candidate.settings


def reasons(facts: Facts, way: Start, init: str, decision: Decision, here: Machine, hours: float | None) -> list[Choice]:
    """Every choice of the plan, with its rule."""
    plan = decision.option.plan
    candidate = plan.candidate
    released = way == "transfer" or bool(candidate.init)
    found = [rules.start(facts, init)]
    if released and way != "transfer":
        why = "too few hours to train from scratch; a released model, which has learned before, is done in a fraction of them"
        found = [Choice("start", "released weights", why, f"{rules.AUGREG}, Table 3")]
    if released and init == "auto":
        found.append(rules.weights())
    found.append(model(decision, hours))
    found += rules_of(facts, "transfer" if released else way, plan)
    if rules.balances(facts):
        found.append(rules.order(facts))
    if candidate.filled < candidate.batch:
        found.append(rules.smaller_batch(plan))
    if plan.accumulate > 1:
        found.append(rules.batch(plan, here))
    return [shorter(one, plan) for one in found]


def model(decision: Decision, hours: float | None) -> Choice:
    """The place on the ladder, and why."""
    plan, ladder = decision.option.plan, decision.ladder
    lead = "the cheapest" if plan.shortened else "the best that fits the hours"
    lead = ladder.lead if hours is None or len(ladder.candidates) == 1 else lead
    return replace(ladder.model, chosen=plan.candidate.model, why=f"{lead}; {ladder.model.why}")


def rules_of(facts: Facts, way: Start, plan: Plan) -> list[Choice]:
    """The rules that belong to a way to begin."""
    if way == "transfer":
        return [
            rules.transfer_image(facts),
            rules.transfer_recipe(),
            rules.transfer_augment(),
            rules.transfer_length(facts),
        ]
    if way == "small":
        name, side = plan.candidate.recipe, recipe_of(plan).model.image.height
        colors = [rules.best_colors()] if name == "small.best_cifar10" and facts.known != "cifar10" else []
        return [rules.small_recipe(facts, side), *colors, rules.small_length(name)]
    if way == "local":
        return [rules.local_recipe(facts), rules.local_length(facts)]
    if way == "imagenet":
        return [rules.imagenet_recipe(), rules.imagenet_length()]
    if way == "many":
        setting = rules.augreg_setting(facts.pictures, plan.candidate.length.usual, plan.candidate.model)
        return [rules.many_recipe(facts, setting), rules.many_length()]
    return [rules.digits_recipe()]


def shorter(choice: Choice, plan: Plan) -> Choice:
    """The length as it was cut for the hours."""
    if choice.about != "length" or not plan.shortened:
        return choice
    length = plan.candidate.length
    return replace(
        choice, chosen=f"{plan.count:,} {length.keyword} of {length.usual:,}", why=f"cut to the hours; usually {choice.why}"
    )
