"""Shared code of the capture tests: a slot over two tables, sessions that change them, and an exactly-once check."""

from __future__ import annotations

import contextlib
import faulthandler
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow as pa
import pytest

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, create_slot, drop_slot, find_slot
from pgoutput_fast.postgres.slots import Slot
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog, segment_outcomes
from support import pg

__all__ = [
    "Running",
    "Writers",
    "committed",
    "drop_when_free",
    "expect_exactly_once",
    "freed",
    "kill_often",
    "now",
    "prepare",
    "slot",
    "stoppable",
    "streaming_dsn",
    "wait_until",
    "waiting_walsender",
]


def streaming_dsn(database: pg.Database) -> str:
    return database.dsn + (" options='-c logical_decoding_work_mem=64kB'" if database.version >= 14 else "")


def prepare(database: pg.Database, name: str) -> None:
    """Makes two empty tables, their publication, and a slot."""
    database.execute(
        "CREATE TABLE counted (id int PRIMARY KEY, n int NOT NULL, filler text)",
        "CREATE TABLE noted (id int PRIMARY KEY, v text)",
        "CREATE PUBLICATION captured FOR TABLE counted, noted",
    )
    create_slot(database.dsn, name)


@pytest.fixture
def slot(database: pg.Database) -> Iterator[str]:
    """A slot over two empty tables."""
    name = f"{database.name}_k"
    prepare(database, name)
    yield name
    with contextlib.suppress(psycopg2.Error):
        database.execute(
            f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}'"
        )
    drop_when_free(database.dsn, name)
    database.execute("DROP PUBLICATION IF EXISTS captured", "DROP TABLE counted, noted")


@contextlib.contextmanager
def stoppable(servers: pg.Servers, slot: str, *, oldest: bool = False) -> Iterator[pg.Database]:
    """A database of the newest or the oldest version, with a slot over two tables. The test may stop or crash the server."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    version = min(servers) if oldest else max(servers)
    database = pg.Database(servers[version])
    try:
        prepare(database, slot)
        yield database
    finally:
        servers[version]  # starts it if the test has left it stopped
        database.drop()


def drop_when_free(dsn: str, slot: str) -> None:
    """Drops a slot, if it exists, as soon as the server has noticed that its client has disconnected."""

    def dropped() -> bool:
        try:
            drop_slot(dsn, slot)
        except psycopg2.errors.ObjectInUse:
            return False
        return True

    wait_until(dropped)


def freed(dsn: str, slot: str) -> Slot:
    """A slot whose reader has ended, as it is when the server has taken its last confirmation, and noticed the end.

    A reader waits for that, but not for long.
    """
    found: Slot | None = None

    def is_free() -> bool:
        nonlocal found
        found = find_slot(dsn, slot)
        return found is not None and found.active_pid is None

    wait_until(is_free)
    assert found is not None
    return found


def waiting_walsender(database: pg.Database, slot: str) -> int:
    """The server's process that sends the changes of a slot, once it waits for WAL.

    Then it holds no lock that other processes of the server need, so it may be stopped. A capture whose connection was
    just cut has no such process for a moment.
    """
    query = (
        "SELECT active_pid FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid "
        f"WHERE slot_name = '{slot}' AND wait_event LIKE 'WalSender%'"
    )
    found: list[tuple[Any, ...]] = []

    def waits() -> bool:
        found.extend(database.execute(query))
        return bool(found)

    wait_until(waits)
    return int(found[0][0])


def now(database: pg.Database) -> int:
    return int(database.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::int8")[0][0])


def committed(directory: Path) -> pgo.Decoded:
    """The committed changes in the segments."""
    segments = list_segments(directory)
    rows = pa.concat_tables([read_segment(segment.path) for segment in segments]).combine_chunks()
    (batch,) = rows.to_batches()
    return pgo.decode_tagged(
        batch,
        segment_catalog(directory),
        pgo.Options(transactions="committed"),
        outcomes=segment_outcomes(directory),
    )


def expect_exactly_once(database: pg.Database, directory: Path) -> None:
    """Checks that each row of `counted` is in the segments as often as its counter says."""
    changes = committed(directory).table("public.counted")
    assert changes.column("_commit_lsn").null_count == 0
    rows = changes.select(["_change_type", "id", "n"]).to_pylist()
    expected = dict(database.execute("SELECT id, n FROM counted"))
    seen = Counter(row["id"] for row in rows if row["_change_type"] in ("insert", "update_postimage"))
    assert seen == expected
    last = {row["id"]: row["n"] for row in rows if row["_change_type"] != "update_preimage"}
    assert last == expected


def kill_often(arguments: list[str], directory: Path, kills: int, dice: random.Random) -> None:
    """Repeatedly starts a capturing process and kills it a moment after it has written some segments."""

    def segments() -> int:
        return len(list(directory.glob("*.parquet")))

    for _ in range(kills):
        enough = segments() + dice.randrange(1, 4)
        process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline and segments() < enough:
            time.sleep(0.002)
        time.sleep(dice.random() * 0.1)
        process.kill()
        _, said = process.communicate()
        assert process.returncode == -signal.SIGKILL, said


class Running:
    """A capture on a thread. `failed` is the error that it ended with, if any."""

    def __init__(self, capture: Capture) -> None:
        self.failed: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(capture,))

    def _run(self, capture: Capture) -> None:
        try:
            capture.run(stop=self._stop)
        except BaseException as problem:
            self.failed = problem

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends the capture in the middle of a block."""
        self._stop.set()
        self.join()

    def join(self, seconds: float = 240) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the capture does not end"


