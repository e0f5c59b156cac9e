"""Commits single rows at a steady rate: `python -m benchmarks.mirror.steady DSN TABLE FIRST RATE COUNT`.

Prints the times after the commits, in seconds since 1970, as a JSON list. The rows have ascending ids.
"""

from __future__ import annotations

import json
import sys
import time

import psycopg2

from benchmarks.capture import ROWS

__all__ = ["main"]


def main(dsn: str, table: str, first: int, rate: float, count: int) -> list[float]:
    """Commits the rows. Returns the time after every commit."""
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    done = []
    with connection.cursor() as cursor:
        # With synchronous_commit, which is on, a walsender has a commit when it returns. Otherwise the commit waits for
        # the WAL writer, up to wal_writer_delay. The server's fsync is off, so nothing waits for the disk.
        statement = ROWS.format(table=table).replace("%s", "$1").replace("%%", "%")
        cursor.execute(f"PREPARE one (int4) AS {statement}")
        began = time.time()
        for number in range(count):
            time.sleep(max(0.0, began + number / rate - time.time()))
            cursor.execute(f"EXECUTE one ({first + number})")
            done.append(time.time())
    connection.close()
    return done


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))))
