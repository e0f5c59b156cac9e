"""Medians of interleaved rounds: what is compared ran at the same time, on the same noisy machine."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["Measured", "interleaved"]

# What a task costs: nothing (then the call is timed) or {part: CPU seconds} if it has a clock of its own.
Task = Callable[[], object]


@dataclass(frozen=True)
class Measured:
    """CPU seconds of each round, in the rounds' order."""

    rounds: list[float]

    @property
    def seconds(self) -> float:
        """The median round."""
        return statistics.median(self.rounds)

    def speed_beside(self, other: Measured) -> float:
        """How much faster than `other` this was: the median of the rounds' ratios."""
        return statistics.median(b / a for a, b in zip(self.rounds, other.rounds, strict=True))


def interleaved(
    tasks: Mapping[str, Task], timed: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int
) -> dict[str, Measured]:
    """Runs every task once per round, after one round that does not count.

    Args:
        tasks: by name; the process's CPU time over the call is taken, and what it returns is dropped.
        timed: tasks that return CPU seconds by name themselves.
        rounds: how many count.
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
