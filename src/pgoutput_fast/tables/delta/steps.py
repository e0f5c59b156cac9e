"""Commits that prepare a table for another commit: they add columns or a feature, and keep the position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["add_columns", "allow_timestamps"]


def add_columns(table: Any, new: Sequence[Any], properties: Any, newest: Callable[[], Any]) -> Any:
    """Adds columns.

    Args:
        table: a `DeltaTable` of delta-rs.
        new: the columns, fields of delta-rs.
        properties: of the commit.
        newest: opens the newest version. Returns None if another writer has moved its position.

    Returns:
        The table with the columns.
    """

    def has(table: Any) -> bool:
        return {field.name for field in table.schema().fields}.issuperset(field.name for field in new)

    return _after(table, lambda: table.alter.add_columns(new, commit_properties=properties), has, newest)


def allow_timestamps(table: Any, schema: Any, properties: Any, newest: Callable[[], Any]) -> Any:
    """Enables timestamps without a time zone, before the columns of a table are replaced by some that have them.

    `alter.add_columns` does so by itself, but not an overwrite.

    Args:
        table, properties, newest: as for `add_columns`.
        schema: the new columns, a schema of delta-rs.
    """
    from deltalake import TableFeatures

    def has(table: Any) -> bool:
        return "timestampNtz" in (table.protocol().reader_features or ())

    def add() -> None:
        feature = TableFeatures.TimestampWithoutTimezone
        table.alter.add_feature(feature, allow_protocol_versions_increase=True, commit_properties=properties)

    return table if has(table) or "timestamp_ntz" not in schema.to_json() else _after(table, add, has, newest)


def _after(
    table: Any, step: Callable[[], object], has: Callable[[Any], bool], newest: Callable[[], Any]
) -> Any:
    """The table after a step. `has` says whether a version has what the step adds."""
    from deltalake.exceptions import CommitFailedError

    number = table.version()
    try:
        step()
    except CommitFailedError:
        # If the answer of a store was lost, delta-rs retries, and meets its own commit.
        found = newest()
        if found is None or found.version() != number + 1 or not has(found):
            raise
        return found
    return table
