"""Measures how fast a backlog is captured: `python -m benchmarks.capture`.

It uses one server with one backlog of wide rows, and makes a copy of the slot for each run. The runs are pg_recvlogical
to /dev/null, psycopg2's own read loop, our read loop alone, and captures into segments through a walsender and through
SQL. The runs are interleaved. Before the timing, this checks the number of rows in the segments. At full scale it also
rewrites the table in README.md.
"""

from __future__ import annotations

import argparse
import resource
import select
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2

from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast import format_lsn
from pgoutput_fast.capture import Capture, create_slot, drop_slot, plugin_options
from pgoutput_fast.demo.servers import Server, find_installations
from pgoutput_fast.postgres.session import connect
from pgoutput_fast.postgres.walsender import Walsender
from pgoutput_fast.segments import list_segments, read_segment

__all__ = ["ROWS", "TABLE", "main", "measure", "section"]

BEGIN, END = "<!-- capture figures -->", "<!-- end of capture figures -->"
FULL_ROWS = 1_000_000
ROWS_IN_A_TRANSACTION = 1000
BATCH_BYTES = 1 << 22

RECVLOGICAL = "pg_recvlogical to /dev/null"
PSYCOPG = "psycopg2's read loop"
READ = "our read loop"
WALSENDER = "capture, walsender"
SQL = "capture, SQL"

TABLE = """
CREATE TABLE {table} (id bigint PRIMARY KEY, a int, b int, c smallint, price numeric(12,2), rate float8, yes bool,
    day date, at timestamptz, name text, note text, code varchar(20), key uuid, data bytea, more jsonb, big bigint)
"""
ROWS = """
INSERT INTO {table} SELECT g, g %% 1000, -g, g %% 100, g * 0.37, g * 1.7, g %% 3 = 0, date '2020-01-01' + g %% 2000,
    timestamptz '2024-01-01 00:00:00Z' + g * interval '1 second', 'customer number ' || g, repeat(md5(g::text), 4),
    'code-' || g %% 5000, md5(g::text)::uuid, decode(md5(g::text), 'hex'), json_build_object('k', g, 'v', g %% 7),
    g * 77777::bigint
FROM generate_series(%s, %s) g
"""


@dataclass(frozen=True)
class Figure:
    """The cost of a run.

    Attributes:
        wall: wall time in seconds.
        cpu: CPU time in seconds of the client, with its threads and children.
    """

    wall: float
    cpu: float


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.capture", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help=f"share of {FULL_ROWS:,} rows")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repetitions")
    parser.add_argument("--only", nargs="*", help="run only those whose names begin with one of these")
    parser.add_argument("--no-readme", action="store_true", help="do not rewrite README.md")
    given = parser.parse_args(arguments)
    rows = max(round(FULL_ROWS * given.scale), ROWS_IN_A_TRANSACTION)
    version, figures = measure(rows, given.rounds, given.only)
    table = section(rows, version, figures)
    text = (
        f"{machine()}; median of {given.rounds} interleaved rounds; wall time, and CPU time of the client and what it "
        f"started. The server, which decodes, takes a core of the same machine.\n\n{table}"
    )
    print(text)
    if given.scale == 1 and not given.no_readme and not given.only:
        rewrite(README, text, BEGIN, END)


def measure(rows: int, rounds: int, only: Sequence[str] | None = None) -> tuple[int, dict[str, list[Figure]]]:
    """Returns (the server's version, {kind of run: cost of every run}).

    Raises:
        AssertionError: if the number of rows in the segments is wrong.
        LookupError: if no installation has a pg_recvlogical.
    """
    able = [each for each in find_installations() if (each.bindir / "pg_recvlogical").exists()]
    if not able:
        raise LookupError("no PostgreSQL installation here has pg_recvlogical")
    installation = able[-1]
    with (
        Server(installation, {"logical_decoding_work_mem": "64MB"}) as server,
        tempfile.TemporaryDirectory() as directory,
    ):
        dsn, bench = server.dsn, _Bench(server.dsn, installation.bindir, Path(directory))
        with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
            cursor.execute(TABLE.format(table="wide"))
            cursor.execute("CREATE PUBLICATION backlog FOR ALL TABLES")
        create_slot(dsn, "backlog")
        with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
            for first in range(0, rows, ROWS_IN_A_TRANSACTION):
                cursor.execute(
                    ROWS.format(table="wide"), (first, min(first + ROWS_IN_A_TRANSACTION, rows) - 1)
                )
                connection.commit()
            cursor.execute("CHECKPOINT")
            cursor.execute("SELECT (pg_current_wal_lsn() - '0/0'::pg_lsn)::int8")
            bench.end = cursor.fetchone()[0]
        runs: dict[str, Callable[[str], None]] = {
            RECVLOGICAL: bench.recvlogical,
            PSYCOPG: bench.psycopg,
            READ: bench.read,
            WALSENDER: lambda slot: bench.capture(slot, "walsender"),
            SQL: lambda slot: bench.capture(slot, "sql"),
        }
        if only:
            runs = {name: run for name, run in runs.items() if name.startswith(tuple(only))}
        for name in (WALSENDER, SQL):
            if name in runs:
                bench.run("first", runs[name])
                assert bench.captured_rows() == rows, (
                    f"{name}: the segments and the table have different rows"
                )
        figures: dict[str, list[Figure]] = {name: [] for name in runs}
        for number in range(rounds):
            for name, run in runs.items():
                figures[name].append(bench.run(f"run{number}", run))
        return server.version, figures


