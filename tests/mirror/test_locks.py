"""One table that somebody has locked, and a server that has no slot or connection left: all other tables go on."""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import psycopg2
import pytest

from pgoutput_fast.capture import Snapshot, check
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.tables.directories import directory_of
from support import pg
from support.capturing import wait_until
from support.forms import and_slow
from support.mirrors import Following, Place, expect_equal, opened

# How long a process may take to end when it is told to, on a busy machine. A capture that does not end by itself is
# ended by force later.
_END_SECONDS = 20.0

versions = pytest.mark.parametrize(
    "version", [pytest.param(each, marks=[pytest.mark.slow] if each != 18 else []) for each in (15, 16, 18)]
)


@pytest.fixture
def place(servers: pg.Servers, tmp_path: Path, version: int) -> Iterator[Place]:
    if version not in servers:
        pytest.skip(f"no PostgreSQL {version}")
    with opened(servers[version], tmp_path) as found:
        found.database.execute(
            "CREATE TABLE a (id int PRIMARY KEY, v text)",
            "CREATE TABLE b (id int PRIMARY KEY, v text)",
            "CREATE TABLE f (id int PRIMARY KEY, v text)",
            "INSERT INTO a SELECT 1, 'x'",
            "INSERT INTO b SELECT 1, 'x'",
            "INSERT INTO f SELECT g, 'x' FROM generate_series(1, 9) g",
            "CREATE PUBLICATION mirrored FOR TABLE a, b, f WHERE (id > 5)",
        )
        yield found


