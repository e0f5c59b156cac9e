"""A first load: what is loaded stays loaded over a kill, and the capture runs meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from pgoutput_fast.capture import find_slot
from support.capturing import wait_until
from support.mirrors import Place, expect_equal, expect_replayed, loads_of, place

__all__ = ["place"]

_CURRENT, _HISTORY = "pgoutput_fast.merge.local", "pgoutput_fast.mirror.follow.history"
_TABLES = ("public.t", "public.u")


@pytest.fixture
def filled(place: Place) -> Place:
    for table in ("t", "u"):
        place.database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {table} SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g",
        )
    place.database.execute("CREATE PUBLICATION mirrored FOR TABLE t, u")
    return place


def _expect_whole(place: Place) -> None:
    for table in _TABLES:
        expect_equal(place, table)
        expect_replayed(place, table, ["id"])


def test_a_table_that_is_loaded_stays_loaded(filled: Place) -> None:
    filled.killed([_CURRENT, "LocalMerge.replace", 2])
    slot = find_slot(filled.database.dsn, filled.slot)
    assert slot is not None
    filled.database.execute(
        "UPDATE t SET v = 'y' WHERE id < 10", "DELETE FROM u WHERE id < 10", "INSERT INTO u VALUES (0)"
    )
    filled.run()
    assert [loads_of(filled, each) for each in _TABLES] == [1, 1]
    again = find_slot(filled.database.dsn, filled.slot)
    assert again is not None
    assert (again.confirmed_flush_lsn or 0) > (slot.confirmed_flush_lsn or 0)
    _expect_whole(filled)


def test_the_slot_moves_during_the_load(filled: Place) -> None:
    """The segments wait in the target, and the server need not keep their WAL."""
    dsn = filled.database.dsn

    def confirmed() -> int:
        slot = find_slot(dsn, filled.slot)
        return 0 if slot is None else slot.confirmed_flush_lsn or 0

    def progress(now: Any) -> None:
        if now.table == "public.t":
            ((lsn,),) = filled.database.execute(
                "UPDATE t SET v = 'y' WHERE id < 10",
                "INSERT INTO u VALUES (-1)",
                "SELECT (pg_current_wal_lsn() - '0/0')::bigint",
            )
            wait_until(lambda: confirmed() >= lsn)
            moved.append(lsn)

    moved: list[int] = []
    filled.run(progress=progress)
    assert moved
    _expect_whole(filled)
