"""The net effect on a table whose rows have a key: the last change of a key counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.assemble import assemble, key_rows
from pgoutput_fast.merge.effect.change_arrays import ChangeArrays, Mask
from pgoutput_fast.merge.effect.column_names import RowNumbers
from pgoutput_fast.merge.effect.effect import Effect, Unfilled
from pgoutput_fast.merge.effect.key_groups import key_groups
from pgoutput_fast.merge.effect.origins import origins
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["keyed_effect"]

_NO_FORM = (
    "a value of the key has no Arrow form, so its row cannot be found. Change the value on the server, or give the "
    "table REPLICA IDENTITY FULL"
)


def keyed_effect(changes: ChangeArrays, key: Sequence[str]) -> Effect:
    """The net effect on a table with this key.

    The two rows of an update with an old row count as a removed row and a new one, whether the key is the same or not.

    Raises:
        ValueError: if the changes contradict each other, or lack a value of the key.
    """
    _check_key(changes, key)
    groups = key_groups([changes.values[name] for name in key])
    needs_row = ~changes.puts | changes.updates_in_place
    _check_order(changes, groups.previous, needs_row)
    stays = changes.puts[groups.last]
    comes = _ascending(groups.last[stays], len(changes))
    # A row that the changes add and remove did not exist before.
    goes = _ascending(groups.last[~stays & needs_row[groups.first]], len(changes))
    sources, unfilled = _sources(changes, key, groups.previous, comes)
    return Effect(
        key=tuple(key),
        truncated=changes.truncated,
        gone=key_rows(changes, key, goes),
        rows=assemble(changes, comes, sources),
        unfilled=unfilled,
    )


def _check_key(changes: ChangeArrays, key: Sequence[str]) -> None:
    for name in key:
        if name not in changes.values.column_names:
            of = "" if changes.table is None else f" of {changes.table}"
            raise ValueError(f"the changes{of} have no column {name!r}, which belongs to the key")
        for found, reason in (
            (changes.unchanged, "a key column was not sent, and no old row has its value"),
            (changes.unrepresentable, _NO_FORM),
        ):
            if name in found:
                raise changes.problem(found[name][0], reason, name)
        column = changes.values[name]
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy())[0])
            reason = (
                "a new row has null in a key column"
                if changes.puts[row]
                else "the old row has no value of a key column: the column is not in the replica identity"
            )
            raise changes.problem(row, reason, name)


def _ascending(rows: RowNumbers, count: int) -> RowNumbers:
    """Sorts distinct numbers below `count`."""
    chosen = np.zeros(count, np.bool_)
    chosen[rows] = True
    return np.flatnonzero(chosen)


def _check_order(changes: ChangeArrays, previous: RowNumbers, needs_row: Mask) -> None:
    """Checks that every change has the row that it needs, or none if it adds one."""
    known = previous >= 0
    there = changes.puts[previous] & known
    wrong = there != needs_row
    if not changes.truncated:
        wrong &= known  # the table's content is unknown
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        reason = (
            f"it changes a row that does not exist. Earlier changes are missing: {LOAD_ANY_AGAIN}"
            if needs_row[row]
            else f"its new row has the key of another row. Earlier changes are missing: {LOAD_ANY_AGAIN}"
        )
        raise changes.problem(row, reason)


def _sources(
    changes: ChangeArrays, key: Sequence[str], previous: RowNumbers, comes: RowNumbers
) -> tuple[dict[str, RowNumbers], list[Unfilled]]:
    """For columns with unsent values: the rows with the values of `comes`; and the values that no row has."""
    if not changes.unchanged:
        return {}, []
    # The row with the previous state. For an update with its old row, it is that of the old row.
    old = np.arange(len(changes)) - changes.has_preimage
    before = previous[old]
    sources, unfilled = {}, []
    for name, unsent in changes.unchanged.items():
        found = origins(unsent, before)[comes]
        sources[name] = found
        is_unsent = np.zeros(len(changes), np.bool_)
        is_unsent[unsent] = True
        empty = np.flatnonzero(is_unsent[found])
        if len(empty):
            unfilled.append(Unfilled(name, pa.array(empty), key_rows(changes, key, old[found[empty]])))
    return sources, unfilled
