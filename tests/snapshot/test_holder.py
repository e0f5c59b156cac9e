"""A process that holds a snapshot for others ends with who asked for it, also while the server makes it wait."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from pgoutput_fast.capture import SnapshotError, find_slot
from pgoutput_fast.snapshot.holder import OpenSnapshot, _registered, hold_snapshot, is_alive
from support import pg
from support.capturing import drop_when_free, wait_until

ASK = """
import os, sys
from pgoutput_fast.snapshot.holder import hold_snapshot
hold_snapshot(sys.argv[1], sys.argv[2], 60, os.getpid() if sys.argv[3] == "itself" else None)
"""


@pytest.fixture(scope="module")
def base(servers: pg.Servers) -> Iterator[pg.Database]:
    """A database of the newest server."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    database = pg.Database(servers[max(servers)])
    database.execute("CREATE TABLE t (id int)")
    yield database
    database.drop()


@pytest.fixture
def slot(base: pg.Database) -> Iterator[str]:
    name = f"{base.name}_h"
    yield name
    drop_when_free(base.dsn, name)


@contextlib.contextmanager
def _open_transaction(database: pg.Database) -> Iterator[None]:
    """For the time of the block a slot that is made has to wait."""
    with database.session() as connection, connection.cursor() as cursor:
        connection.autocommit = False
        cursor.execute("INSERT INTO t VALUES (1)")
        yield
        connection.rollback()


def _is_there(database: pg.Database, slot: str) -> bool:
    return find_slot(database.dsn, slot) is not None


@pytest.mark.parametrize("for_whom", ["itself", "nobody"])
def test_who_asked_is_killed_while_the_slot_waits(base: pg.Database, slot: str, for_whom: str) -> None:
    """Whether the process it is for has ended, or the one that asked for it."""
    with _open_transaction(base):
        asks = subprocess.Popen([sys.executable, "-c", ASK, base.dsn, slot, for_whom])
        wait_until(lambda: asks.poll() is not None or _is_there(base, slot))
        asks.kill()
        assert asks.wait() < 0
        wait_until(lambda: not _is_there(base, slot))
        active = f"SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%SLOT \"{slot}\"%' AND pid <> pg_backend_pid()"
        wait_until(lambda: base.execute(active) == [(0,)])
    assert not _is_there(base, slot)


def test_the_time_is_over_while_the_slot_waits(base: pg.Database, slot: str) -> None:
    with _open_transaction(base):
        with pytest.raises(SnapshotError, match="the open transactions did not end in time"):
            hold_snapshot(base.dsn, slot, 1, None)
        # The server says that it has cancelled the command before it drops the slot.
        wait_until(lambda: not _is_there(base, slot))
    held = hold_snapshot(base.dsn, slot, 600, os.getpid())
    assert is_alive(held.pid)
    held.release()
    wait_until(lambda: not is_alive(held.pid))
    assert _is_there(base, slot)


def test_nobody_takes_the_answer(base: pg.Database, slot: str) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-m", "pgoutput_fast.snapshot.holder"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        holder.stdin.write(
            json.dumps({"dsn": base.dsn, "slot": slot, "seconds": 600, "for_pid": None}) + "\n"
        )
        holder.stdin.flush()
        held = json.loads(holder.stdout.readline())
        assert _is_there(base, slot)
        assert is_alive(held["pid"])
    wait_until(lambda: not is_alive(held["pid"]))
    assert not _is_there(base, slot)


def test_a_pid_that_another_process_has_now_is_not_the_holder(base: pg.Database, slot: str) -> None:
    held = hold_snapshot(base.dsn, slot, 600, os.getpid())
    assert hold_snapshot(base.dsn, slot, 600, os.getpid()) == held
    held.release()
    wait_until(lambda: not is_alive(held.pid))
    other = subprocess.Popen(["sleep", "600"])
    try:
        # As if the system had given the holder's pid to it.
        with _registered(base.dsn, slot, os.getpid()) as file:
            known = json.loads(file.read()) | {"pid": other.pid}
            file.seek(0)
            file.truncate()
            file.write(json.dumps(known))
        with pytest.raises(SnapshotError, match="exists"):
            hold_snapshot(base.dsn, slot, 600, os.getpid())
        OpenSnapshot(**known).release()
        time.sleep(0.2)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