class _Bench:
    def __init__(self, dsn: str, bindir: Path, directory: Path) -> None:
        self.dsn = dsn
        self.end = 0
        self._bindir = bindir
        self._directory = directory
        self._segments = directory
        self._number = 0

    def run(self, slot: str, task: Callable[[str], None]) -> Figure:
        with psycopg2.connect(self.dsn) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_copy_logical_replication_slot('backlog', %s)", (slot,))
        try:
            wall, cpu = time.perf_counter(), _cpu()
            task(slot)
            return Figure(time.perf_counter() - wall, _cpu() - cpu)
        finally:
            # The server notices only at its next write to the client that the client has disconnected.
            for _ in range(4800):
                try:
                    drop_slot(self.dsn, slot)
                    break
                except psycopg2.errors.ObjectInUse:
                    time.sleep(0.05)

    def captured_rows(self) -> int:
        """The number of inserts in the segments of the last run."""
        return sum(
            read_segment(each.path).column("kind").to_pylist().count(ord("I"))
            for each in list_segments(self._segments)
        )

    def recvlogical(self, slot: str) -> None:
        end = format_lsn(self.end)
        command = [
            str(self._bindir / "pg_recvlogical"), "--start", "--slot", slot, "--dbname", self.dsn,
            "--file", "/dev/null", "--endpos", end, "--no-loop",
        ]  # fmt: skip
        for name, value in self._options().items():
            command += ["--option", f"{name}={value}"]
        subprocess.run(command, check=True, capture_output=True)

    def psycopg(self, slot: str) -> None:
        connection = connect(self.dsn, replication=True)
        cursor: Any = connection.cursor()
        cursor.start_replication(slot_name=slot, decode=False, options=self._options(), status_interval=60)
        seen = 0
        while cursor.wal_end < self.end:
            message = cursor.read_message()
            if message is not None:
                seen += len(message.payload)
                continue
            cursor.send_feedback(reply=True)
            select.select([connection], [], [], 1)
        connection.close()

    def read(self, slot: str) -> None:
        with Walsender(self.dsn, slot, self._options()) as sender:
            while sender.wal_end < self.end:
                sender.read(BATCH_BYTES, 1, ask=True)

    def capture(self, slot: str, through: Any) -> None:
        self._number += 1
        self._segments = self._directory / str(self._number)
        Capture(self.dsn, slot, ["backlog"], self._segments, through=through).run(until_lsn=self.end)

    def _options(self) -> dict[str, str]:
        with psycopg2.connect(self.dsn) as connection:
            return plugin_options(connection.server_version, ["backlog"])


def _cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def section(rows: int, version: int, figures: dict[str, list[Figure]]) -> Section:
    """The figures as a table. Ratios are medians over the rounds."""
    table = Section(
        f"a backlog of {rows:,} wide rows from PostgreSQL {version}",
        ["", "wall s", "rows/s", "of pg_recvlogical", "CPU s", "CPU us/row", "CPU of psycopg2's"],
    )
    for name, runs in figures.items():
        wall, cpu = (statistics.median(getattr(each, what) for each in runs) for what in ("wall", "cpu"))
        table.rows.append(
            [
                name,
                f"{wall:.2f}",
                f"{rows / wall:,.0f}",
                _ratio(figures.get(RECVLOGICAL), runs, "wall"),
                f"{cpu:.2f}",
                f"{cpu / rows * 1e6:.2f}",
                _ratio(runs, figures.get(PSYCOPG), "cpu"),
            ]
        )
    return table


def _ratio(above: list[Figure] | None, below: list[Figure] | None, what: str) -> str:
    if above is None or below is None:
        return ""
    ratios = [getattr(a, what) / max(getattr(b, what), 1e-9) for a, b in zip(above, below, strict=True)]
    return f"{statistics.median(ratios):.2f}"


if __name__ == "__main__":
    main()
