"""Tables locked by other sessions: queries that skip them, and the holders of the locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pgoutput_fast.base.display import escaped

__all__ = ["LOCKED", "holders", "open_transactions", "unlocked_rows"]

LOCKED = """
ARRAY(SELECT l.relation FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_database d
       ON d.oid OPERATOR(pg_catalog.=) l.database AND d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
      WHERE l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.mode OPERATOR(pg_catalog.=) 'AccessExclusiveLock')
"""
"""An SQL expression for the oids of unreadable relations: AccessExclusiveLock is held on them or requested."""

# For locks taken after the evaluation of LOCKED.
_LOCK_MS = 1000

# Without the statement, which may contain values.
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
    """The rows of a query that skips `LOCKED` relations but locks others.

    Returns:
        No row if another session locks one of these meanwhile.

    Raises:
        psycopg2.Error: if a query fails.
    """
    # Readers of a mirror's output import this module, too, without psycopg2.
    import psycopg2.errors
    import psycopg2.extensions

    # A transaction of the caller stays open.
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
    """A text about the sessions that have locked a relation or wait to lock it.

    Raises:
        psycopg2.Error: if a query fails.
    """
    cursor.execute(_HOLDERS, (oid,))
    lines = [
        f"process {pid} of the server {'has locked it' if granted else 'waits to lock it'}{_facts(*session)}"
        for pid, granted, *session in cursor.fetchall()
    ]
    return "; ".join(lines) or "nobody holds the lock any more"


def open_transactions(cursor: Any) -> str:
    """A text about the oldest open transactions that may write.

    Raises:
        psycopg2.Error: if a query fails.
    """
    cursor.execute(_OPEN)
    lines = [f"process {pid} of the server{_facts(*session)}" for pid, *session in cursor.fetchall()]
    cursor.execute(_PREPARED)
    (prepared,) = cursor.fetchone()
    return "; ".join([*lines, *([f"{prepared} prepared transactions"] if prepared else [])])


def _facts(application: str, state: str, began: str | None) -> str:
    since = f"its transaction began at {began} UTC" if began is not None else ""
    facts = ", ".join(filter(None, (escaped(application), state, since)))
    return f" ({facts})" if facts else ""
