"""Columns that a table gets, loses, or has with another name or type: a row of `alter` in its history says so.

Older rows get values there: a default, which the server's catalogs keep, or those of a renamed column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from pgoutput_fast.mirror.follow.changes import ChangeRun, commits_of
from pgoutput_fast.mirror.state.table_record import KnownColumn
from pgoutput_fast.schema.metadata_columns import ALTER, metadata_names

__all__ = ["alter_row", "first_change", "with_alter"]

# As `MirroredTable` gets them.
_Columns: TypeAlias = dict[str, KnownColumn] | str | ValueError | None


def first_change(run: ChangeRun, position: int | None) -> tuple[int, int] | None:
    """(LSN of the commit, ordinal) of the first change that commits after a position; None if there is none."""
    if position is None:
        return None
    commits = commits_of(run.rows)
    at = int(np.searchsorted(commits, position, side="right"))
    return None if at == len(commits) else (int(commits[at]), int(run.rows["_seq"][at].as_py()))


def with_alter(
    run: ChangeRun, columns: _Columns, position: int | None, before: Mapping[str, KnownColumn]
) -> tuple[ChangeRun, _Columns]:
    """Puts a row of `alter` before the first change that has other columns than those before it.

    After a crash, the same changes get the same row. So it is in the history once, in the commit of these changes.

    Args:
        run: the changes.
        columns: the columns of the relation, or why there are none.
        position: that of the current table.
        before: the columns before these changes.

    Returns:
        The same; or why the table must be loaded in place of the columns.
    """
    if position is None or not isinstance(columns, dict) or not (altered := _altered(before, columns)):
        return run, columns
    known = {
        name: value for former, name in altered if not former and (value := columns[name].missing) is not None
    }
    values = run.row_of(known)
    if values is None:
        return run, f"the value of its new column {min(known)!r} in old rows has no Arrow form"
    at = int(np.searchsorted(commits_of(run.rows), position, side="right"))
    row = alter_row(run.rows.slice(at, 1), values, altered)
    parts = [run.rows.slice(0, at), row, run.rows.slice(at)]
    return replace(run, rows=pa.concat_tables(parts)), columns


def _altered(before: Mapping[str, KnownColumn], now: Mapping[str, KnownColumn]) -> list[tuple[str, str]]:
    """(the name before, the name now) of each column that is altered; empty for no column."""
    new = [(now[name].former or "", name) for name in now if name not in before]
    formers = {former for former, _ in new}
    gone = [(name, "") for name in before if name not in now and name not in formers]
    types = [(name, name) for name in now if name in before and now[name].type != before[name].type]
    return [*new, *gone, *types]


def alter_row(change: pa.Table, values: pa.Table, altered: Sequence[tuple[str, str]]) -> pa.Table:
    """A row that precedes a change in its transaction. Its ordinal is free: the change follows a Relation message.

    Args:
        change: the change, one row.
        values: one row with the values in older rows.
        altered: (the name before, the name now) of each altered column; empty for no column.
    """
    own = {"_change_type": ALTER, "_seq": change["_seq"][0].as_py() - 1, "_key_only": False}
    own |= {"_unchanged": [name for pair in altered for name in pair], "_unrepresentable": None}
    columns = []
    for field in change.schema:
        if field.name in own:
            columns.append(pa.array([own[field.name]], field.type))
        else:
            source = change if field.name in metadata_names("_") else values
            columns.append(source.column(field.name).combine_chunks())
    return pa.table(columns, schema=change.schema)
