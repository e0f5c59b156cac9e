"""Assembles the rows of an effect from the rows of changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pgoutput_fast._core.columns.select_rows import select_rows
from pgoutput_fast.merge.effect.change_arrays import ChangeArrays
from pgoutput_fast.merge.effect.column_names import RowNumbers, with_names
from pgoutput_fast.merge.effect.schema import current_schema
from pgoutput_fast.merge.effect.take import take

__all__ = ["assemble", "assemble_each", "key_rows"]


def assemble(changes: ChangeArrays, rows: RowNumbers, sources: Mapping[str, RowNumbers]) -> pa.Table:
    """Rows of changes as rows of a current table.

    Args:
        changes: the changes.
        rows: the rows, ascending.
        sources: {column: for each of `rows` the row with the value of this column}. Other columns have their values in
            `rows` themselves.
    """
    names = changes.values.column_names
    own = [name for name in names if name not in sources]
    ((*kept, lsn),) = select_rows([*(changes.values[name] for name in own), changes.commit_lsn], [rows])
    found = dict(zip(own, kept, strict=True))
    columns = [
        take(changes.values[name], sources[name]) if name in sources else found[name] for name in names
    ]
    return _table(changes, [*columns, lsn], _unrepresentable(changes, rows, sources))


def assemble_each(changes: ChangeArrays, choices: Sequence[RowNumbers]) -> list[pa.Table]:
    """The same for several choices of rows, whose values are all in these rows."""
    found = select_rows([*changes.values.columns, changes.commit_lsn], choices)
    return [
        _table(changes, columns, _unrepresentable(changes, rows, {}))
        for rows, columns in zip(choices, found, strict=True)
    ]


def _table(changes: ChangeArrays, columns: Sequence[pa.ChunkedArray], unrepresentable: pa.Array) -> pa.Table:
    return pa.Table.from_arrays([*columns, unrepresentable], schema=current_schema(changes.values.schema))


def _unrepresentable(changes: ChangeArrays, rows: RowNumbers, sources: Mapping[str, RowNumbers]) -> pa.Array:
    """The names of columns without an Arrow form: a value inherits this mark from its source row."""
    found = {}
    for name, marked in changes.unrepresentable.items():
        has = np.zeros(len(changes), np.bool_)
        has[marked] = True
        found[name] = np.flatnonzero(has[sources.get(name, rows)])
    return with_names(found, len(rows))


def key_rows(changes: ChangeArrays, key: Sequence[str], rows: RowNumbers) -> pa.Table:
    """The key columns of rows of changes."""
    schema = current_schema(changes.values.select(key).schema)
    fields = [schema.field(name) for name in key]
    return pa.Table.from_arrays([take(changes.values[name], rows) for name in key], schema=pa.schema(fields))
