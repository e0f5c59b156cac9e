"""Iceberg tables with dates and times that Python's own dates lack: before the year 1, or behind 9999."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["choose_bounds", "with_bounds_or_without"]


def with_bounds_or_without(commit: Callable[[bool], None]) -> None:
    """Commits with the least and the largest value of each column, and without those of dates if pyiceberg fails.

    pyiceberg reads them from a file's statistics as Python's dates. Readers use them only to leave out files.

    Args:
        commit: makes the commit, all or nothing. Its argument says whether dates and times have bounds.
    """
    try:
        commit(True)
    except OverflowError:
        commit(False)


def choose_bounds(transaction: Any, *, of_dates: bool) -> None:
    """Says of which columns the snapshots of a table, this one and those behind it, have bounds.

    Floats have none, as files have none of them (`rows_writer`).

    Args:
        transaction: of pyiceberg.
        of_dates: whether dates and times have some.
    """
    from pyiceberg.types import DateType, DoubleType, FloatType, TimestampType, TimestamptzType

    schema, modes = transaction.table_metadata.schema(), {}
    for name in schema.column_names:
        kind = schema.find_type(name)
        if isinstance(kind, FloatType | DoubleType):
            modes[f"write.metadata.metrics.column.{name}"] = "none"
        elif not of_dates and isinstance(kind, DateType | TimestampType | TimestamptzType):
            modes[f"write.metadata.metrics.column.{name}"] = "counts"
    known = transaction.table_metadata.properties
    modes = {name: mode for name, mode in modes.items() if known.get(name) != mode}
    if modes:
        transaction.set_properties(modes)
