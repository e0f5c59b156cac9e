"""Iceberg tables with dates and times that Python's own dates lack: before the year 1, or behind 9999."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["leave_out_bounds", "with_bounds_or_without"]


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


def leave_out_bounds(transaction: Any) -> None:
    """Lets the snapshots of a table, this one and those behind it, have no bounds of dates and times."""
    from pyiceberg.types import DateType, TimestampType, TimestamptzType

    schema, properties = transaction.table_metadata.schema(), {}
    for name in schema.column_names:
        if isinstance(schema.find_type(name), DateType | TimestampType | TimestamptzType):
            properties[f"write.metadata.metrics.column.{name}"] = "counts"
    transaction.set_properties(properties)
