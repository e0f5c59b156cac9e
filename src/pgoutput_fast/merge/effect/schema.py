"""The columns of a current table."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["COMMIT_LSN", "UNREPRESENTABLE", "current_schema"]

# Columns of a current table after those of its relation.
COMMIT_LSN = "_commit_lsn"
UNREPRESENTABLE = "_unrepresentable"


def current_schema(columns: pa.Schema) -> pa.Schema:
    """The schema of a current table: the relation's columns, and then those of the mirror."""
    added = [pa.field(COMMIT_LSN, pa.int64()), pa.field(UNREPRESENTABLE, pa.list_(pa.string()))]
    return pa.schema([*(pa.field(field.name, field.type) for field in columns), *added])
