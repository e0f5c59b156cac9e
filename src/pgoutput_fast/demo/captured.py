"""The demo's capture of the shop's tables and then of its changes, and the Delta tables that Spark writes of them."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

import pgoutput_fast as pgo
from pgoutput_fast.capture import Capture, Limits, Loaded, LoadProgress, Snapshot
from pgoutput_fast.demo import rebuild, shop
from pgoutput_fast.demo.java import spark_environment
from pgoutput_fast.demo.report import Report
from pgoutput_fast.demo.servers import Server
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog
from pgoutput_fast.spark.types import spark_arrow_schema

__all__ = ["Step", "capture_shop", "decode_here", "write_tables"]

#: (what is done now, how much of it, of how much in all; None if unknown).
Step = Callable[[str, int, "int | None"], object]

# Small limits, so that a stream of a few seconds has several segments.
LIMITS = Limits(rows=30_000, seconds=1.0)
# The metadata columns of the sample rows on the page.
_SHOWN = ("_change_type", "_seq")
_DECODED = 3


def capture_shop(
    server: Server, tables: Path, segments: Path, report: Report, step: Step
) -> tuple[Loaded, pgo.Catalog]:
    """Loads the tables as of one snapshot and captures all later changes, while the shop works.

    Returns:
        What was loaded, and the catalog of the changes.
    """
    connection = server.connect()
    shop.prepare(connection)
    work = shop.run(connection, report.orders)
    placed = 0
    while placed < report.orders // 4:
        placed += next(work)
        step("the shop is open: orders", placed, report.orders)
    is_loaded = threading.Event()

    def work_on(_: object) -> None:
        done = placed
        for count in work:
            done += count
            step("the shop is open: orders", done, report.orders)
            # A table that is rewritten during the load cannot be loaded. The shop will soon alter a table, so it waits
            # here.
            if done >= report.orders * 3 // 8:
                is_loaded.wait()

    def show(now: LoadProgress) -> None:
        step("loading its tables: ranges", now.ranges, now.all_ranges)

    capture = Capture(server.dsn, shop.SLOT, [shop.PUBLICATION], segments, limits=LIMITS)
    with Snapshot(server.dsn, [shop.PUBLICATION], shop.SLOT) as snapshot, _beside(work_on) as working:
        try:
            loaded = snapshot.load_to(tables, threads=2, progress=show)
        finally:
            is_loaded.set()
        snapshot.close()
        # Capture while the shop works, then again up to the end. The second run continues after the first one.
        with _beside(lambda stop: capture.run(stop=stop)):
            while working.is_alive():
                time.sleep(0.05)
    capture.run(until_lsn="now")
    connection.close()
    report.segments = len(list_segments(segments))
    for name, result in loaded.tables.items():
        report.table(name).loaded = result.rows
    report.failures += [f"{name}: {problem}" for name, problem in loaded.lost.items()]
    # The snapshot's catalog has the types from the server. The stream lacks them, for instance a domain's digits.
    return loaded, snapshot.catalog.merged(segment_catalog(segments))


@contextlib.contextmanager
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


def decode_here(segments: Path, catalog: pgo.Catalog, report: Report) -> None:
    """Decodes the captured messages in this process, on one core."""
    rows = pa.concat_tables([read_segment(each.path) for each in list_segments(segments)])
    (tagged,) = rows.combine_chunks().to_batches()
    report.messages, report.nbytes = (
        list_segments(segments)[-1].last_seq + 1,
        tagged.column("payload").nbytes,
    )
    seconds = []
    for _ in range(_DECODED):
        started = time.perf_counter()
        pgo.decode_tagged(tagged, catalog)
        seconds.append(time.perf_counter() - started)
    report.decode_seconds = statistics.median(seconds)


def write_tables(
    segments: Path,
    lake: Path,
    loaded: Loaded,
    catalog: pgo.Catalog,
    server: Server,
    report: Report,
    step: Step,
) -> None:
    """Writes the changes as Delta tables, and compares them, applied to the loaded rows, with the server."""
    from pgoutput_fast import spark as pgspark

    step("starting Spark", 0, 1)
    with _quiet():
        spark = _session()
    try:
        names = list(shop.TABLES)
        # The first run includes the start of the workers.
        for k, target in enumerate((lake / "first", lake / "tables")):
            step("writing Delta tables: runs", k, 2)
            started = time.perf_counter()
            written = pgspark.write_tables(
                segments, target, tables=names, format="delta", catalog=catalog, spark=spark
            )
            report.spark_seconds = time.perf_counter() - started
    finally:
        spark.stop()
    report.spark_rows = sum(row["rows"] for row in written)
    for k, (name, row) in enumerate(zip(names, written, strict=True)):
        step("comparing with the server: tables", k, len(names))
        changes = DeltaTable(str(lake / "tables" / row["table"])).to_pyarrow_table()
        if name == "public.orders":
            report.sample = _sample(changes)
        if name not in loaded.lost:
            _compare(
                server, name, pq.read_table(loaded.tables[name].path, partitioning=None), changes, report
            )


def _sample(changes: pa.Table) -> tuple[list[str], list[list[str]]]:
    """The changes of an order whose key changed, as text; none if there is no such order."""
    moved = changes.filter(pc.field("_change_type") == "update_preimage")
    if not moved.num_rows:
        return [], []
    columns = [name for name in changes.column_names if name in _SHOWN or not name.startswith("_")]
    rows = (
        changes.filter(pc.equal(pc.abs(changes["id"]), pc.abs(moved["id"][-1])))
        .sort_by("_seq")
        .select(columns)
    )
    return columns, [["" if each is None else str(each) for each in row.values()] for row in rows.to_pylist()]


def _compare(server: Server, name: str, before: pa.Table, changes: pa.Table, report: Report) -> None:
    """Rebuilds a table from the loaded rows and the changes, and compares it with the server's."""
    key = shop.TABLES[name]
    loaded = to_types(before, spark_arrow_schema(before.schema, "string"))
    ordered = changes.sort_by([("_commit_lsn", "ascending"), ("_seq", "ascending")])
    result = report.table(name)
    result.changes = changes.num_rows
    try:
        rebuilt = rebuild.rebuild([*loaded.to_pylist(), *ordered.to_pylist()], key)
    except KeyError:
        problems = ["a change met a row that is not there: changes were lost"]
    else:
        result.rows = len(rebuilt)
        columns = pa.schema([field for field in changes.schema if not field.name.startswith("_")])
        problems = rebuild.differences(rebuilt, rebuild.read_server(server, name, columns, key))
    report.failures += [f"{name} from its changes: {problem}" for problem in problems]
    result.equal["Spark"] = not problems


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps what processes of Spark that start in the block write from the standard error, if none fails to start."""
    with tempfile.TemporaryFile() as file, contextlib.ExitStack() as stack:
        own = os.dup(2)
        stack.callback(os.close, own)
        os.dup2(file.fileno(), 2)
        try:
            yield
        except BaseException:
            os.dup2(own, 2)
            file.seek(0)
            os.write(2, file.read())
            raise
        finally:
            os.dup2(own, 2)


def _session() -> Any:
    os.environ.update(spark_environment())
    # At every start, PySpark 4 warns that pandas 3 is newer than PySpark.
    warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
    from pyspark.sql import SparkSession

    return (
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
