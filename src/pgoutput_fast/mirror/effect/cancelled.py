"""Finds among puts and removals of copies of rows those that cancel each other."""

from __future__ import annotations

import numpy as np

from pgoutput_fast.mirror.effect.column_names import RowNumbers
from pgoutput_fast.mirror.effect.row_codes import Codes
from pgoutput_fast.mirror.effect.stretch import Mask

__all__ = ["cancelled", "may_cancel"]


def may_cancel(codes: Codes, count: int, puts: Mask) -> Mask:
    """Which rows have a number that is put first and removed later.

    >>> may_cancel(np.array([0, 0, 1, 1, 2]), 3, np.array([True, False, False, True, True]))
    array([ True,  True, False, False, False])
    """
    rows = np.arange(len(codes))
    first_put, last_removal = np.full(count, len(codes)), np.full(count, -1)
    first_put[codes[puts][::-1]] = rows[puts][::-1]
    last_removal[codes[~puts]] = rows[~puts]
    return (first_put < last_removal)[codes]


def cancelled(codes: Codes, puts: Mask) -> Mask:
    """Which rows cancel each other: a removal takes away the oldest put of the same number that is left before it.

    Args:
        codes: the number of each row; equal rows have the same.
        puts: which rows put a copy. The others remove one.

    >>> cancelled(np.array([0, 0, 0, 0, 1]), np.array([True, True, False, True, False]))
    array([ True, False,  True, False, False])
    """
    count = len(codes)
    if not count:
        return np.zeros(0, np.bool_)
    ordered = np.sort(codes.astype(np.int64) << 32 | np.arange(count))
    rows = ordered & 0xFFFFFFFF
    is_put = puts[rows]
    begins = np.ones(count, np.bool_)
    begins[1:] = (ordered[1:] >> 32) != (ordered[:-1] >> 32)
    starts, group = np.flatnonzero(begins), np.cumsum(begins) - 1
    step = np.where(is_put, 1, -1)
    # How many copies there are after each row, if there was none before. Each group lies below all groups before it,
    # so that one running minimum serves all of them.
    floor = -group * (2 * count)
    depth = _from_group_start(step, starts, group) + floor
    lowest = np.minimum.accumulate(depth)
    lowest_before = np.minimum(np.concatenate([[0], lowest[:-1]]), floor)
    matched = ~is_put & (depth >= lowest_before)
    taken = np.add.reduceat(matched.astype(np.int64), starts)[group]
    found = np.empty(count, np.bool_)
    found[rows] = matched | (is_put & (_from_group_start(is_put.astype(np.int64), starts, group) <= taken))
    return found


def _from_group_start(values: RowNumbers, starts: RowNumbers, group: RowNumbers) -> RowNumbers:
    """The running sum of each group."""
    total = np.cumsum(values)
    return total - (total - values)[starts][group]
