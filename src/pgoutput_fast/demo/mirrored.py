"""The demo's mirror: it is killed while the shop works, goes on, and DuckDB asks it."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from pgoutput_fast import parse_lsn
from pgoutput_fast.demo import rebuild, shop
from pgoutput_fast.demo.report import Progress, Report
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import fresh, points
from pgoutput_fast.tables.directories import directory_of

__all__ = ["mirror_shop"]

_SLOT = "shop_mirror"
# The range of seconds after which the mirror is killed: while it loads, or after that.
_KILLED_AFTER = (2.0, 7.0)
# How long the shop works while nobody mirrors it, and then beside the second mirror.
_ALONE, _BESIDE = 1.0, 4.0
_MOST_SECONDS = 240.0
_WATCH_SECONDS = 0.1
# Both DuckDB and the server understand it.
QUERY = (
    "SELECT CAST(status AS varchar) AS status, count(*) AS orders, sum(total) AS total\nFROM public.orders\n"
    "GROUP BY status ORDER BY status"
)


def mirror_shop(
    server: Server,
    target: Path,
    orders: int,
    report: Report,
    step: Callable[[str], object] = lambda text: None,
) -> None:
    """Mirrors the shop's tables while it is open, kills the mirror once, and compares the tables with the server's.

    Args:
        server: the server with the shop.
        target: target of the mirror.
        orders: the number of orders in the shop.
        report: gets the results, and the differences from the server.
        step: called with what the mirror does now.
    """
    started = time.perf_counter()

    def happened(text: str) -> None:
        step(text)
        report.events.append((time.perf_counter() - started, text))

    def lsn_now() -> int:
        ((lsn,),) = _asked(server, "SELECT pg_catalog.pg_current_wal_lsn()::pg_catalog.text")
        return parse_lsn(lsn)

    with _beside(lambda stop: _watch(lsn_now, target, started, report, stop)):
        with _beside(lambda stop: _work(server, orders, stop)):
            process = _start(server, target)
            try:
                time.sleep(random.uniform(*_KILLED_AFTER))
            finally:
                process.kill()
                process.communicate()
            during = "after" if _position(target) is not None else "during"
            happened(f"kill -9, {during} its first load")
            time.sleep(_ALONE)
            process = _start(server, target)
            happened("it runs again")
            time.sleep(_BESIDE)
        happened("the shop closes")
        problem = _finished(process, target, lsn_now())
        happened("everything is mirrored")
    if problem is not None:
        report.failures.append(f"the mirror: {problem}")
        return
    _compare(server, target, report)
    _ask(server, target, report)


@contextlib.contextmanager
def _beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Runs `work(stop)` in a thread beside the block, and sets `stop` at its end."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _work(server: Server, orders: int, stop: threading.Event) -> None:
    connection = server.connect()
    try:
        for _ in shop.run_on(connection, orders):
            if stop.wait(0.02):
                return
    finally:
        connection.close()


def _watch(
    lsn_now: Callable[[], int], target: Path, started: float, report: Report, stop: threading.Event
) -> None:
    while True:
        ended = stop.wait(_WATCH_SECONDS)
        mirror, seconds = _position(target), time.perf_counter() - started
        report.progress.append(Progress(seconds, lsn_now(), mirror))
        if ended:
            return


def _position(target: Path) -> int | None:
    """The LSN up to which all tables of the mirror have everything; None before the end of its load."""
    with contextlib.suppress(LookupError):
        if known := points(target):
            return known[-1].through
    return None


def _start(server: Server, target: Path) -> subprocess.Popen[str]:
    given = ["--slot", _SLOT, "--publication", shop.PUBLICATION, "--target", str(target)]
    environment = {
        **os.environ,
        "PGOUTPUT_FAST_DSN": server.dsn,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pgoutput_fast", "mirror", *given, "--seconds", "1", "--quiet"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _finished(process: subprocess.Popen[str], target: Path, lsn: int) -> str | None:
    """Waits until the mirror has everything up to an LSN, and ends it. Returns why it failed."""
    deadline = time.monotonic() + _MOST_SECONDS
    try:
        while (_position(target) or 0) < lsn and process.poll() is None and time.monotonic() < deadline:
            time.sleep(_WATCH_SECONDS)
        is_complete = (_position(target) or 0) >= lsn
        process.terminate()
        _, output = process.communicate(timeout=_MOST_SECONDS)
    except BaseException:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        return output.strip() or f"its exit status is {process.returncode}"
    return None if is_complete else f"it did not have everything after {_MOST_SECONDS:.0f} seconds"


def _compare(server: Server, target: Path, report: Report) -> None:
    """Compares the current tables with the server's."""
    for name, key in shop.TABLES.items():
        table = DeltaTable(str(target / "current" / directory_of(name)))
        rows = pa.table(table.to_pyarrow_table())
        columns = pa.schema([field for field in rows.schema if not field.name.startswith("_")])
        mirrored = {tuple(row[each] for each in key): row for row in rows.select(columns.names).to_pylist()}
        problems = rebuild.differences(mirrored, rebuild.read_server(server, name, columns, key))
        if len(mirrored) < rows.num_rows:
            problems.append("rows are there twice")
        report.failures += [f"{name} in the mirror: {problem}" for problem in problems]
        result = report.table(name)
        result.mirrored, result.version = rows.num_rows, table.version()
        result.equal["mirror"] = not problems


def _ask(server: Server, target: Path, report: Report) -> None:
    """Asks DuckDB and the server the same."""
    with duckdb.connect() as connection:
        connection.register("orders", fresh(target, "public.orders", ["status", "total"]))
        asked = connection.sql(QUERY.replace("public.orders", "orders"))
        report.query, report.answer = QUERY, (list(asked.columns), asked.fetchall())
    if sorted(report.answer[1]) != sorted(_asked(server, QUERY)):
        report.failures.append("DuckDB's answer differs from the server's")


def _asked(server: Server, query: str) -> list[tuple[Any, ...]]:
    connection = server.connect()
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            return [tuple(row) for row in cursor.fetchall()]
    finally:
        connection.close()
