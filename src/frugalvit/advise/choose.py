"""From ladders, speeds and hours to one plan, and the runners-up. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from frugalvit.advise import ladders, rules
from frugalvit.advise.facts import Facts, Machine, Speed
from frugalvit.advise.ladders import Ladder
from frugalvit.advise.plan import Candidate, Expected, Length, Plan, expected, fits, longest, planned
from frugalvit.advise.rules import Start

HOPELESS = 1.5  # times the hours: what a rough price says is that far off need not be measured


class Prices(Protocol):
    """What candidates cost on a machine."""

    def measured(self, candidate: Candidate) -> Speed: ...

    def rough(self, candidate: Candidate) -> Speed:
        """Quickly; as measured, where it was."""
        ...


@dataclass(frozen=True)
class Option:
    """A plan, and what it costs here."""

    plan: Plan
    speed: Speed
    cost: Expected


@dataclass(frozen=True)
class Decision:
    """The option that was chosen, from which ladder, whether it fits the hours, and what was given up for them."""

    option: Option
    ladder: Ladder
    fits: bool
    given_up: tuple[str, ...] = ()


def option(candidate: Candidate, price: Callable[[Candidate], Speed], machine: Machine) -> Option:
    """A candidate at its usual length."""
    speed = price(candidate)
    plan = planned(candidate, speed, machine)
    return Option(plan, speed, expected(plan, speed, machine))


def choose(steps: Sequence[Ladder], prices: Prices, machine: Machine, hours: float | None) -> Decision:
    """Without hours the first ladder's usual candidate. With hours the best that fits at its usual length.

    Where the usual one fits, better ones are tried, the best first; else those below it, then the next ladder. Where none
    fits, the cheapest of all is shortened. What is chosen was measured.
    """
    first = steps[0]
    usual = option(first.middle, prices.measured, machine)
    if hours is None:
        return Decision(usual, first, True)
    if fits(usual.cost, hours):
        better = (tried(row, prices, machine, hours) for row in first.candidates[: first.usual])
        return Decision(next((one for one in better if fits(one.cost, hours)), usual), first, True)
    below = [(row, first) for row in first.candidates[first.usual + 1 :]]
    below += [(row, ladder) for ladder in steps[1:] for row in ladder.candidates]
    seen = [(usual, first)]
    for row, ladder in below:
        found = tried(row, prices, machine, hours)
        if fits(found.cost, hours):
            return Decision(found, ladder, True, (given_up(usual, found),))
        seen.append((found, ladder))
    rough, ladder = min(seen, key=lambda pair: pair[0].cost.hours)
    cheapest = option(rough.plan.candidate, prices.measured, machine)
    if fits(cheapest.cost, hours):  # what was too slow by a rough price need not be
        return Decision(cheapest, ladder, True, (given_up(usual, cheapest),))
    return shortened(usual, cheapest, ladder, machine, hours)


def tried(candidate: Candidate, prices: Prices, machine: Machine, hours: float) -> Option:
    """A candidate as measured, unless it is hopeless."""
    rough = option(candidate, prices.rough, machine)
    return rough if rough.cost.hours > HOPELESS * hours else option(candidate, prices.measured, machine)


def given_up(usual: Option, chosen: Option) -> str:
    one, other = usual.plan.candidate, chosen.plan.candidate
    return f"{named(one)} would take {time_of(usual.cost.hours)}; {named(other)} fits"


def named(candidate: Candidate) -> str:
    return f"{candidate.model} ({candidate.top1:g} on {candidate.on})" if candidate.top1 else candidate.model


def shortened(usual: Option, cheapest: Option, ladder: Ladder, machine: Machine, hours: float) -> Decision:
    """The cheapest option, cut to the hours; where its least length is still too long, that, and the word that it is."""
    plan = longest(cheapest.plan, cheapest.cost, hours)
    found = Option(plan, cheapest.speed, expected(plan, cheapest.speed, machine))
    unit = plan.candidate.length.keyword
    other = usual.plan.candidate != plan.candidate
    lost = [given_up(usual, found).removesuffix(" fits") + " is the cheapest"] if other else []
    lost.append(f"{cheapest.plan.count:,} {unit} would take {time_of(cheapest.cost.hours)}; cut to {plan.count:,}")
    return Decision(found, ladder, fits(found.cost, hours), tuple(lost))


def time_of(hours: float) -> str:
    """Hours in the unit that reads best."""
    if hours < 1:
        return f"{hours * 60:.0f} minutes" if hours * 60 >= 1.5 else f"{hours * 3600:.0f} seconds"
    return f"{hours:,.1f} hours" if hours < 100 else f"{hours:,.0f} hours ({hours / 24:,.0f} days)"


# ------------------------------------------------------------------------------------------------ ladders and runners-up


def ladders_for(facts: Facts, way: Start, init: str, here: Machine) -> tuple[Ladder, ...]:
    """The ladders of a way to begin, the preferred one first."""
    if way == "digits":
        return (ladders.digits(facts),)
    if way == "transfer":
        return (ladders.transfer(facts, init),)
    if way == "small":
        return (ladders.small(facts, here),)
    if way == "local":
        return (ladders.local(facts),)
    scratch = ladders.imagenet(facts) if way == "imagenet" else ladders.many(facts)
    return (scratch,) if init == "none" else (without_least(scratch), ladders.transfer(facts, init))


def without_least(ladder: Ladder) -> Ladder:
    """Released weights come before the smallest models from scratch: S/32 gives 73.47 for a fraction of DeiT-Ti's hours."""
    return replace(ladder, candidates=ladder.candidates[:2])


