"""Finds among the rows of a stretch those that are copies of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.mirror.effect.cancelled import may_cancel
from pgoutput_fast.mirror.effect.column_names import RowNumbers
from pgoutput_fast.mirror.effect.row_codes import float_bits, is_nested, row_codes, storage
from pgoutput_fast.mirror.effect.row_hashes import row_hashes
from pgoutput_fast.mirror.effect.stretch import Mask
from pgoutput_fast.mirror.effect.take import take

__all__ = ["Copies", "find_copies"]


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
    count = len(puts)
    bits = np.uint64(max(count - 1, 0).bit_length())
    low = (np.uint64(1) << bits) - np.uint64(1)
    # Hash and row in one integer: see key_groups.
    ordered = np.sort(row_hashes(columns) & ~low | np.arange(count, dtype=np.uint64))
    rows = (ordered & low).astype(np.int64)
    begins = np.ones(count, np.bool_)
    begins[1:] = ordered[1:] >> bits != ordered[:-1] >> bits
    candidates = may_cancel(begins, puts[rows])
    rows, begins = rows[candidates], begins[candidates]
    if not len(rows):
        return Copies(rows, begins)
    differs = np.zeros(len(rows), np.bool_)
    for column in columns:
        differs[1:] |= _differs_from_previous(take(column, rows))
    differs &= ~begins
    return _recoded(columns, rows, begins, differs) if differs.any() else Copies(rows, begins)


def _differs_from_previous(column: pa.ChunkedArray) -> Mask:
    """For each row but the first whether its value is another than that of the row before it."""
    column = storage(column)
    if is_nested(column.type):
        codes, _ = row_codes([column])
        unlike: Mask = codes[1:] != codes[:-1]
        return unlike
    if pa.types.is_floating(column.type):
        column = float_bits(column)
    one, other = column.slice(1), column.slice(0, len(column) - 1)
    equal = pc.fill_null(pc.equal(one, other), False)
    if column.null_count:
        equal = pc.or_(equal, pc.and_(one.is_null(), other.is_null()))
    found: Mask = ~equal.to_numpy()
    return found


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
