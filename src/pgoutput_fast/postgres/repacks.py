"""The tables that a running REPACK (CONCURRENTLY) rewrites (PostgreSQL 19 and later).

Its transaction keeps the table locked until it ends, so no other session can alter the table meanwhile. Any user may
see locks, and that a session runs REPACK, but not for which table.
"""

from __future__ import annotations

from typing import Any

__all__ = ["running_repacks"]

_SINCE = 190000

# Only REPACK (CONCURRENTLY) has a weak lock on the table, and strong ones only on a table that no other session sees.
_REPACKS = """
WITH l AS MATERIALIZED (
    SELECT l.pid, l.mode, l.locktype, l.transactionid, l.relation, c.oid IS NOT NULL AS is_visible
    FROM pg_catalog.pg_stat_progress_repack p
    JOIN pg_catalog.pg_locks l ON l.pid OPERATOR(pg_catalog.=) p.pid
    LEFT JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) l.relation
    WHERE p.datname OPERATOR(pg_catalog.=) pg_catalog.current_database() AND l.granted)
SELECT t.relation::pg_catalog.int8, x.transactionid::pg_catalog.text::pg_catalog.int8
FROM l t JOIN l x ON x.pid OPERATOR(pg_catalog.=) t.pid
WHERE t.mode OPERATOR(pg_catalog.=) 'ShareUpdateExclusiveLock' AND t.is_visible
  AND x.locktype OPERATOR(pg_catalog.=) 'transactionid' AND x.mode OPERATOR(pg_catalog.=) 'ExclusiveLock'
  AND (SELECT pg_catalog.bool_and(NOT s.is_visible) FROM l s
       WHERE s.pid OPERATOR(pg_catalog.=) t.pid AND s.locktype OPERATOR(pg_catalog.=) 'relation'
         AND s.mode OPERATOR(pg_catalog.=) 'AccessExclusiveLock')
"""


def running_repacks(cursor: Any) -> dict[int, int]:
    """{oid: the transaction that repacks this table}. If it becomes the last one that wrote the table's entry in
    pg_class, nothing else has altered the table since this call.

    Raises:
        psycopg2.Error: if a query fails.
    """
    if cursor.connection.server_version < _SINCE:
        return {}
    cursor.execute(_REPACKS)
    return dict(cursor.fetchall())
