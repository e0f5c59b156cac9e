"""The main job on embedded defaults: a real PostgreSQL, its tables and then its changes captured while it works, Delta
tables written by Spark, and a proof. Then a mirror of the tables, which is killed, and a query of DuckDB over it.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, Limits, Loaded, LoadProgress, Snapshot, check
from pgoutput_fast.demo import rebuild, shop
from pgoutput_fast.demo.java import spark_environment
from pgoutput_fast.demo.mirrored import mirror_shop
from pgoutput_fast.demo.servers import Server, find_installations
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog
from pgoutput_fast.spark.types import spark_arrow_schema

# Small limits, so that a stream of a few seconds has several segments.
LIMITS = Limits(rows=30_000, seconds=1.0)
# Columns omitted in the printed sample rows.
HIDDEN = ("_lsn", "_txn", "_subxid", "_commit_lsn", "_unrepresentable")


def run_demo(orders: int, version: int | None = None) -> int:
    """Runs the demo.

    Args:
        orders: number of orders that the shop takes.
        version: major version of PostgreSQL; None for the system's, or otherwise the newest one installed.

    Returns:
        The exit status: 0 only if every rebuilt table equals the server's.
    """
    console = Console()
    installations = [i for i in find_installations() if version in (None, i.version)]
    if not installations:
        console.print(
            "[red]There is no PostgreSQL server here.[/] Install one: pip install 'pgoutput_fast\\[demo]'"
        )
        return 1
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        tempfile.TemporaryDirectory(prefix="pgoutput-demo-") as directory,
        Progress(*columns, console=console) as progress,
    ):
        return _run(Path(directory), _preferred(installations), orders, console, progress)


def _preferred(installations: list[Any]) -> Any:
    """Returns a system installation if there is one, otherwise the newest of the others."""
    system = [i for i in installations if i.origin == "system"]
    return (system or sorted(installations, key=lambda i: i.version))[-1]


def _run(directory: Path, installation: Any, orders: int, console: Console, progress: Progress) -> int:
    with Server(installation) as server:
        console.print(f"PostgreSQL {server.version} ({installation.origin}) on port {server.port}")
        segments = directory / "segments"
        connection = server.connect()
        shop.prepare(connection)
        loaded, catalog = _capture(
            connection, server.dsn, directory / "tables", segments, orders, console, progress
        )
        connection.close()
        rows = pa.concat_tables([read_segment(each.path) for each in list_segments(segments)])
        (tagged,) = rows.combine_chunks().to_batches()
        messages, size = list_segments(segments)[-1].last_seq + 1, tagged.column("payload").nbytes
        _decode_here(tagged, catalog, messages, size, console)
        failed = _write_tables(
            segments, directory / "lake", loaded, catalog, server, messages, size, console, progress
        )
        failures = mirror_shop(server, directory / "mirror", orders, console, progress)
        for failure in failures:
            console.print(f"[red]{failure}")
        return 1 if failures else failed


def _capture(
    connection: Any, dsn: str, tables: Path, segments: Path, orders: int, console: Console, progress: Progress
) -> tuple[Loaded, pgo.Catalog]:
    """Loads the tables as of one snapshot and captures all later changes, while the shop works."""
    console.print(str(check(dsn, [shop.PUBLICATION], shop.SLOT)), style="dim", markup=False, highlight=False)
    work = shop.run(connection, orders)
    task = progress.add_task("the shop is open: orders", total=orders)
    placed = 0
    while placed < orders // 4:
        step = next(work)
        placed += step
        progress.advance(task, step)
    capture = Capture(dsn, shop.SLOT, [shop.PUBLICATION], segments, limits=LIMITS)
    loading = progress.add_task("loading its tables: ranges", total=None)

    def show(now: LoadProgress) -> None:
        progress.update(loading, completed=now.ranges, total=now.all_ranges)

    is_loaded = threading.Event()

    def work_on(_: object) -> None:
        done = placed
        for step in work:
            done += step
            progress.advance(task, step)
            # A table that is rewritten during the load cannot be loaded. The shop will soon alter a table, so it waits
            # here.
            if done >= orders * 3 // 8:
                is_loaded.wait()

    with Snapshot(dsn, [shop.PUBLICATION], shop.SLOT) as snapshot, _beside(work_on) as working:
        try:
            loaded = snapshot.load_to(tables, threads=2, progress=show)
        finally:
            is_loaded.set()
        snapshot.close()
        # Capture while the shop works, then again up to the end. The second run continues after the first one.
        taking = progress.add_task("capturing its changes: segments", total=None)
        with _beside(lambda stop: capture.run(stop=stop)):
            while working.is_alive():
                time.sleep(0.05)
    capture.run(until_lsn="now")
    progress.update(taking, total=(count := len(list_segments(segments))), completed=count)
    rows = sum(each.rows for each in loaded.tables.values())
    console.print(
        f"loaded {rows:,} rows of {len(loaded.tables)} tables, and captured {count} segments of changes"
    )
    # The snapshot's catalog has the types from the server. The stream lacks them, for instance a domain's digits.
    return loaded, snapshot.catalog.merged(segment_catalog(segments))


@contextmanager
def _beside(work: Any) -> Iterator[threading.Thread]:
    """Runs `work(stop)` on a thread beside the block, sets `stop` at the block's end, and waits for the thread."""
    failed: list[BaseException] = []
    stop = threading.Event()

    def run() -> None:
        try:
            work(stop)
        except BaseException as problem:
            failed.append(problem)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]


