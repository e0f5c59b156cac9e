"""Batches of a stream with many tables, of which few change.

    python -m benchmarks.spark_many

A query with `table_sink` takes a segment per batch. Measured is the time within the sink, which does all work of a
batch but Spark's own checkpoint. `nothing new` is a call of `write_tables` for tables that have everything. At full
size this rewrites the table in README.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import pgoutput_fast as pgo
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.spark.measuring import measured
from benchmarks.spark.queries import SOURCE, session
from pgoutput_fast import spark as pgspark
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import write_segment

MARKERS = "<!-- spark many figures -->", "<!-- end of spark many figures -->"
FORMATS = ("delta", "iceberg", "parquet")
TABLES = (400, 4_000)
CHANGING = (1, 5, 400)
_COLUMNS = (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25))


class Stream:
    """Segments of a stream with many tables.

    Args:
        directory: where they are.
        tables: how many tables there are.
    """

    def __init__(self, directory: Path, tables: int) -> None:
        self._directory = directory
        directory.mkdir()
        self._specs = [RelationSpec(20_000 + k, "public", f"t{k:04}", _COLUMNS) for k in range(tables)]
        self._state: pgo.StreamState | None = None
        self._writer, self._numbers = Writer(), count(1)

    def add(self, changing: int) -> None:
        """Adds a segment with a transaction of ten rows in each of some tables."""
        n = next(self._numbers)
        wal = self._writer.begin(n, 1000 * n, n)
        for spec in self._specs[:changing]:
            for k in range(10):
                wal += self._writer.change(spec, "insert", new=[str(10 * n + k), f"note {n}"])
        wal += self._writer.commit(1000 * n, 1000 * n + 8, n)
        tagged, self._state = pgo.tag(wal, self._state)
        write_segment(self._directory, tagged, self._state, source=SOURCE)


def section(spark: Any, directory: Path, tables: int, rounds: int, formats: Sequence[str]) -> Section:
    """The table of figures for some number of tables."""
    found = Section(f"{tables:,} tables", ["", "change", "wall s a batch", "CPU s a batch"])
    for format in formats:
        segments, target = directory / f"{format} segments", directory / format
        stream = Stream(segments, tables)
        sink, seconds = pgspark.table_sink(target, format=format), list[tuple[float, float]]()

        def write_batch(batch: Any, number: int, sink: Any = sink, seconds: Any = seconds) -> None:
            seconds.append(measured(lambda: sink(batch, number)))

        stream.add(tables)
        query = (
            spark.readStream.format("pgoutput")
            .option("emit", "files")
            .load(str(segments))
            .writeStream.foreachBatch(write_batch)
            .option("checkpointLocation", str(directory / f"{format} checkpoint"))
            .start()
        )
        query.processAllAvailable()
        found.rows.append([f"{format}, first batch", f"{tables:,}", *(f"{each:.2f}" for each in seconds[0])])
        for changing in (each for each in CHANGING if each <= tables):
            seconds.clear()
            for done in range(rounds):
                stream.add(changing)
                while len(seconds) <= done and query.isActive:
                    query.processAllAvailable()
            medians = (median(each) for each in zip(*seconds, strict=True))
            found.rows.append(
                [f"{format}, table_sink", f"{changing:,}", *(f"{each:.2f}" for each in medians)]
            )
        query.stop()
        again = [
            measured(
                lambda target=target, format=format, segments=segments: pgspark.write_tables(
                    segments, target, format=format
                )
            )
            for _ in range(rounds)
        ]
        medians = (median(each) for each in zip(*again, strict=True))
        found.rows.append([f"{format}, write_tables, nothing new", "0", *(f"{each:.2f}" for each in medians)])
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark_many", description=__doc__)
    parser.add_argument("--tables", type=int, nargs="+", default=list(TABLES))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    spark = session()
    pgspark.register(spark)
    sections = []
    for tables in given.tables:
        with tempfile.TemporaryDirectory() as name:
            sections.append(section(spark, Path(name), tables, given.rounds, given.formats))
            print(sections[-1], flush=True)
    heading = f"{machine()}; PySpark {spark.version}, local[2], median of {given.rounds} rounds."
    spark.stop()
    if given.tables == list(TABLES) and given.formats == list(FORMATS):
        rewrite(README, "\n\n".join([heading, "\n".join(map(str, sections))]), *MARKERS)


if __name__ == "__main__":
    main()
