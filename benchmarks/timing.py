"""Medians of interleaved rounds: the compared tasks run in turns, under the same load of the machine."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Measured", "interleaved"]

# There are two kinds of tasks. The first kind is timed by its call, and its result is dropped. A task of the second
# kind measures itself and returns {part: CPU seconds}.
Task = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """CPU seconds of all rounds, in order."""

    rounds: list[float]

    @property
    def seconds(self) -> float:
        """The median round."""
        return statistics.median(self.rounds)

    def speed_beside(self, other: Measured) -> float:
        """The speed relative to `other`: the median of the rounds' ratios."""
        return statistics.median(b / a for a, b in zip(self.rounds, other.rounds, strict=True))


def interleaved(
    tasks: Mapping[str, Task], timed: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int
) -> dict[str, Measured]:
    """Runs every task once per round, after a warm-up round.

    Args:
        tasks: {name: task}. The CPU time of the process during the call counts; the result is dropped.
        timed: {name: task} of tasks that return {name: CPU seconds} themselves.
        rounds: number of rounds that count.
    """
    spent: dict[str, list[float]] = {}
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds + 1):
            seconds: dict[str, float] = {}
            for name, task in tasks.items():
                start = time.process_time()
                result = task()
                seconds[name] = time.process_time() - start
                del result
            for clocked in timed.values():
                seconds |= clocked()
            if number:
                for name, value in seconds.items():
                    spent.setdefault(name, []).append(max(value, 1e-9))
    finally:
        gc.enable()
    return {name: Measured(values) for name, values in spent.items()}
