"""Finds copies among the rows of changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_fast._core.columns.row_groups import cancelled, candidate_pairs, group_rows
from pgoutput_fast._core.columns.whole_rows import is_comparable, row_hashes, unequal
from pgoutput_fast.merge.effect.change_arrays import Mask
from pgoutput_fast.merge.effect.column_names import RowNumbers
from pgoutput_fast.merge.effect.take import take
from pgoutput_fast.merge.match import row_codes, storage

__all__ = ["cancelled_copies"]


def cancelled_copies(columns: Sequence[pa.ChunkedArray], puts: Mask) -> Mask:
    """Which rows cancel each other: a removal cancels the oldest equal row that was put before it.

    Equality is that of `row_codes`. Rows are grouped by a cheap hash. Then neighbours in a group are compared. Only if
    some differ despite equal hashes, the values of their groups are numbered, which takes much longer.

    Args:
        columns: at least one, all of the same length.
        puts: which rows put a copy. The others remove one.

    >>> columns = [pa.chunked_array([["a", "a", "b", "a", "a"]])]
    >>> cancelled_copies(columns, np.array([True, True, False, False, True]))
    array([ True, False, False,  True, False])
    """
    groups, count = group_rows(row_hashes([storage(column) for column in columns]))
    ones, others = candidate_pairs(groups, count, puts)
    compared = [_comparable(column, ones, others) for column in columns if column.null_count < len(puts)]
    differ = unequal(compared, ones, others)
    if differ.any():
        groups, count = _taken_apart(columns, groups, count, np.unique(groups[ones[differ]]))
    return cancelled(groups, count, puts)


def _comparable(column: pa.ChunkedArray, ones: RowNumbers, others: RowNumbers) -> pa.ChunkedArray:
    """A column for `unequal`, which is equal where this column is, in these rows."""
    column = storage(column)
    if is_comparable(column.type):
        return column
    codes, rows = np.zeros(len(column), np.int32), np.union1d(ones, others)
    codes[rows] = row_codes([take(column, rows)])[0]
    return pa.chunked_array([codes])


def _taken_apart(
    columns: Sequence[pa.ChunkedArray],
    groups: npt.NDArray[np.int32],
    count: int,
    mixed: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int32], int]:
    """The groups and their number, with mixed groups split into groups of equal rows."""
    is_mixed = np.zeros(count, np.bool_)
    is_mixed[mixed] = True
    rows = np.flatnonzero(is_mixed[groups])
    codes, more = row_codes([take(column, rows) for column in columns])
    groups[rows] = count + codes
    return groups, count + more
