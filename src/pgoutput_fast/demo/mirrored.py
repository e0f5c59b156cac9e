"""The demo's mirror: replicates the shop's tables to a lake although it is killed once, and DuckDB queries them."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from pgoutput_fast.demo import rebuild, shop
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.mirror import fresh
from pgoutput_fast.tables.directories import directory_of

__all__ = ["mirror_shop"]

_SLOT = "shop_mirror"
# The range of seconds after which the mirror is killed: while it loads, or after that.
_KILLED_AFTER = (2.0, 7.0)
_MOST_SECONDS = 240.0
_COLUMNS = ("status", "orders", "total")
_QUERY = (
    "SELECT CAST(status AS varchar) AS status, count(*) AS orders, sum(total) AS total\nFROM {orders}\n"
    "GROUP BY status ORDER BY status"
)


def mirror_shop(
    server: Server, target: Path, orders: int, console: Console, progress: Progress, seed: float | None = None
) -> list[str]:
    """Mirrors the shop's tables while it is open, and kills the mirror once.

    Args:
        server: the server with the shop.
        target: target of the mirror.
        orders: the number of orders in the shop.
        console, progress: for output.
        seed: determines when the mirror is killed; None for a random time.

    Returns:
        The differences from the server; empty if there are none.
    """
    task = progress.add_task("mirroring: kill -9, and again", total=2)
    seconds = random.Random(seed).uniform(*_KILLED_AFTER)
    stop = threading.Event()
    worker = threading.Thread(target=_work, args=(server, orders, stop))
    worker.start()
    try:
        process = _start(server, target)
        try:
            time.sleep(seconds)
        finally:
            process.kill()
            process.communicate()
        progress.advance(task)
        time.sleep(0.5)  # the shop continues meanwhile
    finally:
        stop.set()
        worker.join()
    state = "after" if _has_loaded(target) else "during"
    console.print(f"killed the mirror after {seconds:.1f} s, {state} its first load; it runs again")
    again = _start(server, target, "--until", "now")
    try:
        _, output = again.communicate(timeout=_MOST_SECONDS)
    except BaseException:
        again.kill()
        again.communicate()
        raise
    progress.advance(task)
    if again.returncode:
        return [f"the mirror: {output.strip()}"]
    return [*_compare(server, target, console), *_ask(server, target, console)]


def _work(server: Server, orders: int, stop: threading.Event) -> None:
    connection = server.connect()
    try:
        for _ in shop.run_on(connection, orders):
            if stop.wait(0.02):
                return
    finally:
        connection.close()


def _start(server: Server, target: Path, *more: str) -> subprocess.Popen[str]:
    given = [
        "--slot",
        _SLOT,
        "--publication",
        shop.PUBLICATION,
        "--target",
        str(target),
        "--seconds",
        "1",
        "--quiet",
    ]
    environment = {
        **os.environ,
        "PGOUTPUT_FAST_DSN": server.dsn,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    return subprocess.Popen(
        [sys.executable, "-m", "pgoutput_fast", "mirror", *given, *more],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def _has_loaded(target: Path) -> bool:
    return (target / "_mirror" / "progress.json").exists()


def _compare(server: Server, target: Path, console: Console) -> list[str]:
    """The differences between the current tables and the server's."""
    report = Table("table", "version", "rows", "equal to the server's", title="Mirrored, and killed once")
    failures = []
    for name, key in shop.TABLES.items():
        table = DeltaTable(str(target / "current" / directory_of(name)))
        rows = pa.table(table.to_pyarrow_table())
        columns = pa.schema([field for field in rows.schema if not field.name.startswith("_")])
        mirrored = {tuple(row[each] for each in key): row for row in rows.select(columns.names).to_pylist()}
        problems = rebuild.differences(mirrored, rebuild.read_server(server, name, columns, key))
        if len(mirrored) < rows.num_rows:
            problems.append("rows are there twice")
        failures += [f"{name}: {problem}" for problem in problems]
        report.add_row(
            name, str(table.version()), f"{rows.num_rows:,}", "[red]no" if problems else "[green]yes"
        )
    console.print(report)
    return failures


def _ask(server: Server, target: Path, console: Console) -> list[str]:
    """Runs the same query in DuckDB and on the server. Returns the differences."""
    with duckdb.connect() as connection:
        connection.register("orders", fresh(target, "public.orders", ["status", "total"]))
        found = connection.execute(_QUERY.format(orders="orders")).fetchall()
    asked = server.connect()
    try:
        with asked, asked.cursor() as cursor:
            cursor.execute(_QUERY.format(orders="public.orders"))
            expected = cursor.fetchall()
    finally:
        asked.close()
    report = Table(*_COLUMNS, title="DuckDB over the mirror")
    for status, orders, total in found:
        report.add_row(str(status), f"{orders:,}", f"{total:,}")
    console.print(report)
    return (
        []
        if sorted(map(tuple, found)) == sorted(map(tuple, expected))
        else ["DuckDB answers something else than the server"]
    )
