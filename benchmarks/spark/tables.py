"""From segments to typed tables: `write_tables` beside Spark's own ways, and beside one process without Spark.

    python -m benchmarks.spark.tables

The session has two cores. All ways write the same rows of the wide text corpus as Parquet. Each way is checked once: it
must write every row. At full size this rewrites the table in README.md.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import pgoutput_fast as pgo
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.spark.queries import TABLE, TIMES, cpu_seconds, session, wide_segments
from benchmarks.timing import Measured
from pgoutput_fast.schema.plain import plain_schema, to_types
from pgoutput_fast.segments import list_segments, read_segment, segment_catalog

MARKERS = "<!-- spark tables figures -->", "<!-- end of spark tables figures -->"
ONE = "one process: read, decode, write"
SPARK = 'format("pgoutput") -> write.parquet'


def _write_in_one_process(segments: Path, target: Path) -> None:
    catalog = segment_catalog(segments)
    target.mkdir()
    for k, segment in enumerate(list_segments(segments)):
        decoded = pgo.decode_tagged(read_segment(segment.path), catalog)
        with pq.ParquetWriter(
            target / f"{k}.parquet", _plain(decoded), compression="zstd", compression_level=1
        ) as writer:
            for change in decoded.changes:
                writer.write_table(to_types(pa.Table.from_batches([change.batch]), _plain(decoded)))


def _plain(decoded: Any) -> Any:
    return plain_schema(decoded.changes[0].batch.schema)


def ways(spark: Any, segments: Path) -> dict[str, Callable[[Path], Any]]:
    """{name: function that writes the rows below a directory}."""
    from pgoutput_fast import spark as pgspark

    source = spark.read.format("pgoutput").option("table", TABLE)
    wal = spark.read.parquet(str(segments))
    return {
        ONE: lambda target: _write_in_one_process(segments, target),
        "write_tables(segments)": lambda target: pgspark.write_tables(
            segments, target, transactions="as_sent"
        ),
        "write_tables(segments), committed": lambda target: pgspark.write_tables(segments, target),
        'write_tables(segments, format="delta")': lambda target: pgspark.write_tables(
            segments, target, format="delta", transactions="as_sent"
        ),
        "write_tables(payloads)": lambda target: pgspark.write_tables(wal, target, transactions="as_sent"),
        SPARK: lambda target: source.load(str(segments)).write.parquet(str(target)),
        "changes() -> write.parquet": lambda target: pgspark.changes(wal, TABLE).write.parquet(str(target)),
    }


def _count(target: Path) -> int:
    return int(ds.dataset([str(each) for each in target.rglob("*.parquet")]).count_rows())


def section(spark: Any, segments: Path, rounds: int, rows: int, nbytes: int) -> Section:
    """The table.

    Raises:
        AssertionError: if a way does not write every row.
    """
    compared = ways(spark, segments)
    walls: dict[str, list[float]] = {label: [] for label in compared}
    cpus: dict[str, list[float]] = {label: [] for label in compared}
    for number in range(rounds + 1):
        for label, write in compared.items():
            target = segments.parent / "target"
            used, started = cpu_seconds() + time.process_time(), time.perf_counter()
            write(target)
            wall, cpu = time.perf_counter() - started, cpu_seconds() + time.process_time() - used
            if number:
                walls[label].append(wall)
                cpus[label].append(max(cpu, 1e-9))
            else:
                assert _count(target) == rows, label
            shutil.rmtree(target)
    found = Section(
        f"From segments to tables: {rows:,} rows, {nbytes / 1e9:.2f} GB of payloads",
        ["", "wall s", "MB/s", "CPU s", "speed beside write.parquet", "speed beside one process"],
    )
    medians = {label: Measured(seconds) for label, seconds in walls.items()}
    cpu_of = {label: Measured(seconds) for label, seconds in cpus.items()}
    for label in compared:
        found.rows.append(
            [
                label,
                f"{medians[label].seconds:.2f}",
                f"{nbytes / medians[label].seconds / 1e6:.0f}",
                f"{cpu_of[label].seconds:.2f}",
                f"{medians[SPARK].seconds / medians[label].seconds:.2f}",
                f"{medians[ONE].seconds / medians[label].seconds:.2f}",
            ]
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark.tables", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="how often the wide corpus is repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the corpus's full size")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    spark = session()
    with tempfile.TemporaryDirectory() as name:
        segments = Path(name) / "segments"
        segments.mkdir()
        rows, nbytes = wide_segments(segments, given.times, given.scale)
        text = str(section(spark, segments, given.rounds, rows, nbytes))
    heading = f"{machine()}; PySpark {spark.version}, local[2], median of {given.rounds} rounds."
    spark.stop()
    print(f"{heading}\n\n{text}")
    if given.scale == 1 and given.times == TIMES:
        rewrite(README, f"{heading}\n\n{text}", *MARKERS)


if __name__ == "__main__":
    main()
