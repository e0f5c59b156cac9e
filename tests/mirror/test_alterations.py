"""A change names a row as the server has it now, and the mirror has it as it was: it loads the table, as its page says."""

from __future__ import annotations

import threading
from typing import Any

import psycopg2
import pytest

from pgoutput_fast.mirror import Mirror
from pgoutput_fast.mirror.server import ServerView
from pgoutput_fast.postgres import row_age
from support.forms import and_slow
from support.mirrors import Following, Place, current_of, expect_equal, lose_rows, place

__all__ = ["place"]

# How the table is made, what is done to it, and the change behind it. No table has a key, except for the last one.
_CASES = {
    "label": (
        ["CREATE TYPE mood AS ENUM ('a', 'b')", "CREATE TABLE t (id int, m mood DEFAULT 'a')"],
        ["ALTER TYPE mood RENAME VALUE 'a' TO 'aa'"],
        "DELETE FROM t WHERE id = 1",
    ),
    "attribute": (
        ["CREATE TYPE pair AS (x int, y int)", "CREATE TABLE t (id int, m pair DEFAULT '(1,2)')"],
        ["ALTER TYPE pair ADD ATTRIBUTE z int"],
        "UPDATE t SET id = 9 WHERE id = 1",
    ),
    "rewritten": (
        ["CREATE TABLE t (id int, n int DEFAULT 1)"],
        ["ALTER TABLE t ALTER n TYPE int USING n + 1"],
        "DELETE FROM t WHERE id = 1",
    ),
    "large": (
        [
            "CREATE TYPE mood AS ENUM ('a', 'b', 'c')",
            "CREATE TABLE t (m mood, id int DEFAULT 0, note text DEFAULT 'n', PRIMARY KEY (m, id))",
            "ALTER TABLE t ALTER note SET STORAGE EXTERNAL",
            "INSERT INTO t VALUES ('a', 7, repeat('long', 2000))",
        ],
        ["ALTER TYPE mood RENAME VALUE 'a' TO 'aa'"],
        "UPDATE t SET id = 8 WHERE id = 7",
    ),
}


def _make(place: Place, case: str) -> None:
    made, _, _ = _CASES[case]
    rows = (
        "INSERT INTO t (m) VALUES ('b'), ('c')" if case == "large" else "INSERT INTO t (id) VALUES (1), (2)"
    )
    database = place.database
    database.execute(*made, rows)
    if case != "large":
        database.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    database.execute(
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO other VALUES (1)",
        "CREATE PUBLICATION mirrored FOR TABLE t, other",
    )


def _states(mirror: Mirror) -> dict[str, str]:
    return {each.table: each.state for each in mirror.status()}


def _expect_rows(place: Place, case: str) -> None:
    expect_equal(place, "public.other")
    if case != "attribute":
        return expect_equal(place, "public.t")
    rows = current_of(place.target, "public.t").select(["id", "m"]).sort_by("id").to_pylist()
    assert rows == [{"id": k, "m": {"x": 1, "y": 2, "z": None}} for k in (2, 9)]


@pytest.mark.parametrize(
    ("case", "in_step"),
    and_slow(
        [("large", True)],
        [("label", False), ("label", True), *((case, False) for case in _CASES if case != "label")],
    ),
)
def test_a_row_that_was_altered(place: Place, case: str, in_step: bool) -> None:
    _make(place, case)
    place.run(in_step=in_step)
    _, altered, change = _CASES[case]
    with place.mirror(in_step=in_step) as mirror, Following(mirror) as following:
        place.database.execute("INSERT INTO other VALUES (2)")
        following.until(lambda: current_of(place.target, "public.other").num_rows == 2)
        # The mirror has looked at the catalogs, and looks again in half a minute.
        place.database.execute(*altered)
        place.database.execute(change, "INSERT INTO other VALUES (3)")
        following.until(lambda: current_of(place.target, "public.other").num_rows == 3)
        place.expect_no_errors(mirror)
        _expect_rows(place, case)
    place.run(in_step=in_step)
    _expect_rows(place, case)


