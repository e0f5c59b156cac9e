"""Shared code of the mirror's tests: a slot and a target, and comparisons with the server."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import deltalake
import psycopg2
import pyarrow as pa
import pytest

from pgoutput_fast.merge.formats import open_current_table
from pgoutput_fast.mirror import Mirror, Point, at, points
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.delta.table import uri_and_options
from pgoutput_fast.tables.directories import directory_of
from pgoutput_fast.tables.options import TableOptions
from reference.current import CurrentRows
from support import pg
from support.background import Background
from support.capturing import drop_when_free, wait_until
from support.paths import ROOT
from support.transfers import TOTAL

__all__ = [
    "Following",
    "Place",
    "current_of",
    "expect_equal",
    "expect_replayed",
    "expect_same_total",
    "history_of",
    "loads_of",
    "lose_rows",
    "make_two_tables",
    "opened",
    "place",
    "recorded",
]

METADATA = ("_commit_lsn", "_unrepresentable")


class Place:
    """A database, and the target of its mirror."""

    def __init__(self, database: pg.Database, target: Any) -> None:
        self.database, self.target = database, target
        self.slot = f"{database.name}_m"

    def mirror(self, **more: Any) -> Mirror:
        return Mirror(self.database.dsn, self.slot, ["mirrored"], self.target, **{"seconds": 0.5, **more})

    def run(self, **more: Any) -> None:
        """Mirrors everything up to now."""
        with self.mirror(**more) as mirror:
            self.run_in(mirror)

    def run_in(self, mirror: Mirror) -> None:
        """The same with an open mirror."""
        mirror.run(until_lsn="now")
        self.expect_no_errors(mirror)

    def expect_no_errors(self, mirror: Mirror) -> None:
        assert {str(each) for each in mirror.status() if each.error or each.history_error} == set()

    def arguments(self, *more: str) -> list[str]:
        """The arguments of a mirror process."""
        given = ["--slot", self.slot, "--publication", "mirrored", "--target", str(self.target)]
        return [sys.executable, "-m", "pgoutput_fast", "mirror", *given, "--seconds", "0.5", *more]

    def start(self, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.arguments(*more), stderr=subprocess.PIPE, text=True, env=self.environment
        )

    def killed(self, kill: list[Any], *more: str, limits: Any = None, after: float = 0.0) -> None:
        """Runs a process that mirrors up to now, and kills itself: [module, attribute, number], as for `kill_at`."""
        process = self._process(*more, kill=kill, limits=limits or {}, after=after)
        _, said = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, said

    def signalled(self, number: int, at: list[Any]) -> tuple[int, str]:
        """Runs a process that mirrors, and sends itself a signal at a call, as for `killed`: (its status, its errors)."""
        process = self._process(kill=at, signal=number, arguments=self.arguments()[4:])
        _, said = process.communicate(timeout=300)
        return process.returncode, said

    def peaks(self, *more: str, limits: Any = None) -> tuple[int, int]:
        """The peak memory in bytes of a process that mirrors up to now, and of its capture."""
        process = self._process(*more, limits=limits or {})
        try:
            told, said = process.communicate(timeout=300)
        finally:
            process.kill()
        assert process.returncode == 0, said
        own, capture = map(int, told.split())
        return own, capture

    def _process(self, *more: str, **job: Any) -> subprocess.Popen[str]:
        environment = {
            **self.environment,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)]),
        }
        job.setdefault("arguments", self.arguments("--until", "now", *more)[4:])
        return subprocess.Popen(
            [sys.executable, "-m", "support.mirror_process", json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "PGOUTPUT_FAST_DSN": self.database.dsn}

    def drop(self) -> None:
        with contextlib.suppress(psycopg2.Error):
            self.database.execute(
                f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
            )
        drop_when_free(self.database.dsn, self.slot)


class Following(Background):
    """A mirror that follows in a thread during a with block."""

    def __init__(self, mirror: Mirror) -> None:
        super().__init__()
        self._mirror = mirror
        self.problem: BaseException | None = None

    def _run(self) -> None:
        try:
            self._mirror.run(stop=self._stop)
        except BaseException as problem:
            self.problem = problem

    def until(self, condition: Callable[[], object]) -> None:
        """Waits. An error of the mirror ends the test."""
        wait_until(lambda: self.problem is not None or condition())
        assert self.problem is None

    def loaded(self) -> int:
        """The number of tables that are loaded and follow."""
        return sum(each.state == "follow" for each in self._mirror.metrics.tables)


@pytest.fixture
def place(servers: pg.Servers, tmp_path: Path) -> Iterator[Place]:
    """An empty database of the newest server, and a target that does not exist yet."""
    if not servers:
        pytest.skip(f"no PostgreSQL found: {pg.HOW_TO_GET_SERVERS}")
    with opened(servers[max(servers)], tmp_path) as found:
        yield found


@contextlib.contextmanager
def opened(server: Any, directory: Path) -> Iterator[Place]:
    """An empty database of a server, and a target in the directory."""
    database = pg.Database(server)
    found = Place(database, directory / "lake")
    try:
        yield found
    finally:
        found.drop()
        database.drop()


# ---- comparisons ----------------------------------------------------------------------------------------------------


def current_of(
    target: Path | str,
    table: str,
    version: int | None = None,
    format: str = "delta",
    options: TableOptions | None = None,
) -> pa.Table:
    """The rows of a current table, by default those of the newest point."""
    version = at(target)[table] if version is None else version
    return open_current_table(format, open_store(target), table, options or TableOptions()).read(version)


def history_of(target: Path | str, table: str) -> pa.Table:
    """All changes of a table, in the order in which to apply them."""
    uri, storage = uri_and_options(str(open_store(target).at(f"history/{directory_of(table)}")))
    rows = pa.table(deltalake.DeltaTable(uri, storage_options=storage).to_pyarrow_table())
    # The old and the new row of an update have the same ordinal. The old one comes first.
    kinds = pa.array([kind != "update_preimage" for kind in rows["_change_type"].to_pylist()], pa.bool_())
    rows = rows.append_column("is_new", kinds)
    order = [("_commit_lsn", "ascending"), ("_seq", "ascending"), ("is_new", "ascending")]
    return rows.sort_by(order).drop_columns(["is_new"])


def loads_of(place: Place, table: str) -> int:
    """The number of loads of a table: its history has the rows of each load."""
    rows = history_of(place.target, table).select(["_seq", "_commit_lsn", "_change_type"]).to_pylist()
    return len({row["_commit_lsn"] for row in rows if row["_seq"] < 0 and row["_change_type"] != "alter"})


def recorded(target: Path | str) -> list[Point]:
    """The points of a target; none before its mirror exists."""
    with contextlib.suppress(LookupError):
        return points(target)
    return []


def comparable(value: Any) -> Any:
    """A common form of the values of psycopg2 and pyarrow."""
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, datetime.time):
        return value.isoformat("microseconds")
    return value


def rows_of(database: pg.Database, table: str) -> tuple[list[str], Counter[str]]:
    """(names of the columns, rows) of a table of the server."""
    with database.session() as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        names = [column.name for column in cursor.description]
        return names, Counter(repr([comparable(each) for each in row]) for row in cursor.fetchall())


def mirrored_rows(rows: pa.Table, names: list[str]) -> Counter[str]:
    """The same for a current table. A column that the mirror has not seen is null."""
    return Counter(repr([comparable(row.get(name)) for name in names]) for row in rows.to_pylist())


def expect_equal(place: Place, *tables: str, format: str = "delta", **more: Any) -> None:
    """Checks that the current tables equal the server's, cell by cell."""
    for table in tables:
        names, expected = rows_of(place.database, table)
        rows = current_of(place.target, table, format=format, **more)
        assert mirrored_rows(rows, names) == expected, table
        assert rows.schema.field("_commit_lsn").type == pa.int64()
        assert rows["_commit_lsn"].null_count == 0


