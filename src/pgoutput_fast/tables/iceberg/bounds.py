"""Iceberg tables with dates and times outside the range of Python's: before the year 1, or after 9999."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["choose_bounds", "with_bounds_or_without"]


def with_bounds_or_without(commit: Callable[[bool], None]) -> None:
    """Commits with the least and largest values of columns, and without those of dates if pyiceberg fails.

    pyiceberg reads them from a file's statistics as Python's dates. Readers use them only to skip files.

    Args:
        commit: makes the commit, all or nothing. Its argument tells whether dates and times have bounds.
    """
    try:
        commit(True)
    except OverflowError:
        commit(False)


def choose_bounds(transaction: Any, *, of_dates: bool) -> None:
    """Chooses the columns for which this snapshot and later ones have bounds.

    Floats have none, because the files have none (`rows_writer`).

    Args:
        transaction: of pyiceberg.
        of_dates: whether dates and times have bounds.
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
