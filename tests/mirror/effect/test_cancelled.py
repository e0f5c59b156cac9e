"""Puts and removals of equal rows that cancel each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast.mirror.effect.cancelled import cancelled, may_cancel

STEPS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40)


def one_by_one(steps: list[tuple[int, bool]]) -> list[bool]:
    """A removal takes the oldest put that is left."""
    left: dict[int, list[int]] = {}
    found = [False] * len(steps)
    for row, (number, is_put) in enumerate(steps):
        if is_put:
            left.setdefault(number, []).append(row)
        elif left.get(number):
            found[row] = found[left[number].pop(0)] = True
    return found


def in_groups(steps: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(order, begins, puts): the rows with equal numbers together."""
    order = sorted(range(len(steps)), key=lambda row: steps[row][0])
    numbers = [steps[row][0] for row in order]
    begins = [k == 0 or numbers[k] != numbers[k - 1] for k in range(len(numbers))]
    puts = [steps[row][1] for row in order]
    return np.array(order, np.int64), np.array(begins, np.bool_), np.array(puts, np.bool_)


@settings(deadline=None)
@given(STEPS)
def test_the_same_as_one_by_one(steps: list[tuple[int, bool]]) -> None:
    order, begins, puts = in_groups(steps)
    assert cancelled(begins, puts).tolist() == [one_by_one(steps)[row] for row in order]


@settings(deadline=None)
@given(STEPS)
def test_only_candidates_cancel(steps: list[tuple[int, bool]]) -> None:
    _, begins, puts = in_groups(steps)
    candidates, found = may_cancel(begins, puts), cancelled(begins, puts)
    assert not (found & ~candidates).any()
    # A group where a put stands before a removal has a pair that cancels.
    group = np.cumsum(begins)
    assert set(group[candidates]) == set(group[found])