def _decode_here(
    tagged: pa.RecordBatch, catalog: pgo.Catalog, messages: int, size: int, console: Console
) -> None:
    """Decodes the same messages in this process, on one core."""
    started = time.perf_counter()
    decoded = pgo.decode_tagged(tagged, catalog)
    seconds = time.perf_counter() - started
    console.print(
        f"{decoded!r} in {seconds * 1000:.0f} ms on one core: {messages / seconds:,.0f} messages/s, "
        f"{size / seconds / 1e6:,.0f} MB/s"
    )


def _session(progress: Progress) -> Any:
    os.environ.update(spark_environment())
    # At every start, PySpark 4 warns that pandas 3 is newer than PySpark.
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
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.pyspark.validateSchema.enabled", "true")
        .getOrCreate()
    )
    progress.advance(task)
    return spark


def _write_tables(
    segments: Path,
    lake: Path,
    loaded: Loaded,
    catalog: pgo.Catalog,
    server: Server,
    messages: int,
    size: int,
    console: Console,
    progress: Progress,
) -> int:
    """Writes the changes as Delta tables, and compares them, applied to the loaded rows, with the server."""
    from pgoutput_fast import spark as pgspark

    spark = _session(progress)
    try:
        names = list(shop.TABLES)
        task = progress.add_task("writing Delta tables: runs", total=2)
        # The first run includes the start of the workers.
        for target in (lake / "first", lake / "tables"):
            started = time.perf_counter()
            written = pgspark.write_tables(
                segments, target, tables=names, format="delta", catalog=catalog, spark=spark
            )
            seconds = time.perf_counter() - started
            progress.advance(task)
        failures = [f"{name}: {problem}" for name, problem in loaded.lost.items()]
        changes = {
            name: DeltaTable(str(lake / "tables" / row["table"])).to_pyarrow_table()
            for name, row in zip(names, written, strict=True)
        }
        proof = progress.add_task("comparing with the server: tables", total=len(names))
        compared = Table(
            "table",
            "rows loaded",
            "changes",
            "rows",
            "equal to the server's",
            title="Rebuilt from what was loaded and its changes",
        )
        for name, rows in changes.items():
            if name in loaded.lost:
                continue
            before = pq.read_table(loaded.tables[name].path, partitioning=None)
            ordered = rows.sort_by([("_commit_lsn", "ascending"), ("_seq", "ascending")])
            problems, count = _compare(server, name, before, ordered)
            failures += [f"{name}: {problem}" for problem in problems]
            counts = f"{before.num_rows:,}", f"{rows.num_rows:,}", f"{count:,}"
            compared.add_row(name, *counts, "[red]no" if problems else "[green]yes")
            progress.advance(proof)
        progress.stop()
        for name, rows in changes.items():
            console.print(f"[bold]{name}")
            data = [column for column in rows.column_names if column not in HIDDEN]
            first = rows.sort_by("_seq").select(data).slice(0, 3)
            spark.createDataFrame(first).show(truncate=24)
        console.print(compared)
        count = sum(row["rows"] for row in written)
        console.print(
            f"{messages:,} messages ({size / 1e6:.1f} MB) became {count:,} rows of {len(names)} Delta tables on "
            f"local[2] in {seconds:.1f} s: {messages / seconds:,.0f} messages/s, without the start of Spark"
        )
        for failure in failures:
            console.print(f"[red]{failure}")
        return 1 if failures else 0
    finally:
        spark.stop()


def _compare(server: Server, name: str, before: pa.Table, changes: pa.Table) -> tuple[list[str], int]:
    """Rebuilds a table from the loaded rows and the changes. Returns (differences, number of rows)."""
    key = shop.TABLES[name]
    loaded = to_types(before, spark_arrow_schema(before.schema, "string"))
    try:
        rebuilt = rebuild.rebuild([*loaded.to_pylist(), *changes.to_pylist()], key)
    except KeyError:
        return ["a change met a row that is not there: changes were lost"], 0
    columns = pa.schema([field for field in changes.schema if not field.name.startswith("_")])
    own = rebuild.read_server(server, name, columns, key)
    return rebuild.differences(rebuilt, own), len(rebuilt)