def expect_replayed(place: Place, table: str, key: list[str], *, loaded: bool = False) -> None:
    """Checks that the history, applied change by change, gives the current table.

    Args:
        loaded: only from its last load on. Before a load, changes may be missing.
    """
    history = history_of(place.target, table)
    if loaded:
        begins = [n for n, kind in enumerate(history["_change_type"].to_pylist()) if kind == "truncate"]
        history = history.slice(begins[-1] if begins else 0)
    names, expected = rows_of(place.database, table)
    schema = pa.schema([field for field in history.schema if not field.name.startswith("_")])
    replayed = CurrentRows(key, schema)
    replayed.apply_changes(history.to_pylist())
    assert Counter(repr([comparable(row.get(name)) for name in names]) for row in replayed.rows) == expected


def expect_same_total(place: Place, found: list[Point]) -> None:
    """Checks that the accounts of `support.transfers` have the same total at each point."""
    for each in found:
        sums = [
            sum(current_of(place.target, table, version)["balance"].to_pylist())
            for table, version in each.versions.items()
        ]
        assert len(sums) == 2
        assert sum(sums) == TOTAL, each


def make_two_tables(place: Place) -> None:
    """Tables `a` and `b`. An update of `b` does not send its long value again."""
    place.database.execute(
        "CREATE TABLE a (id int PRIMARY KEY)",
        "CREATE TABLE b (id int PRIMARY KEY, note text)",
        "ALTER TABLE b ALTER note SET STORAGE EXTERNAL",
        "INSERT INTO b SELECT 1, repeat('x', 9000)",
        "CREATE PUBLICATION mirrored FOR ALL TABLES",
    )


def lose_rows(place: Place, table: str) -> None:
    """Empties a current table without the mirror's knowledge."""
    rows = open_current_table("delta", open_store(place.target), table, TableOptions())
    schema, position = rows.schema(), rows.position()
    assert schema is not None
    assert position is not None
    rows.replace([], schema, position)
