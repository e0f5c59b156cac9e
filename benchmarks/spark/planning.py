"""Measures the cost of planning a query on a directory with very many small segments.

    python -m benchmarks.spark.planning

A capture that writes a segment every 10 seconds makes 8,640 a day. The segments here have three tables and two small
transactions each. The figures are wall times until Spark could start the tasks; nothing is decoded. At full size this
rewrites the table in README.md.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pgoutput_fast as pgo
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.spark.queries import SOURCE, session
from pgoutput_fast.encode import ColumnSpec, RelationSpec, Writer
from pgoutput_fast.segments import list_segments, segment_catalog, segment_outcomes, write_segment
from pgoutput_fast.segments.listing import SegmentList
from pgoutput_fast.segments.names import name_of

__all__ = ["measure", "small_segments"]

MARKERS = "<!-- planning figures -->", "<!-- end of planning figures -->"
SEGMENTS, ROUNDS = 10_000, 3
COLUMNS = (ColumnSpec("id", 23, key=True), ColumnSpec("note", 25))
TABLES = [RelationSpec(20_000 + k, "public", f"t{k}", COLUMNS) for k in range(3)]
FEW = 10


def small_segments(directory: Path, count: int) -> pgo.StreamState:
    """Writes segments of two transactions with 20 rows per table. Returns the state after them."""
    writer = Writer()
    lsn, state = 0, pgo.StreamState()
    for _ in range(count):
        wal: list[bytes] = []
        for _ in range(2):
            lsn += 100
            wal += writer.begin(7, lsn, 0)
            for table in TABLES:
                for row in range(20):
                    wal += writer.change(table, "insert", new=[str(row), f"note {row}"])
            wal += writer.commit(lsn, lsn + 8, 0)
        first = state.next_seq
        tagged, state = pgo.tag(wal, state)
        # With the path of the file, the newest segment of the directory need not be searched every time.
        path = directory / name_of(first, state.next_seq - 1)
        write_segment(path, tagged, state, source=SOURCE, relation_bytes=1)
    return state


def _ways(spark: Any, directory: Path, target: Path) -> dict[str, Callable[[], Any]]:
    from pgoutput_fast import spark as pgspark

    def planned(transactions: str) -> int:
        source = spark.read.format("pgoutput").option("table", "public.t0")
        frame = source.option("transactions", transactions).load(str(directory))
        return int(frame.rdd.getNumPartitions())

    listed = SegmentList(directory)
    listed.segments()
    return {
        "list_segments": lambda: list_segments(directory),
        "segment_catalog": lambda: segment_catalog(directory),
        "segment_outcomes": lambda: segment_outcomes(directory),
        "a second listing of one reader": listed.segments,
        'format("pgoutput"), as sent': lambda: planned("as_sent"),
        'format("pgoutput"), committed': lambda: planned("committed"),
        "write_tables with nothing new": lambda: pgspark.write_tables(directory, target),
    }


def measure(spark: Any, place: Path, counts: Sequence[int], rounds: int) -> Section:
    """The table: seconds per way for directories of these sizes.

    Raises:
        AssertionError: if a listing lacks segments.
    """
    found: dict[str, list[str]] = {}
    for count in counts:
        directory = place / f"segments{count}"
        directory.mkdir()
        small_segments(directory, count)
        assert len(list_segments(directory)) == count
        from pgoutput_fast import spark as pgspark

        target = place / f"tables{count}"
        pgspark.write_tables(directory, target)
        for label, plan in _ways(spark, directory, target).items():
            seconds = []
            for _ in range(rounds):
                begun = time.perf_counter()
                plan()
                seconds.append(time.perf_counter() - begun)
            found.setdefault(label, []).append(f"{median(seconds):.2f}")
    table = Section("Planning: seconds", ["", *(f"{count:,} segments" for count in counts)])
    table.rows += [[label, *cells] for label, cells in found.items()]
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark.planning", description=__doc__)
    parser.add_argument("--segments", type=int, default=SEGMENTS, help="how many there are")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    spark = session()
    from pgoutput_fast import spark as pgspark

    pgspark.register(spark)
    with tempfile.TemporaryDirectory() as name:
        text = str(measure(spark, Path(name), [FEW, given.segments], given.rounds))
    heading = f"{machine()}; PySpark {spark.version}, local[2], median of {given.rounds} rounds."
    spark.stop()
    print(f"{heading}\n\n{text}")
    if given.segments == SEGMENTS:
        rewrite(README, f"{heading}\n\n{text}", *MARKERS)


if __name__ == "__main__":
    main()
