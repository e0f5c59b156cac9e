"""Rows that count their own updates, so that a change that is lost or applied twice is detected."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import psycopg2
import pyarrow.compute as pc

from support import pg
from support.background import Background
from support.mirrors import Place, expect_equal, expect_replayed, history_of

__all__ = ["SCHEMA", "TABLE", "Counting", "expect_counted"]

TABLE = "public.counted"
_ROWS = 20
SCHEMA = [
    "CREATE TABLE counted (id int PRIMARY KEY, n int NOT NULL, big text)",
    "ALTER TABLE counted ALTER big SET STORAGE EXTERNAL",
    f"INSERT INTO counted SELECT g, 0, repeat('x', 3000) FROM generate_series(1, {_ROWS}) g",
    "CREATE PUBLICATION mirrored FOR TABLE counted",
]


class Counting(Background):
    """Counts up random rows in the background during a with block, even while the server crashes."""

    def __init__(self, database: pg.Database) -> None:
        super().__init__()
        self._database, self._dice = database, random.Random(1)
        self.transactions = 0

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._database.session() as connection, connection.cursor() as cursor:
                    while not self._stop.wait(0.01):
                        ids = sorted(self._dice.sample(range(1, _ROWS + 1), 3))
                        cursor.execute("UPDATE counted SET n = n + 1 WHERE id = ANY (%s)", (ids,))
                        self.transactions += 1
            except psycopg2.Error:
                self._stop.wait(0.1)


def expect_counted(place: Place, **more: Any) -> None:
    """Checks that the current table equals the server's, and that the history has each update of each row once.

    Args:
        more: as for `expect_equal`.
    """
    expect_equal(place, TABLE, **more)
    expect_replayed(place, TABLE, ["id"])
    counted: dict[int, list[int]] = {}
    rows = history_of(place.target, TABLE)
    rows = rows.filter(pc.not_equal(rows["_change_type"], "alter"))
    for row in rows.select(["id", "n"]).to_pylist():
        counted.setdefault(row["id"], []).append(row["n"])
    assert len(counted) == _ROWS
    for numbers in counted.values():
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert Counter(rows["_change_type"].to_pylist()).keys() <= {"insert", "update_postimage"}
