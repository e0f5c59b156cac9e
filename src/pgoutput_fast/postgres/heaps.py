"""Reads of users' tables by name. Whoever owns a schema may rename it at any moment, and give its name to another one.

A view in place of the table would call functions of its owner as the user who reads, who may be a superuser.
"""

from __future__ import annotations

from typing import Any

import psycopg2.errors

from pgoutput_fast.catalog.identifiers import parse_qualified_name

__all__ = ["hold_schema", "is_superuser", "lock_heap", "refuse_views"]

# Servers have it from 12.20, 13.16, 14.13, 15.8, 16.4 and 17 on. Views of the system, such as this one, stay readable.
_REFUSE_VIEWS = """
SELECT pg_catalog.set_config(name, 'view, foreign-table', false) FROM pg_catalog.pg_settings
WHERE name OPERATOR(pg_catalog.=) 'restrict_nonsystem_relation_kind'
"""


def refuse_views(cursor: Any) -> bool:
    """From now on the session refuses to read users' views and foreign tables. Returns False if the server cannot."""
    cursor.execute(_REFUSE_VIEWS)
    return bool(cursor.rowcount)


def is_superuser(connection: Any) -> bool:
    """Whether a session has the rights of a superuser. Only a superuser can hold a schema."""
    return bool(connection.get_parameter_status("is_superuser") == "on")


def hold_schema(cursor: Any, table: str) -> None:
    """Until the transaction ends, nobody can rename or drop the schema of a table. The transaction becomes read-only.

    The transaction gets an id by this, so slots that somebody creates meanwhile wait for its end.

    Args:
        cursor: in a transaction that may write.
        table: the qualified name, quoted as in SQL.

    Raises:
        psycopg2.errors.InvalidSchemaName, psycopg2.errors.SerializationFailure: if the transaction's snapshot has no
            such schema, or if the schema was renamed since.
    """
    parts = parse_qualified_name(table)
    # The name is a part of a key, so a rename waits for this lock. GRANT does not.
    cursor.execute(
        "SELECT FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) %s FOR KEY SHARE",
        (parts[0] if parts is not None else None,),
    )
    if not cursor.rowcount:
        raise psycopg2.errors.InvalidSchemaName(f"there is no schema of {table}")
    cursor.execute("SET TRANSACTION READ ONLY")


def lock_heap(cursor: Any, table: str) -> tuple[int | None, int | None]:
    """Locks a heap against changes of its definition, until the transaction ends. Returns its (oid, filenode).

    The filenode is None for what has no rows of its own, such as a view.

    Raises:
        psycopg2.Error: if there is no such table, or the lock is not to be had.
    """
    cursor.execute(f"LOCK TABLE ONLY {table} IN ACCESS SHARE MODE")
    cursor.execute(
        "SELECT c.oid::pg_catalog.int8, pg_catalog.pg_relation_filenode(c.oid)::pg_catalog.int8 "
        "FROM (SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid AS oid) c",
        (table,),
    )
    oid, filenode = cursor.fetchone()
    return oid, filenode
