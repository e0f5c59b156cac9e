"""A cache in front of a database that forgets a row as soon as the row has changed.

    python cache_invalidator.py DSN

A web application keeps one `Cache`, and starts `keep_fresh` in a thread when it starts. This program shows it without a
web framework: it reads the row 1 of `orders` twice each second, and says when it asks the database.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg2

import pgoutput_fast as pgo

Key = tuple[Any, ...]


class Cache:
    """Rows by table and key. Several threads may use it."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, Key], Any] = {}
        self._forgotten: Counter[str] = Counter()
        self._lock = threading.Lock()

    def get(self, table: str, key: Key, load: Callable[[], Any]) -> Any:
        """The row. If it is not here, `load` reads it from the database."""
        with self._lock:
            if (table, key) in self._rows:
                return self._rows[table, key]
            before = self._forgotten[table]
        row = load()
        with self._lock:
            # If the table has changed meanwhile, the row may be the one from before the change. Do not keep it.
            if self._forgotten[table] == before:
                self._rows[table, key] = row
        return row

    def forget(self, table: str, keys: set[Key] | None) -> None:
        """Forgets rows of a table; all of them with None."""
        with self._lock:
            self._forgotten[table] += 1
            for each in [
                each for each in self._rows if each[0] == table and (keys is None or each[1] in keys)
            ]:
                del self._rows[each]


def keep_fresh(
    cache: Cache,
    keys: Mapping[str, Sequence[str]],
    dsn: str,
    slot: str,
    publications: Sequence[str],
    stop: threading.Event,
) -> None:
    """Forgets what changes, until `stop` is set.

    Args:
        cache: forgets the rows.
        keys: the key columns of each table that the cache may have.
    """
    columns = {name: list(key) for name, key in keys.items()}
    for decoded, acknowledge in pgo.follow(
        dsn, slot, publications, pgo.Options(transactions="committed", columns=columns), stop=stop
    ):
        for changes in decoded.changes:
            name = changes.relation.qualified_name
            if name in columns:
                # Rows of all kinds: if an update changes the key, its preimage has the old one.
                truncated = "truncate" in changes.batch.column("_change_type").to_pylist()
                rows = changes.batch.select(columns[name]).to_pylist()
                cache.forget(name, None if truncated else {tuple(row.values()) for row in rows})
        acknowledge()  # after the cache has forgotten, never before


def main() -> None:
    dsn = sys.argv[1]
    cache, stop = Cache(), threading.Event()
    arguments = (cache, {"public.orders": ["id"]}, dsn, "cache", ["shop"], stop)
    thread = threading.Thread(target=keep_fresh, args=arguments)
    thread.start()
    connection = psycopg2.connect(dsn)
    connection.autocommit = True

    def load() -> Any:
        print("read from the database")
        with connection.cursor() as cursor:
            cursor.execute("SELECT note FROM orders WHERE id = 1")
            return cursor.fetchone()

    try:
        while thread.is_alive():
            print(cache.get("public.orders", (1,), load))
            time.sleep(0.5)
    finally:
        stop.set()
        thread.join()
        connection.close()


if __name__ == "__main__":
    main()