@pytest.mark.slow
def test_a_row_that_somebody_removed(place: Place) -> None:
    _make(place, "label")
    place.run()
    lose_rows(place, "public.t")
    place.database.execute("DELETE FROM t WHERE id = 1")
    with place.mirror() as mirror:
        mirror.run(until_lsn="now")
        (table,) = [each for each in mirror.status() if each.table == "public.t"]
    assert table.state == "stopped"
    assert "public.t lacks rows that changes remove: something else changed it" in (table.error or "")


@pytest.mark.slow
def test_a_table_that_is_dropped_before_its_row_is_missed(place: Place) -> None:
    _make(place, "label")
    place.run()
    with place.mirror() as mirror, Following(mirror) as following:
        place.database.execute("INSERT INTO other VALUES (2)")
        following.until(lambda: current_of(place.target, "public.other").num_rows == 2)
        place.database.execute(
            "ALTER TYPE mood RENAME VALUE 'a' TO 'aa'", "DELETE FROM t WHERE id = 1", "DROP TABLE t"
        )
        following.until(lambda: _states(mirror)["public.t"] == "unpublished")
        assert _states(mirror)["public.other"] == "follow"


@pytest.mark.slow
def test_partitions_behind_a_lock(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can tell whether an attached partition has old rows. A load is right in any case."""
    monkeypatch.setattr(row_age, "_LOCK_MS", 50)
    database, ask, is_locked = place.database, ServerView.has_row, threading.Event()

    def late(*arguments: Any) -> bool | None:
        is_locked.wait(240)  # the lock cannot come before the change
        return ask(*arguments)

    monkeypatch.setattr(ServerView, "has_row", late)
    columns = "(id int, note text)"
    database.execute(
        f"CREATE TABLE t {columns} PARTITION BY RANGE (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE t_2 {columns}",
        "INSERT INTO t VALUES (1, 'a')",
        "INSERT INTO t_2 VALUES (11, 'b'), (12, 'c')",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("t", "t_1", "t_2")),
        "CREATE PUBLICATION mirrored FOR TABLE t WITH (publish_via_partition_root = true)",
    )
    place.run()
    with place.mirror() as mirror, Following(mirror) as following:
        database.execute("INSERT INTO t VALUES (2, 'a')")
        following.until(lambda: current_of(place.target, "public.t").num_rows == 2)
        with database.session() as locking, locking.cursor() as cursor:
            database.execute(
                "ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM (10) TO (20)",
            )
            database.execute("DELETE FROM t WHERE id = 11")
            cursor.execute("BEGIN")
            cursor.execute("LOCK TABLE t_2 IN ACCESS EXCLUSIVE MODE")
            is_locked.set()
            following.until(lambda: mirror.status()[0].state != "follow")
            assert mirror.status()[0].state == "load"
            cursor.execute("ROLLBACK")
        following.until(lambda: mirror.status()[0].state == "follow")
    place.run()
    expect_equal(place, "public.t")


@pytest.mark.slow
def test_the_server_is_away_when_it_is_asked(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror tries again, and the table does not stop."""
    _make(place, "label")
    place.run()
    ask, calls = ServerView.fingerprints, []

    def cut(self: ServerView) -> Any:
        calls.append(self)
        if len(calls) in (2, 3):  # the first look is that of the beginning
            raise psycopg2.OperationalError("server closed the connection unexpectedly")
        return ask(self)

    monkeypatch.setattr(ServerView, "fingerprints", cut)
    with place.mirror(retry_seconds=60) as mirror, Following(mirror) as following:
        place.database.execute("INSERT INTO t (id) VALUES (3)")
        following.until(lambda: current_of(place.target, "public.t").num_rows == 3)
        place.database.execute("ALTER TYPE mood RENAME VALUE 'a' TO 'aa'", "DELETE FROM t WHERE id = 1")
        following.until(lambda: current_of(place.target, "public.t").num_rows == 2)
        assert len(calls) > 3
        place.expect_no_errors(mirror)
        expect_equal(place, "public.t")
