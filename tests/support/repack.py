"""REPACK (CONCURRENTLY) of PostgreSQL 19 and later."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from support import pg
from support.capturing import wait_until

__all__ = ["repacking"]

_WAITS = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessExclusiveLock' AND NOT granted"


@contextlib.contextmanager
def repacking(database: pg.Database, table: str) -> Iterator[None]:
    """A REPACK (CONCURRENTLY) that has copied a table, and waits for a lock until the block ends. Then it completes."""
    running = threading.Thread(target=lambda: database.execute(f"REPACK (CONCURRENTLY) {table}"))
    with database.session() as reader, reader.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT FROM {table}")
        running.start()
        try:
            wait_until(lambda: database.execute(_WAITS) == [(1,)])
            yield
        finally:
            cursor.execute("ROLLBACK")
            running.join()
