"""Measures mirrors that follow updates at random keys of a large table, beside Debezium with delta-rs's MERGE.

    python -m benchmarks.mirror.updates           # some ten minutes; rewrites the figures in README.md

The table is TPC-B's accounts. Every system has all rows, and its walsender is halted (SIGSTOP) while balances of random
accounts are updated. Then one system after the other goes on. A rate is that until the last update is visible in its
current table. At the end, the current tables must have the balances of the server.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa

from benchmarks.mirror.live import Burst, Halted
from benchmarks.mirror.systems import DebeziumSystem, Mirrored, OurSystem, System, Walsender, wait
from benchmarks.peers.installations import MissingError
from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast.demo.servers import Server, find_installations

__all__ = ["main", "section"]

MARKERS = "<!-- updates figures -->", "<!-- end of updates figures -->"
ROWS, UPDATES, SHARE, IN_A_TRANSACTION = 10_000_000, 2_000_000, 0.01, 100
_TABLES = ("accounts", "accounts_share")  # Debezium follows the second one, and has a share of the updates
_COLUMNS = {"id": "int64", "bid": "int32", "abalance": "int32", "filler": "string"}


class _OnRead(OurSystem):
    name, slot = "our mirror, merge on read", "on_read"


class _OnWrite(OurSystem):
    name, slot = "our mirror, merge on write", "on_write"


class _Updates:
    """The server with the tables, and the systems. A context manager."""

    def __init__(self, directory: Path, rows: int, *, debezium: bool) -> None:
        self._directory, self._rows, self._debezium = directory, rows, debezium
        self.systems: list[System] = []
        able = [each for each in find_installations() if (each.bindir / "pg_recvlogical").exists()]
        if not able:
            raise LookupError("no PostgreSQL installation here has pg_recvlogical")
        self._installation = able[-1]

    def __enter__(self) -> _Updates:
        with ExitStack() as stack:
            # A capture waits as long as the server would. Otherwise it would connect again while it is halted.
            settings: dict[str, Any] = {"wal_sender_timeout": "1h", "max_wal_size": "8GB"}
            self.server = stack.enter_context(Server(self._installation, settings))
            dsn, place = self.server.dsn, self._directory
            for table in _TABLES[: 1 + self._debezium]:
                self.execute(
                    f"CREATE TABLE {table} (id int8 PRIMARY KEY, bid int4, abalance int4, filler char(84))"
                )
                self.execute(
                    f"INSERT INTO {table} SELECT g, g / 100000, 0, '' FROM generate_series(1, {self._rows}) g"
                )
                self.execute(f"CREATE PUBLICATION {table} FOR TABLE {table}")
            made: list[System] = [
                Walsender(dsn, "accounts", place / "alone", self._installation.bindir),
                _OnRead(dsn, "accounts", place / "on_read", merge="on_read"),
                _OnWrite(dsn, "accounts", place / "on_write"),
            ]
            if self._debezium:
                made.append(DebeziumSystem(dsn, "accounts_share", place / "debezium", _COLUMNS))
            for each in made:
                self.systems.append(stack.enter_context(each))
                if isinstance(each, OurSystem):
                    loaded = each
                    wait(lambda: loaded.last_id(loaded.current) == self._rows, loaded.process)  # noqa: B023
            if self._debezium:
                _copy(loaded.current, place / "debezium" / "current")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def execute(self, statement: str) -> Any:
        connection = self.server.connect()
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            found = cursor.fetchone() if cursor.description else None
        connection.close()
        return found

    def burst(self, updates: int, last: int) -> dict[str, Burst]:
        """Updates random accounts, then adds one, and lets one system after the other follow.

        Args:
            updates: how many.
            last: the number of the account that is added, by which a table shows that it has all updates.
        """
        found = {}
        for table, count in zip(
            _TABLES, (updates, max(round(updates * SHARE), IN_A_TRANSACTION)), strict=True
        ):
            following = [each for each in self.systems if each.table == table]
            with ExitStack() as halted:
                stopped = {each.name: halted.enter_context(Halted(each)) for each in self.systems}
                if not following:
                    continue
                end = self._update(table, count, last)
                for each in following:
                    before, began = each.tree.cpu, time.perf_counter()
                    stopped[each.name].go_on()
                    wait(lambda: _has(each, last, end), each.process)  # noqa: B023
                    found[each.name] = Burst(count, {"": time.perf_counter() - began}, each.tree.cpu - before)
            for each in self.systems:
                wait(lambda: each.sent() >= end, each.process)  # noqa: B023
        return found

    def _update(self, table: str, count: int, last: int) -> int:
        dice = np.random.default_rng([last, count])
        connection = self.server.connect()
        with connection.cursor() as cursor:
            for _ in range(0, count, IN_A_TRANSACTION):
                ids = dice.integers(1, self._rows + 1, IN_A_TRANSACTION).tolist()
                cursor.execute(
                    f"UPDATE {table} SET abalance = abalance + id %% 1000 + 1 WHERE id = ANY(%s)", (ids,)
                )
                connection.commit()
            cursor.execute(f"INSERT INTO {table} VALUES (%s, 0, 0, '')", (last,))
            connection.commit()
        connection.close()
        (end,) = self.execute("SELECT (pg_current_wal_lsn() - '0/0')::int8")
        return int(end)

    def check(self) -> None:
        """
        Raises:
            AssertionError: if a current table has other balances than the server.
        """
        for system in self.systems:
            if isinstance(system, Mirrored):
                query = "SELECT count(*), sum(abalance), sum(abalance::int8 * (id % 1000)) FROM {}"
                expected = [int(each) for each in self.execute(query.format(system.table))]
                builder = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(system.current))
                query = "SELECT count(*), sum(abalance), sum(cast(abalance as bigint) * (id % 1000)) FROM t"
                (row,) = pa.table(builder.execute(query)).to_pylist()
                assert list(row.values()) == expected, f"{system.name} has other balances"


def _copy(table: Path, other: Path) -> None:
    """Copies the rows of our current table into one for Debezium's sink."""
    schema = pa.schema(
        [*((name, pa.type_for_alias(kind)) for name, kind in _COLUMNS.items()), ("__lsn", pa.int64())]
    )
    rows = deltalake.DeltaTable(table).to_pyarrow_dataset().to_batches(list(_COLUMNS))
    typed = (each.append_column("__lsn", pa.nulls(len(each), pa.int64())).cast(schema) for each in rows)
    deltalake.write_deltalake(other, pa.RecordBatchReader.from_batches(schema, typed))


