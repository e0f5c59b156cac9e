"""Checks for rows of a table, or rows older than a transaction; and errors that concern one table only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg2
import psycopg2.errors

from pgoutput_fast.postgres.heaps import hold_schema, is_standby, is_superuser, lock_heap, refuse_views
from pgoutput_fast.postgres.refusals import advice
from pgoutput_fast.postgres.session import session

__all__ = ["RowAgeError", "has_row", "of_one_table"]

# A lock may be held for long; the caller retries.
_LOCK_MS = 2000

_OLDER = (
    "WHERE pg_catalog.age(xmin) OPERATOR(pg_catalog.>) "
    "pg_catalog.age(%(before)s::pg_catalog.text::pg_catalog.xid)"
)


class RowAgeError(RuntimeError):
    """The rows of a table cannot be queried now, such as during a lock."""


def has_row(dsn: str, table: str, before: int | None = None) -> bool | None:
    """Whether a heap has a row.

    Args:
        dsn: of the database.
        table: the heap: its qualified name, quoted as in SQL.
        before: only rows of transactions before this one count, 32 bits; None for all rows.

    Returns:
        None if this is unknown: the table is gone, or the user may not read it.

    Raises:
        RowAgeError: if the table cannot be queried now, such as during a lock.
    """
    which = "" if before is None else _OLDER
    try:
        with session(dsn) as cursor:
            cursor.execute(f"SET lock_timeout = {_LOCK_MS}")
            cursor.execute("SET row_security = off")  # an error instead of hidden rows
            holds = not refuse_views(cursor) and is_superuser(cursor.connection)
            with suppress(psycopg2.ProgrammingError, psycopg2.NotSupportedError):
                may_write = holds and not is_standby(cursor.connection)
                cursor.execute(f"BEGIN READ {'WRITE' if may_write else 'ONLY'}")
                if holds:
                    hold_schema(cursor, table)
                if lock_heap(cursor, table)[1] is not None:
                    cursor.execute(
                        f"SELECT EXISTS (SELECT 1 FROM ONLY {table} {which})", {"before": str(before)}
                    )
                    return bool(cursor.fetchone()[0])
    except psycopg2.Error as problem:
        raise RowAgeError(str(problem).strip()) from problem
    return None


@contextmanager
def of_one_table(table: str) -> Iterator[None]:
    """Converts an error of the block into one that says that the server refuses to read a table.

    Raises:
        ValueError: if the server has refused a statement itself, such as for a missing privilege on the table.
    """
    try:
        yield
    except (psycopg2.ProgrammingError, psycopg2.NotSupportedError) as problem:
        message = str(problem).strip().partition("\n")[0]
        raise ValueError(
            f"the server refuses to read {table} ({message}). {advice(message)}, or do not publish it"
        ) from problem
