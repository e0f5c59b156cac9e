"""Loads in processes that are killed: what is there under its name is whole, and the next load starts over."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pyarrow.parquet as pq
import pytest

from pgoutput_fast.capture import Snapshot, SnapshotError, drop_slot
from support import pg

pytestmark = pytest.mark.few_servers

ROWS = {"k.a": 1500, "k.b": 40, "k.c": 700, "k.nil": 0}


@pytest.fixture
def slot(database: pg.Database) -> Iterator[str]:
    database.execute(
        "CREATE SCHEMA k",
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in ROWS),
        *(
            f"INSERT INTO {n} SELECT g, repeat('a', 700) FROM generate_series(1, {rows}) g"
            for n, rows in ROWS.items()
        ),
        "CREATE PUBLICATION p FOR TABLE " + ", ".join(ROWS),
    )
    name = f"{database.name}_k"
    yield name
    _drop(database, name)
    database.execute("DROP PUBLICATION p", "DROP SCHEMA k CASCADE")


def _drop(database: pg.Database, slot: str) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        # The server may not have noticed yet that its user died.
        with contextlib.suppress(psycopg2.errors.ObjectInUse):
            drop_slot(database.dsn, slot)
            return
        time.sleep(0.05)
    raise AssertionError(f"slot {slot} stays in use")


_PROCESS = """
import sys
from pgoutput_fast.capture import Snapshot
dsn, slot, directory = sys.argv[1:]
with Snapshot(dsn, ["p"], slot, range_bytes=1 << 17) as snapshot:
    print("begins", flush=True)
    snapshot.load_to(directory, threads=2)
    print("ended", flush=True)
"""


def _check_what_is_there(directory: Path) -> set[str]:
    """Tables under their names have all of their rows; which they are."""
    found = set()
    for path in directory.iterdir():
        if path.name.startswith("."):
            continue
        about: dict[str, Any] = json.loads((path / "_snapshot.json").read_text())
        assert pq.read_table(path).num_rows == ROWS[path.name]
        assert sum(rows for rows, _, _ in about["ranges"].values()) == ROWS[path.name]
        found.add(path.name)
    return found


@pytest.mark.newest_server
def test_killed_at_random_moments(database: pg.Database, slot: str, tmp_path: Path) -> None:
    """The full form takes PGOUTPUT_FAST_KILLS=50."""
    kills = int(os.environ.get("PGOUTPUT_FAST_KILLS", "2"))
    dice = random.Random(database.version)
    for k in range(kills):
        # Every second time into what the one before left, if no table of it is whole.
        directory = tmp_path / str(k - 1 if k % 2 and not _check_what_is_there(tmp_path / str(k - 1)) else k)
        directory.mkdir(exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", _PROCESS, database.dsn, slot, str(directory)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        time.sleep(dice.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        said, problem = process.communicate()
        assert process.returncode in (-signal.SIGKILL, 0), problem
        whole = _check_what_is_there(directory)
        if "ended" in said:
            assert whole == set(ROWS)
        with pytest.raises(SnapshotError, match="drop the slot with drop_slot and start over"):
            Snapshot(database.dsn, ["p"], slot)
        _drop(database, slot)
        with Snapshot(database.dsn, ["p"], slot) as snapshot:
            if whole:
                with pytest.raises(SnapshotError, match="has another snapshot"):
                    snapshot.load_to(directory)
                assert _check_what_is_there(directory) >= whole
                snapshot.load_to(tmp_path / f"{k} anew")
                assert _check_what_is_there(tmp_path / f"{k} anew") == set(ROWS)
            elif dice.random() < 0.5:
                snapshot.load_to(directory)
                assert _check_what_is_there(directory) == set(ROWS)
                assert [path.name for path in directory.glob(".*")] == [".load.lock"]
        _drop(database, slot)
