"""Values that no change has, because an update left them unchanged: they are read from the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.column_names import RowNumbers, naming_rows, with_names
from pgoutput_fast.merge.effect.schema import UNREPRESENTABLE
from pgoutput_fast.merge.effect.take import take
from pgoutput_fast.merge.match import row_codes
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["RowLostError", "Unfilled", "fill", "wanted"]


@dataclass(frozen=True)
class Unfilled:
    """Values of a column that were not sent, because an update left them unchanged.

    Attributes:
        column: the column.
        rows: the rows that lack the values: indexes of `Effect.rows`, int64.
        keys: the keys of these rows before the changes, in the same order. The table has the values in its rows with
            these keys.
    """

    column: str
    rows: pa.Array
    keys: pa.Table


class RowLostError(ValueError):
    """The table lacks a row, or a column of it, that changes refer to: earlier changes did not get into the table.

    >>> raise RowLostError("the table lacks a row that changes refer to")
    Traceback (most recent call last):
    pgoutput_fast.merge.effect.unfilled.RowLostError: the table lacks a row that changes refer to
    """


def wanted(unfilled: Sequence[Unfilled], keys: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """The rows and columns with the values: keys without duplicates, and columns, with `_unrepresentable`.

    Args:
        unfilled: the missing values.
        keys: the key columns of any rows.
    """
    if not unfilled:
        return keys.slice(0, 0), ()
    keys = pa.concat_tables([each.keys for each in unfilled])
    if len(unfilled) > 1:
        codes, count = row_codes(keys.columns)
        place = np.empty(count, np.int64)
        place[codes] = np.arange(len(codes))
        keys = keys.take(pa.array(np.sort(place)))
    return keys, (*(each.column for each in unfilled), UNREPRESENTABLE)


def fill(rows: pa.Table, unfilled: Sequence[Unfilled], found: pa.Table) -> pa.Table:
    """The rows with the missing values filled in.

    Args:
        rows: rows of an effect.
        unfilled: the missing values.
        found: rows of the table, with the columns of `wanted`.

    Raises:
        RowLostError: if a row or a column was not found.
        ValueError: if a key was found twice.
    """
    missing = [each.column for each in unfilled if each.column not in found.column_names]
    if missing:
        raise RowLostError(
            f"the table has no column {', '.join(map(repr, missing))}, but an update left its value unchanged. Earlier "
            f"changes of its columns are missing: {LOAD_ANY_AGAIN}"
        )
    named, named_there = naming_rows(rows[UNREPRESENTABLE]), naming_rows(found[UNREPRESENTABLE])
    for each in unfilled:
        places, sources = each.rows.to_numpy(), _places(each.keys, found, each.column)
        rows = _with_values(rows, each.column, places, found[each.column], sources)
        if each.column in named_there:
            added = places[np.isin(sources, named_there[each.column])]
            named[each.column] = np.union1d(named.get(each.column, added), added)
    if not named_there:
        return rows
    ordered = {name: named[name] for name in rows.column_names if name in named}
    place = rows.column_names.index(UNREPRESENTABLE)
    return rows.set_column(place, rows.field(place), with_names(ordered, rows.num_rows))


def _places(keys: pa.Table, found: pa.Table, column: str) -> RowNumbers:
    """The rows of `found` with these keys."""
    there = found.select(keys.column_names).cast(keys.schema)
    codes, count = row_codes(pa.concat_tables([there, keys]).columns)
    there_codes, key_codes = codes[: there.num_rows], codes[there.num_rows :]
    place = np.full(count, -1, np.int64)
    place[there_codes] = np.arange(there.num_rows)
    if (place >= 0).sum() < there.num_rows:
        raise ValueError(f"the table has several rows with the same key: {LOAD_ANY_AGAIN}")
    places = place[key_codes]
    lost = int((places < 0).sum())
    if lost:
        raise RowLostError(
            f"the table lacks {lost} {'row' if lost == 1 else 'rows'} that changes refer to: an update left the value "
            f"of column {column!r} unchanged, but the table has no row with this key. Earlier changes are missing: "
            f"{LOAD_ANY_AGAIN}"
        )
    return places


def _with_values(
    rows: pa.Table, column: str, places: RowNumbers, values: pa.ChunkedArray, sources: RowNumbers
) -> pa.Table:
    """The rows with `values[sources]` at `places` of a column."""
    at = rows.column_names.index(column)
    numbers = np.arange(rows.num_rows)
    numbers[places] = rows.num_rows + sources
    both = pa.chunked_array([*rows[column].chunks, *values.cast(rows[column].type).chunks], rows[column].type)
    return rows.set_column(at, rows.field(at), take(both, numbers))
