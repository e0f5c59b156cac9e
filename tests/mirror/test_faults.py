"""Mirrors that are killed, between every two steps and at any moment: the next one goes on, and nothing is lost or twice.

`PGOUTPUT_FAST_KILLS` says how often the test of random moments kills; `make soak` does so many times.
"""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest

from pgoutput_fast.mirror import points
from support import transfers
from support.fresh import fresh_total
from support.mirrors import Place, expect_equal, expect_replayed, expect_same_total, place

__all__ = ["place"]

KILLS = int(os.environ.get("PGOUTPUT_FAST_KILLS", "3"))
SOAK = pytest.mark.skipif(KILLS < 4, reason="make soak does this")
TABLES = ["public.left_accounts", "public.right_accounts"]
_STATE, _HISTORY = "pgoutput_fast.mirror.state.mirror_state", "pgoutput_fast.mirror.follow.history"
_CURRENT, _POINTS = "pgoutput_fast.merge.local", "pgoutput_fast.mirror.state.points"
_RETENTION = "pgoutput_fast.capture.retention"

# (module, function, call): at that call, or when it returns (a number below 0).
BEFORE_A_TABLE = [[_CURRENT, "commit", 1]]  # a file of the first current table
BEFORE_A_HISTORY = [[_HISTORY, "AppendTable.commit", 1]]
LOADING = [
    [_STATE, "MirrorState.set_beginning", -1],  # no slot yet
    [_STATE, "MirrorState.set_beginning", 3],  # the slot, and nobody knows
    [_CURRENT, "LocalMerge.replace", -1],  # the first table without its history
    [_HISTORY, "AppendTable.commit", -2],  # both tables, and nobody knows of the second one
]
LOADING_TOO = [
    [_STATE, "MirrorState.set_progress", 1],
    [_STATE, "MirrorState.set_progress", -1],
    [_STATE, "MirrorState.set_beginning", -3],
    [_CURRENT, "LocalMerge.replace", 1],
    [_HISTORY, "AppendTable.commit", -1],
    [_CURRENT, "LocalMerge.replace", 2],
    [_POINTS, "Points.add", 1],
]
FOLLOWING = [
    [_HISTORY, "AppendTable.commit", 1],  # files, and no history
    [_HISTORY, "AppendTable.commit", -1],  # one of two histories
    [_STATE, "MirrorState.set_history_lsn", 1],  # both, and readers do not know
    [_STATE, "MirrorState.set_history_lsn", -1],  # they know, and no current table has it
    [_CURRENT, "LocalMerge.apply_parts", -1],  # one of two current tables
    [_STATE, "MirrorState.set_progress", 1],
    [_POINTS, "Points.add", 2],
]
FOLLOWING_TOO = [
    [_HISTORY, "AppendTable.commit", -2],
    [_STATE, "MirrorState.set_history_lsn", 2],
    [_STATE, "MirrorState.set_table", 1],
    [_STATE, "MirrorState.set_table", -1],
    [_CURRENT, "LocalMerge.apply_parts", 1],
    [_CURRENT, "LocalMerge.apply_parts", -2],
    [_STATE, "MirrorState.set_progress", -1],
    [_POINTS, "Points.add", -2],
    [_RETENTION, "Consumers.set", 1],
    [_RETENTION, "Consumers.set", -1],
]


def _expect_all(place: Place) -> None:
    place.run()
    expect_equal(place, *TABLES)
    for table in TABLES:
        expect_replayed(place, table, ["id"])
    expect_same_total(place, points(place.target))
    assert not list((place.target / "_mirror" / "spill").glob("*"))
    for each in (*place.target.glob("history/*"), *place.target.glob("current/*")):
        _expect_no_orphans(each)


def _expect_no_orphans(table: Any) -> None:
    """No file that no version of the table has."""
    import deltalake

    known: set[str] = set()
    newest = deltalake.DeltaTable(str(table)).version()
    for version in range(newest + 1):
        known |= {uri.rpartition("/")[2] for uri in deltalake.DeltaTable(str(table), version).file_uris()}
    assert {each.name for each in table.glob("*.parquet")} - known == set()


@pytest.fixture
def accounts(place: Place) -> Place:
    place.database.execute(*transfers.SCHEMA, f"CREATE PUBLICATION mirrored FOR TABLE {', '.join(TABLES)}")
    return place


def _transfer(place: Place, seed: int) -> None:
    transfers.write(place.database, seed, 10)


@pytest.mark.parametrize(
    "kills",
    [BEFORE_A_TABLE, BEFORE_A_HISTORY, LOADING, pytest.param(LOADING_TOO, marks=SOAK)],
    ids=["before a table", "before a history", "some", "others"],
)
def test_killed_at_a_step_of_the_first_load(accounts: Place, kills: list[list[Any]]) -> None:
    for n, kill in enumerate(kills):
        _transfer(accounts, n)
        accounts.killed(kill)
        (slots,) = accounts.database.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE database = current_database() AND NOT temporary"
        )
        assert slots[0] <= 1
    _expect_all(accounts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [FOLLOWING, pytest.param(FOLLOWING_TOO, marks=SOAK)], ids=["some", "others"]
)
def test_killed_at_a_step_behind_it(accounts: Place, kills: list[list[Any]]) -> None:
    accounts.run()
    for n, kill in enumerate(kills):
        if kill[1] == "MirrorState.set_table":  # the key is noted
            accounts.database.execute(
                "ALTER TABLE left_accounts REPLICA IDENTITY " + ["FULL", "DEFAULT"][n % 2]
            )
        _transfer(accounts, n)
        accounts.killed(kill)
        assert fresh_total(accounts) == transfers.TOTAL
    _expect_all(accounts)


@pytest.mark.slow
def test_killed_at_random_moments(accounts: Place) -> None:
    """While others write, and tables are altered so that they are loaded again."""
    dice = random.Random(KILLS)
    with transfers.writing(accounts.database):
        for n in range(KILLS):
            # Every second time, histories are far ahead of current tables.
            process = accounts.start(*(["--merge-seconds", "60"] if n % 2 else []))
            try:
                time.sleep(0.5 + 4 * dice.random())
                if n % 3 == 1:
                    # A load, or values of older rows.
                    column = "float8 DEFAULT random()" if n % 2 else f"int DEFAULT {n}"
                    accounts.database.execute(f"ALTER TABLE left_accounts ADD COLUMN c{n} {column}")
            finally:
                process.kill()
            _, said = process.communicate(timeout=240)
            assert process.returncode == -signal.SIGKILL, said
    _expect_all(accounts)
