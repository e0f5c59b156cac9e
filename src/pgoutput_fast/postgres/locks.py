"""Locks that others hold on tables: what can be asked in spite of them, and who holds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgoutput_fast.display import escaped

__all__ = ["LOCKED", "holders", "open_transactions", "unlocked_rows"]

LOCKED = """
ARRAY(SELECT l.relation FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d
       ON d.oid OPERATOR(pg_catalog.=) l.database AND d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
      WHERE l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.mode OPERATOR(pg_catalog.=) 'AccessExclusiveLock')
"""
"""An SQL expression: the oids of the relations that nobody can read now: somebody has locked them or waits for it."""

# For a lock that comes after the look at LOCKED.
_LOCK_MS = 1000

# Nothing of a statement, which may have values.
_SESSION = """
coalesce(a.application_name, ''), coalesce(a.state, ''), pg_catalog.to_char(a.xact_start, 'YYYY-MM-DD HH24:MI:SS')
"""
_HOLDERS = f"""
SELECT DISTINCT l.pid, l.granted, {_SESSION}
FROM pg_catalog.pg_locks l
LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid OPERATOR(pg_catalog.=) l.pid
WHERE l.relation OPERATOR(pg_catalog.=) %s AND l.mode OPERATOR(pg_catalog.=) 'AccessExclusiveLock'
  AND l.pid OPERATOR(pg_catalog.<>) pg_catalog.pg_backend_pid()
ORDER BY 2 DESC, 1
"""

_OPEN = f"""
SELECT a.pid, {_SESSION}
FROM pg_catalog.pg_stat_activity a WHERE a.backend_xid IS NOT NULL ORDER BY a.xact_start LIMIT 3
"""
_PREPARED = "SELECT pg_catalog.count(*) FROM pg_catalog.pg_prepared_xacts"


def unlocked_rows(cursor: Any, query: str, arguments: Sequence[Any]) -> list[Any]:
    """The rows of a query that leaves out what is `LOCKED`, but takes locks of all else.

    Returns:
        No row if somebody locks something meanwhile.

    Raises:
        psycopg2.Error: if the server cannot be asked.
    """
    # Those who only read what a mirror wrote import this module, too, and have no psycopg2.
    import psycopg2.errors
    import psycopg2.extensions

    # A transaction of the caller goes on.
    is_within = cursor.connection.info.transaction_status != psycopg2.extensions.TRANSACTION_STATUS_IDLE
    cursor.execute("SAVEPOINT unlocked" if is_within else "BEGIN")
    try:
        cursor.execute(f"SET LOCAL lock_timeout = {_LOCK_MS}")
        cursor.execute(query, arguments)
        rows = list(cursor.fetchall())
    except psycopg2.errors.LockNotAvailable:
        rows = []
    cursor.execute("ROLLBACK TO unlocked; RELEASE unlocked" if is_within else "ROLLBACK")
    return rows


def holders(cursor: Any, oid: int) -> str:
    """Who holds the lock of a relation, or waits for it before all others. For a person.

    Raises:
        psycopg2.Error: if the server cannot be asked.
    """
    cursor.execute(_HOLDERS, (oid,))
    said = [
        f"process {pid} of the server {'has locked it' if granted else 'waits to lock it'}{_facts(*session)}"
        for pid, granted, *session in cursor.fetchall()
    ]
    return "; ".join(said) or "nobody holds the lock any more"


def open_transactions(cursor: Any) -> str:
    """The oldest transactions that are open and may change something. For a person.

    Raises:
        psycopg2.Error: if the server cannot be asked.
    """
    cursor.execute(_OPEN)
    said = [f"process {pid} of the server{_facts(*session)}" for pid, *session in cursor.fetchall()]
    cursor.execute(_PREPARED)
    (prepared,) = cursor.fetchone()
    return "; ".join([*said, *([f"{prepared} prepared transactions"] if prepared else [])])


def _facts(application: str, state: str, began: str | None) -> str:
    since = f"its transaction began at {began} UTC" if began is not None else ""
    facts = ", ".join(filter(None, (escaped(application), state, since)))
    return f" ({facts})" if facts else ""
