"""The net effect on a table whose rows have a key: the last change of a key counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.assemble import assemble, key_rows
from pgoutput_fast.merge.effect.column_names import RowNumbers
from pgoutput_fast.merge.effect.effect import Effect, Unfilled
from pgoutput_fast.merge.effect.key_groups import key_groups
from pgoutput_fast.merge.effect.origins import origins
from pgoutput_fast.merge.effect.stretch import Mask, Stretch
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["keyed_effect"]

_NO_FORM = (
    "a value of the key has no Arrow form, so its row cannot be found. Change the value on the server, or give the "
    "table REPLICA IDENTITY FULL"
)


def keyed_effect(stretch: Stretch, key: Sequence[str]) -> Effect:
    """The net effect on a table with this key.

    The two rows of an update with an old row count as a removed row and a new one, whether the key is the same or not.

    Raises:
        ValueError: if the changes contradict each other, or lack a value of the key.
    """
    _check_key(stretch, key)
    groups = key_groups([stretch.values[name] for name in key])
    needs_row = ~stretch.puts | stretch.updates_in_place
    _check_order(stretch, groups.previous, needs_row)
    stays = stretch.puts[groups.last]
    comes = _ascending(groups.last[stays], len(stretch))
    # A row that the stretch adds and removes did not exist before.
    goes = _ascending(groups.last[~stays & needs_row[groups.first]], len(stretch))
    sources, unfilled = _sources(stretch, key, groups.previous, comes)
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
            (stretch.unrepresentable, _NO_FORM),
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


def _ascending(rows: RowNumbers, count: int) -> RowNumbers:
    """Sorts distinct numbers below `count`."""
    chosen = np.zeros(count, np.bool_)
    chosen[rows] = True
    return np.flatnonzero(chosen)


def _check_order(stretch: Stretch, previous: RowNumbers, needs_row: Mask) -> None:
    """Checks that every change has the row that it needs, or none if it adds one."""
    known = previous >= 0
    there = stretch.puts[previous] & known
    wrong = there != needs_row
    if not stretch.truncated:
        wrong &= known  # the table's content is unknown
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        reason = (
            f"it changes a row that was not there. Changes are missing before it: {LOAD_ANY_AGAIN}"
            if needs_row[row]
            else f"it makes a row whose key another row has. Changes are missing before it: {LOAD_ANY_AGAIN}"
        )
        raise stretch.problem(row, reason)


def _sources(
    stretch: Stretch, key: Sequence[str], previous: RowNumbers, comes: RowNumbers
) -> tuple[dict[str, RowNumbers], list[Unfilled]]:
    """For columns with unsent values: the rows with the values of `comes`; and the values that no row has."""
    if not stretch.unchanged:
        return {}, []
    # The row with the previous state. For an update with its old row, it is that of the old row.
    old = np.arange(len(stretch)) - stretch.has_preimage
    before = previous[old]
    sources, unfilled = {}, []
    for name, unsent in stretch.unchanged.items():
        found = origins(unsent, before)[comes]
        sources[name] = found
        is_unsent = np.zeros(len(stretch), np.bool_)
        is_unsent[unsent] = True
        empty = np.flatnonzero(is_unsent[found])
        if len(empty):
            unfilled.append(Unfilled(name, pa.array(empty), key_rows(stretch, key, old[found[empty]])))
    return sources, unfilled
