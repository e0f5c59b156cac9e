"""Compares `changes` and the data source on Spark with functions that return their batches unchanged, on wide rows.

    python -m benchmarks.spark

The session has two cores. Every query writes to the noop sink. Wall time is the time that users wait. CPU time, of the
JVM and its Python workers, is more reliable on a shared machine. At full size this rewrites the table in README.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.spark.measuring import measured, to_noop
from benchmarks.timing import Measured
from pgoutput_fast.segments import Source, write_segment

__all__ = ["identity", "session", "wide_segments"]

SOURCE = Source("7300000000000000001", "bench", "slot", ("all",), {"proto_version": "1"})
TIMES = 8
TABLE = "public.wide"
MARKERS = "<!-- spark figures -->", "<!-- end of spark figures -->"
PAYLOADS, ROWS = "identity, payloads alone", "identity, tagged payloads"


def wide_segments(directory: Path, times: int, scale: float = 1.0) -> tuple[int, int]:
    """Writes the wide text corpus `times` times, as one stream, one segment each. Returns (rows, payload bytes)."""
    corpus = corpora.corpus("wide text", scale)
    state = None
    for _ in range(times):
        tagged, state = pgo.tag(corpus.payloads, state)
        write_segment(directory, tagged, state, source=SOURCE)
    return corpus.tables[TABLE].num_rows * times, corpus.nbytes * times


def session() -> Any:
    """A local Spark session on two cores, with sockets that cannot block."""
    from pyspark.sql import SparkSession

    from pgoutput_fast.demo.java import spark_environment

    os.environ.update(spark_environment())
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("pgoutput_fast benchmarks")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # With loopback TCP, two full buffers can block both sides for minutes.
        .config("spark.python.unix.domain.socket.enabled", True)
        .config("spark.driver.memory", "4g")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Returns the batches unchanged, so that only the transport is measured."""
    yield from batches


def queries(spark: Any, directory: Path) -> dict[str, Callable[[], Any]]:
    """{name: function that makes a DataFrame} of the compared queries."""
    from pgoutput_fast import spark as pgspark

    wal = spark.read.parquet(str(directory))
    rows = wal.where("kind in (73, 85, 68, 84)")
    payloads = rows.select("payload")
    source = spark.read.format("pgoutput").option("table", TABLE).option("transactions", "as_sent")
    return {
        PAYLOADS: lambda: payloads.mapInArrow(identity, payloads.schema),
        ROWS: lambda: rows.mapInArrow(identity, rows.schema),
        "changes()": lambda: pgspark.changes(wal, TABLE),
        'changes(transactions="committed")': lambda: pgspark.changes(wal, TABLE, transactions="committed"),
        'format("pgoutput")': lambda: source.load(str(directory)),
        'format("pgoutput"), 5 columns': lambda: source.option(
            "columns", "_change_type,_seq,id,account,price"
        ).load(str(directory)),
    }


def section(spark: Any, directory: Path, rounds: int, rows: int, nbytes: int) -> Section:
    """The table.

    Raises:
        AssertionError: if a query that decodes does not return every row.
    """
    compared = queries(spark, directory)
    for label, query in compared.items():
        if not label.startswith("identity"):
            assert query().count() == rows, label
    walls: dict[str, list[float]] = {label: [] for label in compared}
    cpus: dict[str, list[float]] = {label: [] for label in compared}
    for number in range(rounds + 1):
        for label, query in compared.items():
            wall_seconds, cpu_seconds = measured(to_noop(query))
            if number:
                walls[label].append(wall_seconds)
                cpus[label].append(cpu_seconds)
    found = Section(
        f"Spark: {rows:,} rows, {nbytes / 1e9:.2f} GB of payloads",
        ["", "wall s", "MB/s", "CPU s", "wall beside payloads", "wall beside tagged", "CPU beside tagged"],
    )
    wall = {label: Measured(seconds) for label, seconds in walls.items()}
    cpu = {label: Measured(seconds) for label, seconds in cpus.items()}
    for label in compared:
        found.rows.append(
            [
                label,
                f"{wall[label].seconds:.2f}",
                f"{nbytes / wall[label].seconds / 1e6:.0f}",
                f"{cpu[label].seconds:.2f}",
                f"{wall[PAYLOADS].speed_beside(wall[label]):.2f}",
                f"{wall[ROWS].speed_beside(wall[label]):.2f}",
                f"{cpu[ROWS].speed_beside(cpu[label]):.2f}",
            ]
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="how often the wide corpus is repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the corpus's full size")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args(arguments)
    spark = session()
    with tempfile.TemporaryDirectory() as name:
        rows, nbytes = wide_segments(Path(name), given.times, given.scale)
        text = str(section(spark, Path(name), given.rounds, rows, nbytes))
    heading = f"{machine()}; PySpark {spark.version}, local[2], median of {given.rounds} rounds."
    spark.stop()
    print(f"{heading}\n\n{text}")
    if given.scale == 1 and given.times == TIMES:
        rewrite(README, f"{heading}\n\n{text}", *MARKERS)


if __name__ == "__main__":
    main()
