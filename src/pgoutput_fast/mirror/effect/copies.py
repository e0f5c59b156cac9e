"""Finds among the rows of a stretch those that are copies of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.columns.row_pairs import is_comparable, mark_unequal
from pgoutput_fast.mirror.effect.cancelled import may_cancel
from pgoutput_fast.mirror.effect.column_names import RowNumbers
from pgoutput_fast.mirror.effect.row_codes import row_codes, storage
from pgoutput_fast.mirror.effect.row_hashes import Hashes, row_hashes
from pgoutput_fast.mirror.effect.stretch import Mask
from pgoutput_fast.mirror.effect.take import take

__all__ = ["Copies", "find_copies"]

# Rows are told apart by so many bits more than the number of rows has.
_MORE_BITS = 2


@dataclass(frozen=True)
class Copies:
    """Rows in groups. A group has the rows that are equal: together, in apply order.

    Attributes:
        rows: the numbers of the rows.
        begins: which of them begin a group.
    """

    rows: RowNumbers
    begins: Mask


def find_copies(columns: Sequence[pa.ChunkedArray], puts: Mask) -> Copies:
    """The rows that may cancel each other, in groups of equal rows. Equality is that of `row_codes`.

    Rows are put together by a hash that is quick to have. Then each row is compared with the one before it. Only where
    they differ in spite of their hash, all values are numbered, which takes much longer.

    Args:
        columns: at least one, all of the same length.
        puts: which rows put a copy. The others remove one.
    """
    rows, begins = _with_equal_hashes(row_hashes(columns), puts)
    candidates = may_cancel(begins, puts[rows])
    rows, begins = rows[candidates], begins[candidates]
    if not len(rows):
        return Copies(rows, begins)
    differs = _differ_from_previous(columns, rows, begins)
    return _recoded(columns, rows, begins, differs) if differs.any() else Copies(rows, begins)


def _with_equal_hashes(hashes: Hashes, puts: Mask) -> tuple[RowNumbers, Mask]:
    """(rows that may have the hash of a put and of a removal, by their hash; which of them begin another hash)."""
    # First without a sort: a bit for some of the bits of a hash says whether a put has them, another one a removal.
    bits = min(len(hashes).bit_length() + _MORE_BITS, 63)
    some = (hashes >> np.uint64(64 - bits)).view(np.int64)
    by_put, by_removal = (np.zeros(1 << bits, np.bool_) for _ in range(2))
    by_put[some[puts]] = by_removal[some[~puts]] = True
    by_put &= by_removal
    rows = np.flatnonzero(by_put[some])
    low = np.uint64((1 << max(len(rows) - 1, 0).bit_length()) - 1)
    # Hash and place in one integer: see key_groups.
    ordered = np.sort(hashes[rows] & ~low | np.arange(len(rows), dtype=np.uint64))
    begins = np.ones(len(rows), np.bool_)
    begins[1:] = (ordered[1:] ^ ordered[:-1]) > low
    return rows[(ordered & low).view(np.int64)], begins


def _differ_from_previous(columns: Sequence[pa.ChunkedArray], rows: RowNumbers, begins: Mask) -> Mask:
    """Which rows are not equal to the row before them in their group."""
    previous = np.full(len(columns[0]), -1)
    previous[rows[1:][~begins[1:]]] = rows[:-1][~begins[1:]]
    # In the order of the stretch. So only the rows before lie anywhere.
    ones = np.flatnonzero(previous >= 0)
    others = previous[ones]
    differs = np.zeros(len(ones), np.bool_)
    for column in columns:
        if column.null_count < len(column):
            _mark_unequal(storage(column), ones, others, differs)
    found = np.zeros(len(previous), np.bool_)
    found[ones] = differs
    return found[rows]


def _mark_unequal(column: pa.ChunkedArray, ones: RowNumbers, others: RowNumbers, marks: Mask) -> None:
    """Marks the pairs of rows whose values differ.

    Args:
        column: the column.
        ones: the one row of each pair, ascending.
        others: the other row, in any order.
        marks: by pair.
    """
    if is_comparable(column.type):
        return mark_unequal(column, ones, others, marks.view(np.uint8))
    chosen = np.zeros(len(column), np.bool_)
    chosen[ones] = True
    one, other = column.filter(pa.array(chosen)), take(column, others)
    codes, _ = row_codes([pa.chunked_array([*one.chunks, *other.chunks], column.type)])
    marks |= codes[: len(others)] != codes[len(others) :]


def _recoded(columns: Sequence[pa.ChunkedArray], rows: RowNumbers, begins: Mask, differs: Mask) -> Copies:
    """The same rows, where groups that have rows that differ are taken apart."""
    group = np.cumsum(begins) - 1
    mixed = np.zeros(group[-1] + 1, np.bool_)
    mixed[group[differs]] = True
    places = np.flatnonzero(mixed[group])
    codes, _ = row_codes([take(column, rows[places]) for column in columns])
    group[places] = len(mixed) + codes
    order = np.argsort(group, kind="stable")
    group = group[order]
    return Copies(rows[order], np.r_[True, group[1:] != group[:-1]])
