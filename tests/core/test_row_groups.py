"""Rows with equal hashes are put into groups, and in each group rows cancel each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_fast._core.columns.row_groups import cancelled, candidate_pairs, group_rows

STEPS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=40)
Steps = list[tuple[int, bool]]


def one_by_one(steps: Steps) -> list[bool]:
    """A removal takes the oldest put that is left."""
    left: dict[int, list[int]] = {}
    found = [False] * len(steps)
    for row, (number, is_put) in enumerate(steps):
        if is_put:
            left.setdefault(number, []).append(row)
        elif left.get(number):
            found[row] = found[left[number].pop(0)] = True
    return found


def arrays(steps: Steps) -> tuple[np.ndarray, int, np.ndarray]:
    return (
        np.array([number for number, _ in steps], np.int32),
        5,
        np.array([is_put for _, is_put in steps], np.bool_),
    )


@settings(deadline=None)
@given(STEPS)
def test_the_same_as_one_by_one(steps: Steps) -> None:
    assert cancelled(*arrays(steps)).tolist() == one_by_one(steps)


@settings(deadline=None)
@given(STEPS)
def test_only_candidates_cancel(steps: Steps) -> None:
    groups, _, _ = arrays(steps)
    ones, others = candidate_pairs(*arrays(steps))
    found = one_by_one(steps)
    assert {*groups[ones]} == {number for (number, _), gone in zip(steps, found, strict=True) if gone}
    # Each pair is a row and the one right before it in its group. All rows of the group are in pairs.
    expected = [
        (row, max(k for k in range(row) if groups[k] == groups[row]))
        for row in range(len(steps))
        if groups[row] in groups[ones] and groups[row] in groups[:row]
    ]
    assert [*zip(ones.tolist(), others.tolist(), strict=True)] == expected


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 70_000])
@pytest.mark.parametrize("values", [1, 7, 1 << 63])
def test_equal_hashes_have_one_group(count: int, values: int) -> None:
    hashes = np.random.default_rng(count).integers(0, values, count, np.uint64)
    groups, found = group_rows(hashes)
    assert len(groups) == count
    assert found == (groups.max() + 1 if count else 0)
    # In the order in which they come.
    _, first = np.unique(groups, return_index=True)
    assert (np.diff(first) > 0).all()
    # Few rows with different hashes share a group.
    _, codes = np.unique(hashes, return_inverse=True)
    assert len(np.unique(np.stack([codes, groups]), axis=1).T) == len(np.unique(codes))
    assert found >= 0.99 * len(np.unique(codes))


def test_hashes_that_differ_in_few_bits() -> None:
    for bit in range(0, 44, 4):
        hashes = np.arange(1 << 16, dtype=np.uint64) << np.uint64(bit)
        groups, found = group_rows(hashes)
        assert found > 0.99 * len(hashes)
        assert len(np.unique(groups)) == found


def test_what_does_not_fit() -> None:
    puts = np.ones(2, np.bool_)
    for function in (candidate_pairs, cancelled):
        with pytest.raises(ValueError, match="the same length"):
            function(np.zeros(1, np.int32), 1, puts)
        for groups in ([0, 1], [-1, 0]):
            with pytest.raises(IndexError, match="a group that is none of 1"):
                function(np.array(groups, np.int32), 1, puts)
