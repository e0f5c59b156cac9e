"""What identifies a row of a table in its changes, and when that is ambiguous."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.catalog.relations import Relation
from pgoutput_fast.catalog.user_types import UserTypes
from pgoutput_fast.protocol.reasons import Reason
from pgoutput_fast.schema.column_types import column_type_of
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.types import has_lists

__all__ = ["ambiguous_change", "ambiguous_key", "check_key", "key_of", "unchecked_array", "without_bound"]


def key_of(relation: Relation) -> tuple[str, ...]:
    """The columns that identify a row; empty if only the whole row does."""
    if relation.replica_identity not in ("d", "i"):
        return ()
    return tuple(column.name for column in relation.columns if column.key)


def without_bound(rejects: pa.Table | pa.RecordBatch, key: Collection[str]) -> pa.Table:
    """The rejects for arrays in key columns that lost their lower bound, as REJECTS_SCHEMA."""
    found = pa.Table.from_batches([rejects]) if isinstance(rejects, pa.RecordBatch) else rejects
    dropped = pc.equal(found.column("reason"), Reason.LOWER_BOUND.sentence)
    in_key = pc.is_in(found.column("column"), pa.array(list(key), pa.string()))
    return found.filter(pc.and_(dropped, in_key))


def ambiguous_change(
    rows: pa.Table | pa.RecordBatch, rejects: pa.Table, relation: Relation
) -> tuple[str, int] | None:
    """(message, LSN of the last commit) of changes whose key has an array that lost its lower bound.

    None if there are none.

    Args:
        rows: changes under one relation version.
        rejects: of these changes, and perhaps of others.
        relation: the version.
    """
    key = key_of(relation)
    if not rejects.num_rows or not key:
        return None
    dropped = without_bound(rejects, key)
    if not dropped.num_rows:
        return None
    found = rows.filter(pc.is_in(rows["_seq"], dropped["seq"].combine_chunks()))
    if not found.num_rows:
        return None
    of_these = dropped.filter(pc.is_in(dropped["seq"], pa.array(found["_seq"].to_numpy())))
    column = of_these["column"][0].as_py()
    return ambiguous_key(relation.qualified_name, column), int(pc.max(found["_commit_lsn"]).as_py())


def ambiguous_key(table: str, column: str) -> str:
    """The message for a table whose key has an array that lost its lower bound."""
    return (
        f"column {column!r} of the key of {table} has an array whose lower bound is not 1. Arrow drops the bound, so "
        "two rows may have the same key here. Change the value on the server, or give the table REPLICA IDENTITY FULL"
    )


def check_key(relation: Relation, types: UserTypes) -> None:
    """Checks that a change can name a row by the key, now and later.

    Raises:
        ValueError: for a column that refers to an object of the server: its text changes with the object's name.
    """
    key = key_of(relation)
    for column in relation.columns:
        if column.name in key and column_type_of(column, Options(), types).has("reg"):
            raise ValueError(
                f"column {column.name!r} of the key of {relation.qualified_name} names objects of the server. Its text "
                "changes when an object is renamed, and with the search_path, so rows cannot be found by it. Give the "
                "column the type oid, or use another key"
            )


def unchecked_array(schema: pa.Schema, key: Collection[str], before: Collection[str]) -> str | None:
    """The message if an array column is new in the key, so that lower bounds were dropped unchecked; else None.

    Args:
        schema: has the columns.
        key: the columns of the key now.
        before: those of the key before.
    """
    for name in key:
        if name not in before and name in schema.names and has_lists(schema.field(name).type):
            return f"its key now has the column {name!r}, whose arrays may not have been checked before"
    return None