@contextlib.contextmanager
def _locked(database: pg.Database, *tables: str) -> Iterator[Any]:
    with database.session(application_name="the holder") as connection:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        cursor.execute(f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE")
        yield cursor


def _rows(place: Place, table: str) -> int:
    """How many rows a current table has now, whether or not all tables have a common point."""
    directory = place.target / "current" / directory_of(f"public.{table}")
    return int(deltalake.DeltaTable(str(directory)).count()) if (directory / "_delta_log").is_dir() else 0


@versions
def test_other_tables_go_on(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pgoutput_fast.mirror.service.run._LOOK_SECONDS", 0.5)
    place.run()
    database = place.database
    with place.mirror() as mirror, Following(mirror) as following:
        with _locked(database, "a", "f"):
            # Also an ALTER that waits in the queue.
            for number in range(2, 6):
                database.execute(f"INSERT INTO b VALUES ({number}, 'y')")
                following.until(lambda number=number: _rows(place, "b") == number)
                time.sleep(0.5)
            # A load waits for the transaction that has the lock. The others do not.
            database.execute("CREATE TABLE c (id int PRIMARY KEY)", "INSERT INTO c VALUES (1)")
            database.execute("ALTER PUBLICATION mirrored ADD TABLE c")
            following.until(lambda: "open now have ended: process" in caplog.text)
            database.execute("INSERT INTO b VALUES (6, 'y')")
            following.until(lambda: _rows(place, "b") == 6)
        following.until(lambda: [each.state for each in mirror.status()] == ["follow"] * 4)
    assert "it was not published" not in caplog.text
    place.run()
    expect_equal(place, "public.a", "public.b", "public.c")


@pytest.mark.slow
@versions
def test_a_table_that_is_locked_during_the_first_load(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The load takes the other tables, and this one later."""
    database = place.database
    with contextlib.ExitStack() as stack:

        def lock(*_: object) -> None:
            if not stack.__dict__.setdefault("is_locked", False):
                stack.is_locked = True  # type: ignore[attr-defined]
                stack.enter_context(_locked(database, "b", "f"))

        with place.mirror(progress=lock) as mirror, Following(mirror) as following:
            following.until(lambda: "is locked" in caplog.text or "has locked it (the holder" in caplog.text)
            database.execute("INSERT INTO a VALUES (2, 'y')")
            following.until(lambda: _rows(place, "a") == 2)
            stack.close()
            following.until(lambda: _rows(place, "b") == 1 and _rows(place, "f") == 4)
    place.run()
    expect_equal(place, "public.a", "public.b")


@versions
def test_check_and_a_snapshot_of_another_table(place: Place) -> None:
    database, began = place.database, time.monotonic()
    with Snapshot(database.dsn, ["mirrored"], lock_seconds=0.5) as snapshot, _locked(database, "a", "f"):
        assert check(database.dsn, ["mirrored"]).tables == ("public.a", "public.b", "public.f")
        batches = snapshot.read()
        assert {name for name, _ in batches} == {"public.b"}
        assert batches.lost.keys() == {"public.a", "public.f"}
        assert "has locked it (the holder, idle in transaction" in batches.lost["public.a"]
    assert time.monotonic() - began < 30


def _ends(process: subprocess.Popen[str]) -> None:
    """It ends while the lock is there, which stays until this returns."""
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(_END_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


@versions
def test_a_mirror_that_begins_ends_when_it_is_told_to(place: Place) -> None:
    with _locked(place.database, "a"):
        process = place.start()
        wait_until(lambda: _waits(place.database, "walsender"))
        _ends(process)
    wait_until(
        lambda: (
            not place.database.execute(
                "SELECT 1 FROM pg_replication_slots WHERE database = current_database()"
            )
        )
    )


@versions
def test_a_capture_that_begins_ends_when_it_is_told_to(place: Place, tmp_path: Path) -> None:
    arguments = ["--slot", place.slot, "--publication", "mirrored", "--path", str(tmp_path / "segments")]
    with _locked(place.database, "a"):
        process = subprocess.Popen(
            [sys.executable, "-m", "pgoutput_fast", "capture", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=place.environment,
        )
        wait_until(lambda: _waits(place.database, "client backend"))
        _ends(process)


def _waits(database: pg.Database, backend: str) -> bool:
    """Whether a session of the package waits for a transaction to end."""
    return bool(
        database.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND backend_type = "
            f"'{backend}' AND application_name = 'pgoutput_fast' AND wait_event = 'transactionid'"
        )
    )


# ---- what a server has no more of -----------------------------------------------------------------------------------


def _slots(database: pg.Database, stack: contextlib.ExitStack) -> None:
    with contextlib.suppress(psycopg2.errors.ConfigurationLimitExceeded):
        for number in range(100):
            database.execute(f"SELECT pg_create_physical_replication_slot('other_{number}')")
            stack.callback(database.execute, f"SELECT pg_drop_replication_slot('other_{number}')")


def _connections(database: pg.Database, stack: contextlib.ExitStack, **more: Any) -> None:
    with contextlib.suppress(psycopg2.OperationalError):
        for _ in range(100):
            stack.callback(psycopg2.connect(database.dsn, **more).close)


def _walsenders(database: pg.Database, stack: contextlib.ExitStack) -> None:
    _connections(database, stack, replication="database")


@pytest.mark.slow
@pytest.mark.parametrize("take", and_slow([_slots], [_walsenders, _connections]))
def test_a_server_that_has_no_more(
    take: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that cannot be loaded now is loaded later. The others go on, also in the next run."""
    monkeypatch.setattr("pgoutput_fast.mirror.service.run._LOOK_SECONDS", 0.5)
    caplog.set_level(logging.INFO)
    settings = {"max_replication_slots": 4, "max_wal_senders": 4, "max_connections": 20}
    newest = pg.installations()[max(pg.installations())]
    with Server(newest, settings) as server, opened(server, tmp_path) as place:
        database = place.database
        database.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE PUBLICATION mirrored FOR ALL TABLES")
        place.run()
        with contextlib.ExitStack() as taken, database.session() as connection:
            cursor = connection.cursor()
            with place.mirror() as mirror, Following(mirror) as following:
                following.until(lambda: _sends(cursor, place.slot))
                take(database, taken)
                cursor.execute("CREATE TABLE later (id int PRIMARY KEY)")
                cursor.execute("INSERT INTO later VALUES (1)")
                for number in range(1, 4):
                    cursor.execute(f"INSERT INTO a VALUES ({number})")
                    following.until(lambda number=number: _rows(place, "a") == number)
                    time.sleep(1)
                if take is not _connections:
                    following.until(lambda: "cannot be loaded now" in caplog.text)
            if take is _slots:
                with place.mirror() as mirror, Following(mirror) as following:
                    cursor.execute("INSERT INTO a VALUES (4)")
                    following.until(lambda: _rows(place, "a") == 4)
        with place.mirror() as mirror, Following(mirror) as following:
            following.until(lambda: _rows(place, "later") == 1)
        place.run()
        expect_equal(place, "public.a", "public.later")


def _sends(cursor: Any, slot: str) -> bool:
    cursor.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (slot,))
    return bool(cursor.fetchone()[0])
