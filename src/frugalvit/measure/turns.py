"""Several ways to do the same thing, timed in turns: what disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

ROUNDS = 7
TURN = 0.3  # seconds that a way's turn is to last
MOST = 50  # calls in a turn
WARM = 2  # calls that open a turn and are not counted: caches are cold, and the threads of the one before may still spin


@dataclass(frozen=True)
class Times:
    """Seconds a call: the median of each round, and the fastest of all calls."""

    rounds: tuple[float, ...]
    fastest: float
    calls: int  # in a round

    @property
    def seconds(self) -> float:
        """The median over rounds."""
        return statistics.median(self.rounds)


def in_turns(
    ways: Mapping[str, Callable[[], object]], rounds: int = ROUNDS, calls: int | None = None
) -> Iterator[tuple[int, dict[str, Times]]]:
    """Rounds of A B C A B C ...: after each its number, from 1, and what all until now gave.

    `calls` in a turn is chosen by the time that one takes, unless given.
    """
    counts = {name: calls or calls_in_a_turn(way) for name, way in ways.items()}
    found: dict[str, list[list[float]]] = {name: [] for name in ways}
    for number in range(1, rounds + 1):
        for name, way in ways.items():
            for _ in range(min(WARM, counts[name])):
                way()
            found[name].append([seconds(way) for _ in range(counts[name])])
        yield number, {name: times(turns) for name, turns in found.items()}


def times(turns: list[list[float]]) -> Times:
    medians = tuple(statistics.median(turn) for turn in turns)
    return Times(medians, min(min(turn) for turn in turns), len(turns[0]))


def calls_in_a_turn(way: Callable[[], object]) -> int:
    way()  # the first call allocates
    return min(max(round(TURN / max(seconds(way), 1e-9)), 1), MOST)


def seconds(way: Callable[[], object]) -> float:
    began = time.perf_counter()
    way()
    return time.perf_counter() - began


def over(slow: Times, fast: Times) -> float:
    """How many times as fast: the median of the ratios within a round."""
    return statistics.median(one / other for one, other in zip(slow.rounds, fast.rounds, strict=True))
