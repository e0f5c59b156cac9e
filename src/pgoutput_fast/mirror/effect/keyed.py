"""The net effect on a table whose rows have a key: the last change of a key counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pgoutput_fast.mirror.effect.assemble import assemble, key_rows
from pgoutput_fast.mirror.effect.column_names import RowNumbers
from pgoutput_fast.mirror.effect.effect import Effect, Unfilled
from pgoutput_fast.mirror.effect.origins import origins
from pgoutput_fast.mirror.effect.row_codes import Codes, row_codes
from pgoutput_fast.mirror.effect.stretch import Mask, Stretch

__all__ = ["keyed_effect"]


def keyed_effect(stretch: Stretch, key: Sequence[str]) -> Effect:
    """The net effect on a table with this key.

    A new row comes, an old row goes. The two rows of an update that has both are a row that goes and one that comes,
    whether the key is the same or not.

    Raises:
        ValueError: if the changes contradict each other, or lack a value of the key.
    """
    _check_key(stretch, key)
    codes, count = row_codes([stretch.values[name] for name in key])
    previous, last = _neighbours(codes, count)
    needs_row = ~stretch.puts | stretch.updates_in_place
    _check_order(stretch, previous, needs_row)
    was_there = np.zeros(count, np.bool_)
    was_there[codes[(previous < 0) & needs_row]] = True
    comes = np.flatnonzero(last & stretch.puts)
    goes = np.flatnonzero(last & ~stretch.puts & was_there[codes])
    sources, unfilled = _sources(stretch, key, previous, comes)
    return Effect(
        key=tuple(key),
        truncated=stretch.truncated,
        gone=key_rows(stretch, key, goes),
        rows=assemble(stretch, comes, sources),
        unfilled=unfilled,
    )


def _check_key(stretch: Stretch, key: Sequence[str]) -> None:
    for name in key:
        if name not in stretch.values.column_names:
            of = "" if stretch.table is None else f" of {stretch.table}"
            raise ValueError(f"the changes{of} have no column {name!r}, which belongs to the key")
        for found, reason in (
            (stretch.unchanged, "a key column was not sent, and no old row has its value"),
            (stretch.unrepresentable, "a value of the key has no Arrow form"),
        ):
            if name in found:
                raise stretch.problem(found[name][0], reason, name)
        column = stretch.values[name]
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            reason = (
                "a new row has null in a key column"
                if stretch.puts[row]
                else "the old row has no value of a key column: the column is not in the replica identity"
            )
            raise stretch.problem(row, reason, name)


def _neighbours(codes: Codes, count: int) -> tuple[RowNumbers, Mask]:
    """For each row the previous one with the same number, -1 for none; and which rows are the last ones."""
    previous = np.full(len(codes), -1, np.int64)
    last = np.ones(len(codes), np.bool_)
    if count < len(codes):
        # Values of 64 bits that are sorted without an index take half the time of a stable argsort.
        ordered = np.sort(codes.astype(np.int64) << 32 | np.arange(len(codes)))
        rows = ordered & 0xFFFFFFFF
        same = (ordered[1:] >> 32) == (ordered[:-1] >> 32)
        previous[rows[1:][same]] = rows[:-1][same]
        last[rows[:-1][same]] = False
    return previous, last


def _check_order(stretch: Stretch, previous: RowNumbers, needs_row: Mask) -> None:
    known = previous >= 0
    there = stretch.puts[previous] & known
    if not stretch.truncated:
        wrong = np.flatnonzero(known & (there != needs_row))
    else:
        wrong = np.flatnonzero(there != needs_row)
    if len(wrong):
        row = int(wrong[0])
        reason = (
            "it changes a row that was not there. Changes are missing before it: load the table again"
            if needs_row[row]
            else "it makes a row whose key another row has. Changes are missing before it: load the table again"
        )
        raise stretch.problem(row, reason)


def _sources(
    stretch: Stretch, key: Sequence[str], previous: RowNumbers, comes: RowNumbers
) -> tuple[dict[str, RowNumbers], list[Unfilled]]:
    """For columns with values that were not sent: the rows that have the values of `comes`; and what no row has."""
    if not stretch.unchanged:
        return {}, []
    # The row with the state before: of an update with its old row, that is the old row's.
    old = np.arange(len(stretch)) - stretch.has_preimage
    before = previous[old]
    sources, unfilled = {}, []
    for name, unsent in stretch.unchanged.items():
        if name not in stretch.values.column_names:
            continue
        found = origins(unsent, before)[comes]
        sources[name] = found
        is_unsent = np.zeros(len(stretch), np.bool_)
        is_unsent[unsent] = True
        empty = np.flatnonzero(is_unsent[found])
        if len(empty):
            unfilled.append(Unfilled(name, pa.array(empty), key_rows(stretch, key, old[found[empty]])))
    return sources, unfilled
