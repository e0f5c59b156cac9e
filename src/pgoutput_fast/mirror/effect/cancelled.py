"""Finds among puts and removals of copies of rows those that cancel each other."""

from __future__ import annotations

import numpy as np

from pgoutput_fast.mirror.effect.column_names import RowNumbers
from pgoutput_fast.mirror.effect.stretch import Mask

__all__ = ["cancelled", "may_cancel"]


def may_cancel(begins: Mask, puts: Mask) -> Mask:
    """Which rows are in a group where a put stands before a removal. No other rows cancel each other.

    Args:
        begins: which rows begin a group. Each group stands together, in apply order.
        puts: which rows put a copy. The others remove one.

    >>> begins = np.array([True, False, True, False, True])
    >>> may_cancel(begins, np.array([True, False, False, True, True]))
    array([ True,  True, False, False, False])
    """
    count = len(begins)
    if not count:
        return np.zeros(0, np.bool_)
    group = np.cumsum(begins) - 1
    # If a put stands anywhere before a removal, then somewhere in between right before one.
    right_before = puts[:-1] & ~puts[1:] & ~begins[1:]
    has = np.zeros(group[-1] + 1, np.bool_)
    has[group[1:][right_before]] = True
    found: Mask = has[group]
    return found


def cancelled(begins: Mask, puts: Mask) -> Mask:
    """Which rows cancel each other: a removal takes away the oldest put of its group that is left before it.

    Args:
        begins: which rows begin a group. A group has the rows that are equal: together, in apply order.
        puts: which rows put a copy. The others remove one.

    >>> begins = np.array([True, False, False, False, True])
    >>> cancelled(begins, np.array([True, True, False, True, False]))
    array([ True, False,  True, False, False])
    """
    count = len(begins)
    if not count:
        return np.zeros(0, np.bool_)
    starts, group = np.flatnonzero(begins), np.cumsum(begins) - 1
    # How many copies there are after each row, if there was none before. Each group lies below all groups before it,
    # so that one running minimum serves all of them.
    floor = -group * (2 * count)
    depth = _from_group_start(np.where(puts, 1, -1), starts, group) + floor
    lowest = np.minimum.accumulate(depth)
    lowest_before = np.minimum(np.concatenate([[0], lowest[:-1]]), floor)
    matched = ~puts & (depth >= lowest_before)
    taken = np.add.reduceat(matched.astype(np.int64), starts)[group]
    found: Mask = matched | (puts & (_from_group_start(puts.astype(np.int64), starts, group) <= taken))
    return found


def _from_group_start(values: RowNumbers, starts: RowNumbers, group: RowNumbers) -> RowNumbers:
    """The running sum of each group."""
    total = np.cumsum(values)
    return total - (total - values)[starts][group]