def others(facts: Facts, way: Start, chosen: Candidate, here: Machine) -> list[tuple[Candidate, str]]:
    """Runners-up of other kinds than the one that was chosen, and why they were not."""
    if way == "digits":
        swin = Candidate("digits.swin", ("add=spt+lsa",), "", facts.pictures, Length("epochs", 30, 10), 64, "SL-Swin", 0, "")
        return [(swin, "99.4 of the 500 held-out digits in one run, by settings that were chosen on these very digits")]
    transfer = ladders.transfer(facts, "auto")
    if way == "transfer":
        found = larger(facts, chosen) if facts.side > rules.SMALL_SIDE else []
        (scratch,) = ladders_for(facts, rules.start_of(facts, "none"), "none", here)
        why = "only where released weights are not allowed; worse by all that is known (start)"
        why = why if facts.pictures < rules.ENOUGH else "from these pictures alone, given more hours"
        return [*found, (scratch.middle, why)]
    if way in ("small", "local"):
        (ladder,) = ladders_for(facts, way, "none", here)
        better = [row for row in ladder.candidates if row.top1 > chosen.top1][:1]
        found = [(row, f"for more compute, {against(row, chosen)}") for row in better]
        return [*found, (transfer.middle, released_instead(facts, transfer.middle, chosen))]
    released = ladders.at_384(facts, "vit_small_patch16_224")
    why = released_instead(facts, released, chosen)
    if way == "many":
        return [(released, why)]
    preset = ladders.augreg(facts, "vit_small_patch16_224", "S/16", 79.0, Length("epochs", 300, 30))
    return [
        (released, why),
        (ladders.local(facts).middle, f"81.3 against DeiT-S's 79.8, for more compute ({rules.CONVIT}, Table 1)"),
        (preset, f"the preset for its size; 79.00 against DeiT-S's 79.8 ({rules.AUGREG}, Table 3 and Figure 4)"),
    ]


def released_instead(facts: Facts, released: Candidate, chosen: Candidate) -> str:
    """When released weights are the better answer than the one from scratch that was chosen, as far as that is known."""
    if facts.pictures < rules.ENOUGH:
        return f"better, where released weights are allowed ({rules.AUGREG}, §4.2)"
    if facts.known != "imagenet":
        return f"from released weights; {rules.UNTRIED} ({rules.AUGREG}, Table 4), so only trying tells"
    better = f"better where accuracy alone counts, {against(released, chosen)} ({rules.AUGREG}, Table 3)"
    return f"{better}; as for its weights, {rules.HOLDS}, and models made so are released too (`list weights`: ft_in1k)"


def larger(facts: Facts, chosen: Candidate) -> list[tuple[Candidate, str]]:
    """The same model by AugReg's own transfer, on larger pictures."""
    found = [ladders.at_384(facts, name) for name, row in ladders.RELEASED.items() if row[0] == chosen.model]
    why = "AugReg's own transfer, SGD and 384 pixels: {:g} against {:g} on ImageNet, for more compute"
    return [(one, why.format(one.top1, chosen.top1) + f" ({rules.AUGREG}, Table 3)") for one in found]


def faster(decision: Decision, price: Callable[[Candidate], Speed], machine: Machine) -> list[tuple[Candidate, str]]:
    """The first one further down the ladder that takes a fifth less here; papers' orders of speed need not hold."""
    chosen = decision.option.plan.candidate
    for row in decision.ladder.candidates:
        if row.top1 < chosen.top1 and option(row, price, machine).cost.hours < 0.8 * decision.option.cost.hours:
            return [(row, f"faster, but {against(row, chosen)}")]
    return []


def against(row: Candidate, chosen: Candidate) -> str:
    """What is known of two models, which need not have seen the same pictures."""
    if row.on == chosen.on:
        return f"{row.top1:g} against {chosen.top1:g} on {row.on}"
    return f"compared on no common pictures: {named(row)}, {named(chosen)}"
