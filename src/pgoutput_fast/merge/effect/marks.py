"""The marks of values without an Arrow form: `_unrepresentable` names their columns in each row."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from pgoutput_fast.merge.effect.column_names import naming_rows, with_names
from pgoutput_fast.merge.effect.schema import UNREPRESENTABLE

__all__ = ["with_marks"]


def with_marks(rows: pa.Table, formers: Mapping[str, str] | None = None) -> pa.Table:
    """Rows with the marks of some columns, in the order of these, and no others.

    Args:
        rows: the rows. Without `_unrepresentable`, they stay as they are.
        formers: {column: the name that its mark has in the rows}. By default the columns of the rows.

    >>> rows = pa.table({"b": [1, 2], "_unrepresentable": [["dropped"], ["c", "b"]]})
    >>> with_marks(rows)["_unrepresentable"].to_pylist()
    [None, ['b']]
    >>> with_marks(rows, {"b": "b", "d": "c"})["_unrepresentable"].to_pylist()
    [None, ['b', 'd']]
    """
    if UNREPRESENTABLE not in rows.column_names:
        return rows
    at = rows.column_names.index(UNREPRESENTABLE)
    formers = {name: name for name in rows.column_names} if formers is None else formers
    named = naming_rows(rows[UNREPRESENTABLE])
    found = {name: named[former] for name, former in formers.items() if former in named}
    return rows.set_column(at, rows.field(at), with_names(found, rows.num_rows).cast(rows.field(at).type))
