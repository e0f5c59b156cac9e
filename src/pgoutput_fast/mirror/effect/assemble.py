"""Puts the rows of an effect together from the rows of a stretch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from pgoutput_fast.mirror.effect.column_names import RowNumbers, with_names
from pgoutput_fast.mirror.effect.schema import COMMIT_LSN, current_schema
from pgoutput_fast.mirror.effect.stretch import Stretch
from pgoutput_fast.mirror.effect.take import take

__all__ = ["assemble", "key_rows"]


def assemble(stretch: Stretch, rows: RowNumbers, sources: Mapping[str, RowNumbers]) -> pa.Table:
    """Rows of a stretch as rows of a current table.

    Args:
        stretch: the stretch.
        rows: which rows, ascending.
        sources: {column: for each of `rows` the row that has the value of this column}. Other columns have their values
            in `rows` themselves.
    """
    names = stretch.values.column_names
    kept = stretch.values.drop_columns([name for name in names if name in sources])
    kept = kept.append_column(COMMIT_LSN, stretch.commit_lsn)
    if len(rows) < len(stretch):
        chosen = np.zeros(len(stretch), np.bool_)
        chosen[rows] = True
        kept = kept.filter(pa.array(chosen))
    columns = [take(stretch.values[name], sources[name]) if name in sources else kept[name] for name in names]
    columns += [kept[COMMIT_LSN], _unrepresentable(stretch, rows, sources)]
    return pa.Table.from_arrays(columns, schema=current_schema(stretch.values.schema))


def _unrepresentable(stretch: Stretch, rows: RowNumbers, sources: Mapping[str, RowNumbers]) -> pa.Array:
    """The names of columns whose value has no Arrow form: a value takes this along from the row that has it."""
    found = {}
    for name, marked in stretch.unrepresentable.items():
        has = np.zeros(len(stretch), np.bool_)
        has[marked] = True
        found[name] = np.flatnonzero(has[sources.get(name, rows)])
    return with_names(found, len(rows))


def key_rows(stretch: Stretch, key: Sequence[str], rows: RowNumbers) -> pa.Table:
    """The key columns of rows of a stretch."""
    schema = current_schema(stretch.values.select(key).schema)
    fields = [schema.field(name) for name in key]
    return pa.Table.from_arrays([take(stretch.values[name], rows) for name in key], schema=pa.schema(fields))
