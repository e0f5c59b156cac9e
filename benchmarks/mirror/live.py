"""Measures live mirrors on one server: ours, and embedded Debezium with deltalake, beside a plain walsender.

    python -m benchmarks.mirror.live                # some five minutes; rewrites the figures in README.md

All of them run, and are warm. Their walsenders are halted (SIGSTOP) while rows are committed, and resumed one at a
time. So each rate is that of a backlog from the moment at which its walsender resumes until the rows are visible in the
table. Then single rows are committed at a steady rate, and the versions of the tables show when they became visible. At
the end, the tables must have the same rows as the server. Then the table is loaded by a new mirror, and with ADBC.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from deltalake import DeltaTable

from benchmarks.capture import ROWS, ROWS_IN_A_TRANSACTION, TABLE
from benchmarks.mirror.load import timed, uri_of
from benchmarks.mirror.systems import DebeziumSystem, Mirrored, OurSystem, SoonSystem, System, Walsender, wait
from benchmarks.peers.installations import MissingError
from benchmarks.report import README, Section, machine, rewrite
from pgoutput_fast.demo.servers import Installation, Server, find_installations

__all__ = ["Halted", "Live", "main", "measured", "sections"]

MARKERS = "<!-- live figures -->", "<!-- end of live figures -->"
ROWS_OF_A_BURST, WARM_UP, SHARE = 2_000_000, 50_000, 0.1
RATE, SECONDS = 1000.0, 30.0
# As texts, where ADBC has its own types.
_QUERY = (
    "SELECT id, a, b, c, price::text, rate, yes, day, at, name, note, code, key::text, data, more::text, big "
    "FROM {}"
)


@dataclass
class Burst:
    """The cost of one backlog for a system.

    Attributes:
        rows: number of rows.
        seconds: until they were visible, by table; "" for a system without tables.
        cpu: CPU seconds of its processes meanwhile.
    """

    rows: int
    seconds: dict[str, float]
    cpu: float


@dataclass
class Figures:
    """All measurements of one system."""

    bursts: list[Burst] = field(default_factory=list)
    latencies: dict[str, Any] = field(default_factory=dict)
    steady_cpu: float = 0.0
    peak: int = 0


class Live:
    """The server and its clients. A context manager.

    Args:
        directory: for all files.
        debezium: whether Debezium runs, too.

    Raises:
        LookupError: if no installation of PostgreSQL has pg_recvlogical.
        MissingError: if Debezium cannot be installed, when the block begins and `debezium` is set.
    """

    def __init__(self, directory: Path, *, debezium: bool = True) -> None:
        self._directory, self._debezium = directory, debezium
        self._stack = ExitStack()
        self.figures: dict[str, Figures] = {}
        self.systems: list[System] = []
        self.counts = {"wide": 0, "wide_share": 0}
        able = [each for each in find_installations() if (each.bindir / "pg_recvlogical").exists()]
        if not able:
            raise LookupError("no PostgreSQL installation here has pg_recvlogical")
        self._installation: Installation = able[-1]

    def __enter__(self) -> Live:
        with ExitStack() as stack:
            # A capture waits as long as the server would. Otherwise it would connect again while it is halted.
            settings: dict[str, Any] = {"wal_sender_timeout": "1h", "max_wal_size": "8GB"}
            self.server = stack.enter_context(Server(self._installation, settings))
            for table in self.counts:
                self._execute(TABLE.format(table=table))
                self._execute(f"CREATE PUBLICATION {table} FOR TABLE {table}")
            dsn, place = self.server.dsn, self._directory
            made: list[System] = [
                Walsender(dsn, "wide", place / "alone", self._installation.bindir),
                OurSystem(dsn, "wide", place / "ours"),
                SoonSystem(dsn, "wide", place / "soon"),
            ]
            if self._debezium:
                made.append(DebeziumSystem(dsn, "wide_share", place / "debezium"))
            for each in made:
                self.systems.append(stack.enter_context(each))
                self.figures[each.name] = Figures()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _execute(self, statement: str, *values: object) -> Any:
        connection = self.server.connect()
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            found = cursor.fetchone() if cursor.description else None
        connection.close()
        return found

    # ---- bursts --------------------------------------------------------------------------------------------------

    def burst(self, rows: int, *, counts: bool = True) -> None:
        """Runs one backlog per system. Debezium's has a share of the rows.

        Args:
            rows: number of rows.
            counts: whether it is measured; otherwise it only warms up.
        """
        for table in ("wide", "wide_share"):
            systems = [each for each in self.systems if each.table == table]
            if not systems:
                continue
            with ExitStack() as halted:
                # Also those of the other table, because their walsenders would read past foreign changes.
                stopped = {each.name: halted.enter_context(Halted(each)) for each in self.systems}
                made = rows if table == "wide" or not counts else max(round(rows * SHARE), 1)
                end = self._commit(table, made)
                for each in systems:
                    before = each.tree.cpu
                    began = time.perf_counter()
                    stopped[each.name].go_on()
                    seconds = self._visible(each, end, began)
                    if counts:
                        self.figures[each.name].bursts.append(Burst(made, seconds, each.tree.cpu - before))
            # They do that before the next measurement begins.
            for each in self.systems:
                wait(lambda: each.sent() >= end, each.process)  # noqa: B023

    def _commit(self, table: str, rows: int) -> int:
        """Commits rows. Returns the LSN after them."""
        first = self.counts[table]
        connection = self.server.connect()
        with connection.cursor() as cursor:
            for begin in range(first, first + rows, ROWS_IN_A_TRANSACTION):
                last = min(begin + ROWS_IN_A_TRANSACTION, first + rows) - 1
                cursor.execute(ROWS.format(table=table), (begin, last))
                connection.commit()
        connection.close()
        self.counts[table] += rows
        (end,) = self._execute("SELECT (pg_current_wal_lsn() - '0/0')::int8")
        return int(end)

    def _visible(self, system: System, end: int, began: float) -> dict[str, float]:
        """Waits until all changes are visible in a system. Returns the seconds until then, by table."""
        if not isinstance(system, Mirrored):
            wait(lambda: system.sent() >= end, system.process)
            return {"": time.perf_counter() - began}
        left, seconds = {"history": system.history, "current": system.current}, {}
        wanted = self.counts[system.table]

        def look() -> bool:
            for name, path in list(left.items()):
                if system.rows(path) >= wanted:
                    seconds[name] = time.perf_counter() - began
                    del left[name]
            return not left

        wait(look, system.process)
        return seconds

    # ---- a steady rate -------------------------------------------------------------------------------------------

    def steady(self, rate: float, seconds: float) -> None:
        """Commits single rows at a rate, for one mirror after another, while the others are halted."""
        for system in [each for each in self.systems if isinstance(each, Mirrored)]:
            with ExitStack() as halted:
                for other in self.systems:
                    if other is not system:
                        halted.enter_context(Halted(other))
                self._steady(system, rate, max(round(rate * seconds), 1))
            (end,) = self._execute("SELECT (pg_current_wal_lsn() - '0/0')::int8")
            for other in self.systems:
                wait(lambda: other.sent() >= end, other.process)  # noqa: B023

    def _steady(self, system: Mirrored, rate: float, count: int) -> None:
        first = self.counts[system.table]
        words = [self.server.dsn, system.table, str(first), str(rate), str(count)]
        before, found = system.tree.cpu, self.figures[system.name]
        writer = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mirror.steady", *words],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        seen: dict[str, list[tuple[float, int]]] = {name: [] for name in system.last_ids()}
        last = first + count - 1

        def look() -> bool:
            if writer.poll():
                raise RuntimeError("the process that commits rows has failed")
            for name, newest in system.last_ids().items():
                if not seen[name] or seen[name][-1][1] < newest:
                    seen[name].append((time.time(), newest))
            return all(each[-1][1] >= last for each in seen.values())

        wait(look, system.process)
        said, _ = writer.communicate(timeout=60)
        found.steady_cpu = (system.tree.cpu - before) / (count / rate)
        committed = np.array(json.loads(said))
        for name, each in seen.items():
            # The first sample in which each row was visible.
            at = np.searchsorted([newest for _, newest in each], np.arange(first, last + 1))
            found.latencies[name] = np.array([when for when, _ in each])[at] - committed
        self.counts[system.table] += count

    # ---- the end -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Records the memory, and checks the tables.

        Raises:
            AssertionError: if a table has other rows than the server.
        """
        for system in self.systems:
            self.figures[system.name].peak = system.tree.peak
            if isinstance(system, Mirrored):
                expected = self._execute(
                    f"SELECT count(*), sum(id)::int8, sum(big)::int8, sum(price) FROM {system.table}"
                )
                for path in (system.history, system.current):
                    rows = DeltaTable(str(path)).to_pyarrow_dataset().to_table(["id", "big", "price"])
                    sums = tuple(pc.sum(rows[name]).as_py() for name in ("id", "big", "price"))
                    assert (rows.num_rows, *sums) == expected, f"{system.name}: {path.name} has other rows"

    def load(self) -> dict[str, tuple[float, float, int]]:
        """Returns {name: (wall seconds, CPU seconds, peak memory)} of loading the existing table."""
        place = self._directory / "loads"
        query = f"wide={_QUERY.format('wide')}"
        adbc = ["benchmarks.mirror.loaders", "adbc", uri_of(self.server.dsn), str(place / "adbc"), query]
        ours = [
            "pgoutput_fast", "mirror", "--slot", "load", "--publication", "wide", "--target", str(place / "ours"),
            "--until", "now", "--quiet",
        ]  # fmt: skip
        return {
            name: timed(
                [sys.executable, "-m", *module],
                PGOUTPUT_FAST_DSN=self.server.dsn,
                PYTHONPATH=os.pathsep.join(sys.path),
            )
            for name, module in {
                "our mirror: history and current": ours,
                "ADBC, deltalake: one table": adbc,
            }.items()
        }


