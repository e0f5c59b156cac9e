"""Current tables of any format, with what applies effects to them."""

from __future__ import annotations

from pgoutput_fast.merge.current_table import CurrentTable
from pgoutput_fast.merge.duckdb import DuckDBMerge
from pgoutput_fast.merge.local import LocalMerge
from pgoutput_fast.storage.stores import Store
from pgoutput_fast.tables.duckdb import DuckDBCurrent
from pgoutput_fast.tables.file_table import CurrentFileTable
from pgoutput_fast.tables.formats import open_current
from pgoutput_fast.tables.options import TableOptions

__all__ = ["open_current_table"]


def open_current_table(format: str, store: Store, table: str, options: TableOptions) -> CurrentTable:
    """Opens a current table, which need not exist yet, to apply effects in this process.

    The arguments are those of `open_current`.
    """
    current = open_current(format, store, table, options)
    if isinstance(current, DuckDBCurrent):
        return DuckDBMerge(current)
    assert isinstance(current, CurrentFileTable)
    return LocalMerge(current)