def wait_until(what: Callable[[], object], seconds: float = 240) -> None:
    """Waits until `what` returns a true value. The time limit allows for a very busy machine."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() >= deadline:
            faulthandler.dump_traceback(sys.__stderr__)  # what does each thread wait for?
            raise AssertionError("it never came true")
        time.sleep(0.02)


_MANY = 3000  # rows that a savepoint changes, enough for a transaction to be streamed
_FAR_BEHIND = 64 << 20


def _behind(cursor: Any) -> int:
    """Bytes of unconfirmed WAL of this database's slot with the largest lag."""
    cursor.execute(
        "SELECT coalesce(max(pg_current_wal_lsn() - confirmed_flush_lsn), 0)::int8 FROM pg_replication_slots "
        "WHERE database = current_database()"
    )
    (bytes_,) = cursor.fetchone()
    cursor.connection.commit()
    return int(bytes_)


class Writers:
    """Sessions that change `counted`: small and large transactions, savepoints, rollbacks.

    They wait for captures that lag far behind, because the WAL of a slot must not fill a disk, even in a long test.

    With `tolerant` they survive a stop of the server, and continue after its restart. With `prepares` some transactions
    are prepared, and end some time later.
    """

    def __init__(self, database: pg.Database, *, tolerant: bool = False, prepares: bool = False) -> None:
        self._database = database
        self._tolerant = tolerant
        self._prepares = prepares
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(k,)) for k in range(2)]

    def __enter__(self) -> Writers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed

    def _run(self, which: int) -> None:
        dice = random.Random(which)
        while not self._stop.is_set():
            try:
                with self._database.session() as connection:
                    connection.autocommit = False
                    self._work(connection, dice, which * 1_000_000)
            except (psycopg2.OperationalError, psycopg2.InterfaceError) as problem:
                if not self._tolerant:
                    self._failed.append(problem)
                    return
                time.sleep(0.05)
            except BaseException as problem:
                self._failed.append(problem)
                return

    def _work(self, connection: Any, dice: random.Random, base: int) -> None:
        with connection.cursor() as cursor:
            # Only the table shows whether the last commit before a crash took effect.
            cursor.execute(
                "SELECT coalesce(max(id) + 1 - %s, 0) FROM counted WHERE id BETWEEN %s AND %s",
                (base, base, base + 999_999),
            )
            (made,) = cursor.fetchone()
            connection.commit()
            while not self._stop.is_set():
                count = dice.choice([1, 5, 40, 600])
                cursor.execute(
                    "INSERT INTO counted SELECT g, 1, repeat('y', 300) FROM generate_series(%s, %s) g",
                    (base + made, base + made + count - 1),
                )
                if dice.random() < 0.4:
                    cursor.execute("SAVEPOINT s")
                    cursor.execute(
                        "UPDATE counted SET n = n + 100 WHERE id BETWEEN %s AND %s",
                        (base + max(0, made - _MANY), base + made),
                    )
                    cursor.execute("ROLLBACK TO SAVEPOINT s")
                at = dice.randrange(made + count)
                cursor.execute(
                    "UPDATE counted SET n = n + 1 WHERE id BETWEEN %s AND %s", (base + at, base + at + 50)
                )
                ends = "ROLLBACK" if dice.random() < 0.2 else "COMMIT"
                if self._prepares and dice.random() < 0.4:
                    name = f"{self._database.name}_{base}"
                    cursor.execute("PREPARE TRANSACTION %s", (name,))
                    connection.commit()
                    self._stop.wait(dice.random())
                    connection.autocommit = True
                    cursor.execute(f"{ends} PREPARED %s", (name,))
                    connection.autocommit = False
                elif ends == "ROLLBACK":
                    connection.rollback()
                else:
                    connection.commit()
                made += count if ends == "COMMIT" else 0
                self._stop.wait(0.002)
                while not self._stop.is_set() and _behind(cursor) > _FAR_BEHIND:
                    self._stop.wait(0.05)


# The code of a capture in its own process, which tests kill. Arguments: dsn, slot, directory.
PROCESS = """
import sys
from pgoutput_fast.capture import Capture, Limits
dsn, slot, directory = sys.argv[1:]
Capture(dsn, slot, ["captured"], directory, limits=Limits(seconds=0.05, rows=3000)).run()
"""
