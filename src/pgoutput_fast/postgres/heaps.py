"""Safe reads of users' tables by name.

The owner of a schema may rename it at any time and give its name to another one. A view in place of the table would
then call functions of its owner as the reading user, who may be a superuser.
"""

from __future__ import annotations

from typing import Any

import psycopg2.errors

from pgoutput_fast.catalog.identifiers import parse_qualified_name

__all__ = ["hold_schema", "is_standby", "is_superuser", "lock_heap", "refuse_views"]

# The setting exists from 12.20, 13.16, 14.13, 15.8, 16.4 and 17 on. System views, such as pg_settings, stay readable.
_REFUSE_VIEWS = """
SELECT pg_catalog.set_config(name, 'view, foreign-table', false) FROM pg_catalog.pg_settings
WHERE name OPERATOR(pg_catalog.=) 'restrict_nonsystem_relation_kind'
"""


def refuse_views(cursor: Any) -> bool:
    """Makes the session refuse to read users' views and foreign tables. Returns False if the server cannot."""
    cursor.execute(_REFUSE_VIEWS)
    return bool(cursor.rowcount)


def is_superuser(connection: Any) -> bool:
    """Whether a session has superuser rights, which `hold_schema` needs."""
    return bool(connection.get_parameter_status("is_superuser") == "on")


def is_standby(connection: Any) -> bool:
    """Whether a session is of a standby of PostgreSQL 14 or later."""
    return bool(connection.get_parameter_status("in_hot_standby") == "on")


def hold_schema(cursor: Any, table: str) -> None:
    """Locks the schema of a table against a rename or drop, and makes the transaction read-only.

    The lock assigns the transaction an id, so new slots wait for its end. On a standby, there is no such lock: the
    transaction gives up the rights of a superuser instead, and can read all tables.

    Args:
        cursor: in a transaction that may write, unless the server is a standby.
        table: the qualified name, quoted as in SQL.

    Raises:
        psycopg2.errors.InvalidSchemaName, psycopg2.errors.SerializationFailure: if the transaction's snapshot has no
            such schema, or if the schema was renamed since.
    """
    if is_standby(cursor.connection):
        cursor.execute("SET LOCAL ROLE pg_read_all_data")
        return
    parts = parse_qualified_name(table)
    # The name is part of a key, so a rename waits for this lock. GRANT does not.
    cursor.execute(
        "SELECT FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) %s FOR KEY SHARE",
        (parts[0] if parts is not None else None,),
    )
    if not cursor.rowcount:
        raise psycopg2.errors.InvalidSchemaName(f"there is no schema of {table}")
    cursor.execute("SET TRANSACTION READ ONLY")


def lock_heap(cursor: Any, table: str) -> tuple[int | None, int | None]:
    """Locks a heap against changes of its definition and returns its (oid, filenode).

    The filenode is None for a relation without storage, such as a view.

    Raises:
        psycopg2.Error: if the table does not exist or cannot be locked.
    """
    cursor.execute(f"LOCK TABLE ONLY {table} IN ACCESS SHARE MODE")
    cursor.execute(
        "SELECT c.oid::pg_catalog.int8, pg_catalog.pg_relation_filenode(c.oid)::pg_catalog.int8 "
        "FROM (SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid AS oid) c",
        (table,),
    )
    oid, filenode = cursor.fetchone()
    return oid, filenode
