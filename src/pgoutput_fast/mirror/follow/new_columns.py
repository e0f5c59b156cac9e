"""New columns with values in older rows: a default, which the server's catalogs keep, or those of a renamed column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from pgoutput_fast.mirror.follow.changes import ChangeRun, commits_of
from pgoutput_fast.mirror.state.mirror_state import KnownColumn
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


def with_alter(run: ChangeRun, columns: _Columns, position: int | None) -> tuple[ChangeRun, _Columns]:
    """Puts a row of `alter` before the first change that has new columns with values in older rows.

    After a crash, the same changes get the same row. So it is in the history once, in the commit of these changes.

    Args:
        run: the changes.
        columns: the columns of the relation, or why there are none.
        position: that of the current table.

    Returns:
        The same; or why the table must be loaded in place of the columns.
    """
    first = first_change(run, position)
    if position is None or not isinstance(columns, dict):
        return run, columns
    missing = {name: each.missing for name, each in columns.items() if each.since == first}
    known = {name: value for name, value in missing.items() if value is not None}
    renamed = [(each.former, name) for name, each in columns.items() if each.since == first and each.former]
    if not known and not renamed:
        return run, columns
    values = run.row_of(known)
    if values is None:
        return run, f"the value of its new column {min(known)!r} in old rows has no Arrow form"
    at = int(np.searchsorted(commits_of(run.rows), position, side="right"))
    row = alter_row(run.rows.slice(at, 1), values, [name for pair in renamed for name in pair])
    parts = [run.rows.slice(0, at), row, run.rows.slice(at)]
    return replace(run, rows=pa.concat_tables(parts)), columns


def alter_row(change: pa.Table, values: pa.Table, renamed: Sequence[str]) -> pa.Table:
    """A row that precedes a change in its transaction. Its ordinal is free: the change follows a Relation message.

    Args:
        change: the change, one row.
        values: one row with the values in older rows.
        renamed: the old and the new name of each renamed column.
    """
    own = {"_change_type": ALTER, "_seq": change["_seq"][0].as_py() - 1, "_key_only": False}
    own |= {"_unchanged": renamed or None, "_unrepresentable": None}
    columns = []
    for field in change.schema:
        if field.name in own:
            columns.append(pa.array([own[field.name]], field.type))
        else:
            source = change if field.name in metadata_names("_") else values
            columns.append(source.column(field.name).combine_chunks())
    return pa.table(columns, schema=change.schema)