def _has(system: System, last: int, end: int) -> bool:
    return system.last_id(system.current) >= last if isinstance(system, Mirrored) else system.sent() >= end


def section(rows: int, updates: int, *, debezium: bool = True) -> Section:
    """Measures all systems.

    Args:
        rows: of the table.
        updates: of the backlog.
        debezium: whether Debezium runs, too.

    Raises:
        LookupError: if no installation of PostgreSQL has pg_recvlogical.
        MissingError: if Debezium cannot be installed.
        AssertionError: if a table has other rows than the server.
    """
    with (
        tempfile.TemporaryDirectory(prefix="pgoutput-fast-updates-") as directory,
        _Updates(Path(directory), rows, debezium=debezium) as live,
    ):
        live.burst(max(updates // 10, IN_A_TRANSACTION), rows + 1)
        found = live.burst(updates, rows + 2)
        live.check()
        peaks = {each.name: each.tree.peak for each in live.systems}
    alone = found[Walsender.name]
    table = Section(
        f"a backlog of updates at random keys of {rows:,} rows",
        ["", "updates", "updates/s", "of the walsender", "CPU s/million", "peak MB"],
    )
    for name, burst in found.items():
        rate, most = burst.rows / burst.seconds[""], alone.rows / alone.seconds[""]
        table.rows.append(
            [
                name,
                f"{burst.rows:,}",
                f"{rate:,.0f}",
                f"{rate / most:.2f}",
                f"{burst.cpu / burst.rows * 1e6:.2f}",
                f"{peaks[name] / 1e6:,.0f}",
            ]
        )
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.mirror.updates", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the table")
    parser.add_argument("--updates", type=int, default=UPDATES, help="updates of the backlog")
    parser.add_argument("--no-debezium", action="store_true", help="leave Debezium out")
    parser.add_argument("--no-readme", action="store_true", help="do not rewrite README.md")
    given = parser.parse_args(arguments)
    heading = machine()
    try:
        found = section(given.rows, given.updates, debezium=not given.no_debezium)
    except MissingError as why:
        if os.environ.get("CI") == "true":
            raise
        print(f"without Debezium: {why}", flush=True)
        found = section(given.rows, given.updates, debezium=False)
    text = f"{heading}; 1 backlog.\n\n{found}"
    print(text)
    if (given.rows, given.updates) == (ROWS, UPDATES) and not given.no_readme:
        rewrite(README, text, *MARKERS)


if __name__ == "__main__":
    main()
