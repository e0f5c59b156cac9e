"""Puts and removals of equal rows that cancel each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
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


def arrays(steps: list[tuple[int, bool]]) -> tuple[np.ndarray, np.ndarray]:
    codes, puts = zip(*steps, strict=True) if steps else ((), ())
    return np.array(codes, np.int32), np.array(puts, np.bool_)


@given(STEPS)
def test_the_same_as_one_by_one(steps: list[tuple[int, bool]]) -> None:
    assert cancelled(*arrays(steps)).tolist() == one_by_one(steps)


@given(STEPS)
def test_only_candidates_cancel(steps: list[tuple[int, bool]]) -> None:
    codes, puts = arrays(steps)
    candidates = may_cancel(codes, 5, puts)
    expected = np.array(one_by_one(steps), np.bool_)
    assert not (expected & ~candidates).any()
    # A number that is put first and removed later has a pair that cancels, also if it was removed before.
    assert set(codes[candidates]) == set(codes[expected])