class Halted:
    """Halts the walsender of a system during a with block, or until it is resumed."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._pid: int | None = None

    def __enter__(self) -> Halted:
        wait(self._system.walsender, self._system.process)
        self._pid = self._system.walsender()
        assert self._pid is not None
        os.kill(self._pid, signal.SIGSTOP)
        return self

    def go_on(self) -> None:
        if self._pid is not None:
            os.kill(self._pid, signal.SIGCONT)
            self._pid = None

    def __exit__(self, *exception: object) -> None:
        self.go_on()


# ---- the report ------------------------------------------------------------------------------------------------------


def sections(live: Live, loads: dict[str, tuple[float, float, int]], rate: float) -> list[Section]:
    """The tables of the report."""
    return [_bursts(live), _steady(live, rate), _loads(live, loads)]


def _bursts(live: Live) -> Section:
    found = Section(
        f"a backlog of wide rows from PostgreSQL {live.server.version}",
        ["", "visible in", "rows", "rows/s", "of the walsender", "CPU s/million", "peak MB"],
    )
    alone = live.figures[Walsender.name].bursts
    for name, figures in live.figures.items():
        for table in figures.bursts[0].seconds:
            rates = [each.rows / each.seconds[table] for each in figures.bursts]
            ratios = [
                rate / (other.rows / other.seconds[""]) for rate, other in zip(rates, alone, strict=True)
            ]
            cpu = statistics.median(each.cpu / each.rows for each in figures.bursts)
            found.rows.append(
                [
                    name,
                    table,
                    f"{figures.bursts[0].rows:,}",
                    f"{statistics.median(rates):,.0f}",
                    f"{statistics.median(ratios):.2f}",
                    f"{cpu * 1e6:.2f}",
                    f"{figures.peak / 1e6:,.0f}",
                ]
            )
    return found


def _steady(live: Live, rate: float) -> Section:
    found = Section(
        f"{rate:,.0f} transactions a second: seconds from the commit to the visible row",
        ["", "visible in", "p50", "p99", "most", "CPU s/s"],
    )
    for name, figures in live.figures.items():
        for table, latencies in figures.latencies.items():
            at = [f"{each:.2f}" for each in (*np.percentile(latencies, [50, 99]), latencies.max())]
            found.rows.append([name, table, *at, f"{figures.steady_cpu:.2f}"])
    return found


def _loads(live: Live, loads: dict[str, tuple[float, float, int]]) -> Section:
    rows = live.counts["wide"]
    found = Section(f"the first load of {rows:,} rows", ["", "wall s", "rows/s", "CPU s/million", "peak MB"])
    for name, (wall, cpu, peak) in loads.items():
        found.rows.append(
            [name, f"{wall:.1f}", f"{rows / wall:,.0f}", f"{cpu / rows * 1e6:.2f}", f"{peak / 1e6:,.0f}"]
        )
    return found


@contextmanager
def _opened(debezium: bool) -> Iterator[Live]:
    """The systems; without Debezium if it cannot be installed, unless CI=true."""
    with tempfile.TemporaryDirectory(prefix="pgoutput-fast-live-") as directory, ExitStack() as stack:
        try:
            live = stack.enter_context(Live(Path(directory), debezium=debezium))
        except MissingError as why:
            if os.environ.get("CI") == "true":
                raise
            print(f"without Debezium: {why}", flush=True)
            live = stack.enter_context(Live(Path(directory) / "without", debezium=False))
        yield live


def measured(
    rows: int,
    rounds: int,
    rate: float,
    seconds: float,
    warm_up: int = WARM_UP,
    *,
    debezium: bool = True,
) -> tuple[Live, list[Section]]:
    """All figures.

    Args:
        rows: of a backlog.
        rounds: number of backlogs.
        rate: rows per second that are then committed one by one.
        seconds: for how long.
        warm_up: rows of the first backlog, which does not count.
        debezium: whether Debezium runs, too.

    Raises:
        LookupError: if no installation of PostgreSQL has pg_recvlogical.
        MissingError: if Debezium cannot be installed, and CI=true.
        AssertionError: if a table has other rows than the server.
    """
    with _opened(debezium) as live:
        live.burst(warm_up, counts=False)
        for _ in range(rounds):
            live.burst(rows)
        live.steady(rate, seconds)
        live.finish()
        return live, sections(live, live.load(), rate)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.mirror.live", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS_OF_A_BURST, help="rows of a backlog")
    parser.add_argument("--rounds", type=int, default=1, help="how many backlogs")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="how long rows are committed one by one"
    )
    parser.add_argument("--no-readme", action="store_true", help="do not rewrite README.md")
    given = parser.parse_args(arguments)
    began, heading = time.monotonic(), machine()
    _, found = measured(given.rows, given.rounds, RATE, given.seconds)
    text = f"{heading}; {given.rounds} backlog{'s' if given.rounds > 1 else ''}.\n\n" + "\n".join(
        map(str, found)
    )
    print(text)
    print(f"took {time.monotonic() - began:.0f} s")
    if given.rows == ROWS_OF_A_BURST and not given.no_readme:
        rewrite(README, text, *MARKERS)


if __name__ == "__main__":
    main()
