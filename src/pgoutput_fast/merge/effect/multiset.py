"""The net effect on a table whose rows have no key: equal rows are copies, and only their number counts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from pgoutput_fast.merge.effect.assemble import assemble_each
from pgoutput_fast.merge.effect.column_names import with_names
from pgoutput_fast.merge.effect.copies import cancelled_copies
from pgoutput_fast.merge.effect.effect import Effect
from pgoutput_fast.merge.effect.schema import COMMIT_LSN
from pgoutput_fast.merge.effect.stretch import Mask, Stretch
from pgoutput_fast.merge.effect.take import take
from pgoutput_fast.tables.errors import LOAD_ANY_AGAIN

__all__ = ["multiset_effect"]


def multiset_effect(stretch: Stretch) -> Effect:
    """The net effect on a table without a key.

    An old row cancels the oldest equal row that the stretch put before it. If there is none, it removes one from before
    the stretch.

    Raises:
        ValueError: if an old row is not whole, or did not exist after a truncate.
    """
    _check_old_rows(stretch)
    stretch = _with_values_of_old_rows(stretch)
    stays = ~_cancelled_rows(stretch)
    goes = np.flatnonzero(stays & ~stretch.puts)
    if stretch.truncated and len(goes):
        reason = f"it removes a row that was not there. Changes are missing before it: {LOAD_ANY_AGAIN}"
        raise stretch.problem(goes[0], reason)
    gone, rows = assemble_each(stretch, [goes, np.flatnonzero(stays & stretch.puts)])
    return Effect(key=(), truncated=stretch.truncated, gone=gone.drop_columns([COMMIT_LSN]), rows=rows)


def _check_old_rows(stretch: Stretch) -> None:
    unusable = stretch.updates_in_place | (stretch.key_only & ~stretch.puts)
    if unusable.any():
        reason = (
            "the server did not send the whole old row. A table without a key needs REPLICA IDENTITY FULL, and if it "
            "is partitioned, each of its partitions needs it, too"
        )
        raise stretch.problem(int(np.flatnonzero(unusable)[0]), reason)
    for name, rows in stretch.unchanged.items():
        old = rows[~stretch.puts[rows]]
        if len(old):
            raise stretch.problem(old[0], "the old row lacks this value", name)


def _with_values_of_old_rows(stretch: Stretch) -> Stretch:
    """The same changes, with unsent values of new rows taken from their old rows.

    The decoder has already done so for changes that it decoded itself.
    """
    if not stretch.unchanged:
        return stretch
    values, unrepresentable = stretch.values, dict(stretch.unrepresentable)
    for name, rows in stretch.unchanged.items():
        sources = np.arange(len(stretch))
        sources[rows] -= 1
        place = values.column_names.index(name)
        values = values.set_column(place, values.field(place), take(values[name], sources))
        if name in unrepresentable:
            old = rows[np.isin(rows - 1, unrepresentable[name])]
            unrepresentable[name] = np.union1d(unrepresentable[name], old)
    return replace(stretch, values=values, unchanged={}, unrepresentable=unrepresentable)


def _cancelled_rows(stretch: Stretch) -> Mask:
    """The new rows that the stretch removes again, and the old rows that remove them."""
    if stretch.puts.all():
        return np.zeros(len(stretch), np.bool_)
    columns = [*stretch.values.columns, pa.chunked_array([with_names(stretch.unrepresentable, len(stretch))])]
    return cancelled_copies(columns, stretch.puts)
