"""What a training has learned so far: its validation, by the weights that would be its result, and when that ends it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from frugalvit.report.progress import Display
from frugalvit.training.evaluate import evaluate
from frugalvit.training.prepare import Training
from frugalvit.training.state import State

TELLING = 5  # pictures a class, from which on an accuracy tells chance from learning
EARLY = 0.05  # of a training, in which it may well have learned nothing; nor may it in a warm-up


def validated(training: Training, workers: int, display: Display) -> dict[str, float]:
    """Validation of what would be the result now; its weights are kept where early stopping may go back to them."""
    state, source = training.state, training.sources["val"]
    with averaged(training):
        found = evaluate(state.module, training.framed["val"], workers, training.answering)
        if state.counters["best"] is None or found["top1"] > state.counters["best"]:
            state.counters |= {"best": found["top1"], "best_step": state.step}
            state.best = {name: value.detach().clone() for name, value in state.module.state_dict().items()}
    chance = 100 / len(source.classes)
    clock, warmup = training.clock, getattr(training.recipe.schedule, "warmup", None)
    rising = 0 if warmup is None else warmup.steps(clock.per_epoch, clock.total)
    learned = state.step >= max(clock.per_epoch, EARLY * clock.total, rising)
    enough = found["pictures"] >= TELLING * len(source.classes)
    if found["top1"] <= 1.2 * chance and learned and enough and not state.counters.get("warned"):
        state.counters["warned"] = True
        display.note(
            f"caution: validation is at chance ({found['top1']:.1f} %, chance is {chance:.1f} %). Are the labels of both "
            "splits in the same order? `frugalvit data check` looks."
        )
    return {f"val_{name}": value for name, value in found.items()}


@contextmanager
def averaged(training: Training) -> Iterator[None]:
    """Inside, the module holds the averaged weights, where the recipe averages."""
    state = training.state
    if state.average is None:
        yield
        return
    own = {name: value.clone() for name, value in state.module.state_dict().items()}
    state.module.load_state_dict(state.average.tensors)
    try:
        yield
    finally:
        state.module.load_state_dict(own)


def stops(training: Training, step: int) -> bool:
    """Whether early stopping ends the training here."""
    stop, state, clock = training.recipe.stop, training.state, training.clock
    if stop is None or not training.cadence.evaluates(step):
        return False
    return step - state.counters["best_step"] >= stop.patience.steps(clock.per_epoch, clock.total)


def stopped_early(state: State) -> str:
    return f"stopped at step {state.step}: no better since step {state.counters['best_step']} (stop.patience)"
