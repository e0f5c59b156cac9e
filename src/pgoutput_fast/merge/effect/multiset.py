"""The net effect on a table whose rows have no key: equal rows are copies, and only their number counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.assemble import assemble_each
from pgoutput_fast.merge.effect.change_arrays import ChangeArrays, Mask
from pgoutput_fast.merge.effect.column_names import with_names
from pgoutput_fast.merge.effect.copies import cancelled_copies
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.schema import COMMIT_LSN
from pgoutput_fast.merge.effect.take import take
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["multiset_effect"]


def multiset_effect(changes: ChangeArrays) -> Effect:
    """The net effect on a table without a key.

    An old row cancels the oldest equal row that the changes put before it. If there is none, it removes one from before
    the changes.

    Raises:
        ValueError: if an old row is not whole, or did not exist after a truncate.
    """
    _check_old_rows(changes)
    changes = _with_values_of_old_rows(changes)
    stays = ~_cancelled_rows(changes)
    goes = np.flatnonzero(stays & ~changes.puts)
    if changes.truncated and len(goes):
        reason = f"it removes a row that does not exist. Earlier changes are missing: {LOAD_ANY_AGAIN}"
        raise changes.problem(goes[0], reason)
    gone, rows = assemble_each(changes, [goes, np.flatnonzero(stays & changes.puts)])
    return Effect(key=(), truncated=changes.truncated, gone=gone.drop_columns([COMMIT_LSN]), rows=rows)


def _check_old_rows(changes: ChangeArrays) -> None:
    unusable = changes.updates_in_place | (changes.key_only & ~changes.puts)
    if unusable.any():
        reason = (
            "the server did not send the whole old row. A table without a key needs REPLICA IDENTITY FULL, and if it "
            "is partitioned, each of its partitions needs it, too"
        )
        raise changes.problem(int(np.flatnonzero(unusable)[0]), reason)
    for name, rows in changes.unchanged.items():
        old = rows[~changes.puts[rows]]
        if len(old):
            raise changes.problem(old[0], "the old row lacks this value", name)


def _with_values_of_old_rows(changes: ChangeArrays) -> ChangeArrays:
    """The same changes, with unsent values of new rows taken from their old rows.

    The decoder has already done so for changes that it decoded itself.
    """
    if not changes.unchanged:
        return changes
    values, unrepresentable = changes.values, dict(changes.unrepresentable)
    for name, rows in changes.unchanged.items():
        sources = np.arange(len(changes))
        sources[rows] -= 1
        place = values.column_names.index(name)
        values = values.set_column(place, values.field(place), take(values[name], sources))
        if name in unrepresentable:
            old = rows[np.isin(rows - 1, unrepresentable[name])]
            unrepresentable[name] = np.union1d(unrepresentable[name], old)
    return replace(changes, values=values, unchanged={}, unrepresentable=unrepresentable)


def _cancelled_rows(changes: ChangeArrays) -> Mask:
    """The new rows that the changes remove again, and the old rows that remove them."""
    if changes.puts.all():
        return np.zeros(len(changes), np.bool_)
    columns = [*changes.values.columns, pa.chunked_array([with_names(changes.unrepresentable, len(changes))])]
    return cancelled_copies(columns, changes.puts)
