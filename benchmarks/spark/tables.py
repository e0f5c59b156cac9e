"""From segments to typed tables: `write_tables` compared with Spark's own ways, and with one process without Spark.

    python -m benchmarks.spark_tables

The session has two cores. All ways write the rows of the wide text corpus as Parquet. They are checked once: every row
must be written. Then follow ten tables instead of one, with the same bytes, and up to 64 times as many rows, with the
peak memory of the Python workers. At full size this rewrites the tables in README.md.
"""

from __future__ import annotations

import argparse
import shutil
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import pgoutput_fast as pgo
from benchmarks import corpora
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.spark.measuring import measured, peak_of_workers
from benchmarks.spark.queries import SOURCE, TABLE, TIMES, session, wide_segments
from benchmarks.timing import Measured
from pgoutput_fast.schema.plain import to_types
from pgoutput_fast.schema.types import stored_schema
from pgoutput_fast.segments import Segment, list_segments, read_segment, segment_catalog, write_segment
from pgoutput_fast.storage.parquet import rows_writer

MARKERS = "<!-- spark tables figures -->", "<!-- end of spark tables figures -->"
ONE = "one process: read, decode, write"
NO_DECODING = "one process: read, write, nothing decoded"
FACTORS = (1, 4, 16, 64)
SPARK = 'format("pgoutput") -> write.parquet'


def _write_in_one_process(segments: Path, target: Path) -> None:
    catalog = segment_catalog(segments)
    target.mkdir()
    for k, segment in enumerate(list_segments(segments)):
        _write_rows(_plain_rows(segment, catalog), target / f"{k}.parquet")


def _plain_rows(segment: Segment, catalog: pgo.Catalog) -> pa.Table:
    decoded = pgo.decode_tagged(read_segment(segment.path), catalog)
    rows = pa.Table.from_batches([each.batch for each in decoded.changes])
    return to_types(rows, stored_schema(rows.schema, "parquet"))


def _write_rows(rows: pa.Table, path: Path) -> None:
    with rows_writer(path, rows.schema) as writer:
        writer.write_table(rows)


class _WriteWithoutDecoding:
    """Reads every segment, but writes already decoded rows: the cost without decoding.

    These are the rows of the first segment. All segments have the same ones, except for their metadata columns.
    """

    def __init__(self, segments: Path) -> None:
        self._segments = list_segments(segments)
        self._rows = _plain_rows(self._segments[0], segment_catalog(segments))

    def __call__(self, target: Path) -> None:
        target.mkdir()
        for k, segment in enumerate(self._segments):
            read_segment(segment.path)
            _write_rows(self._rows, target / f"{k}.parquet")


class _WriteSegment:
    """What a user would write without `write_tables`: names of segments -> files with their rows, for `mapInArrow`."""

    def __init__(self, catalog: str, target: Path) -> None:
        self._catalog, self._target = catalog, target

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        catalog = pgo.Catalog.from_json(self._catalog)
        for batch in batches:
            for name in batch.column("name").to_pylist():
                decoded = pgo.decode_tagged(read_segment(name), catalog)
                rows = pa.Table.from_batches([each.batch for each in decoded.changes])
                rows = to_types(rows, stored_schema(rows.schema, "parquet"))
                pq.write_table(rows, self._target / Path(name).name, compression="zstd")
                yield pa.RecordBatch.from_pydict({"rows": [rows.num_rows]})


def _map_names(spark: Any, segments: Path, target: Path) -> None:
    target.mkdir()
    names = [(str(each.path),) for each in list_segments(segments)]
    frame = spark.createDataFrame(names, "name string").repartition(len(names))
    frame.mapInArrow(_WriteSegment(segment_catalog(segments).to_json(), target), "rows long").collect()


def ways(spark: Any, segments: Path) -> dict[str, Callable[[Path], Any]]:
    """{name: function that writes the rows below a directory}."""
    from pgoutput_fast import spark as pgspark

    source = spark.read.format("pgoutput").option("table", TABLE).option("transactions", "as_sent")
    wal = spark.read.parquet(str(segments))
    return {
        ONE: lambda target: _write_in_one_process(segments, target),
        NO_DECODING: _WriteWithoutDecoding(segments),
        "write_tables(segments)": lambda target: pgspark.write_tables(
            segments, target, transactions="as_sent"
        ),
        'write_tables(segments, compression="lz4")': lambda target: pgspark.write_tables(
            segments, target, transactions="as_sent", compression="lz4"
        ),
        'write_tables(segments, compression="snappy")': lambda target: pgspark.write_tables(
            segments, target, transactions="as_sent", compression="snappy"
        ),
        'write_tables(segments, compression="none")': lambda target: pgspark.write_tables(
            segments, target, transactions="as_sent", compression="none"
        ),
        "write_tables(segments), committed": lambda target: pgspark.write_tables(segments, target),
        'write_tables(segments, format="delta")': lambda target: pgspark.write_tables(
            segments, target, format="delta", transactions="as_sent"
        ),
        "write_tables(payloads)": lambda target: pgspark.write_tables(wal, target, transactions="as_sent"),
        "mapInArrow over names of segments": lambda target: _map_names(spark, segments, target),
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
            wall, cpu = measured(lambda write=write, target=target: write(target))
            if number:
                walls[label].append(wall)
                cpus[label].append(cpu)
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


def _as_tables(payloads: pa.Array, count: int) -> list[bytes]:
    """The wide corpus as a stream of `count` tables: each transaction changes the next one."""
    found: list[bytes] = []
    transaction = 0
    for payload in payloads.to_pylist():
        kind = payload[:1]
        if kind == b"B":
            transaction += 1
        if kind == b"R":
            for k in range(count):
                found.append(_of_table(payload, k).replace(b"wide\0", b"wide%d\0" % k, 1))
        else:
            found.append(_of_table(payload, transaction % count) if kind in b"IUD" else payload)
    return found


def _of_table(payload: bytes, number: int) -> bytes:
    """The message with the oid of another table."""
    (oid,) = struct.unpack_from(">I", payload, 1)
    return payload[:1] + struct.pack(">I", oid + number) + payload[5:]


def ten_tables(spark: Any, directory: Path, times: int, scale: float, rounds: int) -> Section:
    """Ten tables compared with one, with the same bytes."""
    from pgoutput_fast import spark as pgspark

    corpus = corpora.corpus("wide text", scale)
    counts = (1, 10)
    for count in counts:
        payloads, state = _as_tables(corpus.payloads, count), None
        (directory / f"of-{count}").mkdir(parents=True)
        for _ in range(times):
            tagged, state = pgo.tag(payloads, state)
            write_segment(directory / f"of-{count}", tagged, state, source=SOURCE)
    walls: dict[int, list[float]] = {count: [] for count in counts}
    for number in range(rounds + 1):
        for count in counts:
            target, started = directory / "target", time.perf_counter()
            written = pgspark.write_tables(
                directory / f"of-{count}", target, transactions="as_sent", spark=spark
            )
            assert sum(row["rows"] for row in written) == corpus.tables[TABLE].num_rows * times
            if number:
                walls[count].append(time.perf_counter() - started)
            shutil.rmtree(target)
    one, ten = (Measured(walls[count]) for count in counts)
    found = Section(
        f"Tables in one pass: {corpus.tables[TABLE].num_rows * times:,} rows",
        ["", "wall s", "time beside one table"],
    )
    found.rows.append(["one table", f"{one.seconds:.2f}", "1.00"])
    found.rows.append(["ten tables", f"{ten.seconds:.2f}", f"{1 / ten.speed_beside(one):.2f}"])
    return found


def scaling(spark: Any, directory: Path, scale: float, factors: Sequence[int]) -> Section:
    """Increasing numbers of rows: time, rate, memory of the workers."""
    from pgoutput_fast import spark as pgspark

    directory.mkdir()
    corpus, state, there = corpora.corpus("wide text", scale), None, 0
    found = Section(
        f"More rows: multiples of {corpus.tables[TABLE].num_rows:,}",
        ["", "segments MB", "wall s", "MB/s of payloads", "largest worker, MB"],
    )
    for factor in factors:
        for _ in range(factor - there):
            tagged, state = pgo.tag(corpus.payloads, state)
            write_segment(directory, tagged, state, source=SOURCE)
        there = factor
        peak_of_workers()
        target, started = directory.parent / "scaled", time.perf_counter()
        pgspark.write_tables(directory, target, spark=spark)
        wall = time.perf_counter() - started
        size = sum(each.path.stat().st_size for each in list_segments(directory))
        rate = corpus.nbytes * factor / wall / 1e6
        found.rows.append(
            [f"{factor}x", f"{size / 1e6:.0f}", f"{wall:.2f}", f"{rate:.0f}", f"{peak_of_workers():.0f}"]
        )
        shutil.rmtree(target)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser("python -m benchmarks.spark_tables", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="how often the wide corpus is repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the corpus's full size")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    spark = session()
    with tempfile.TemporaryDirectory() as name:
        # First, because workers keep the memory that other ways of writing need.
        scaled = scaling(spark, Path(name) / "more", given.scale, FACTORS)
        shutil.rmtree(Path(name) / "more")
        segments = Path(name) / "segments"
        segments.mkdir()
        rows, nbytes = wide_segments(segments, given.times, given.scale)
        ways_compared = section(spark, segments, given.rounds, rows, nbytes)
        shutil.rmtree(segments)
        tables = ten_tables(spark, Path(name) / "tables", given.times // 2, given.scale, given.rounds)
        sections = [ways_compared, tables, scaled]
    text = "\n".join(map(str, sections))
    heading = f"{machine()}; PySpark {spark.version}, local[2], median of {given.rounds} rounds."
    spark.stop()
    print(f"{heading}\n\n{text}")
    if given.scale == 1 and given.times == TIMES:
        rewrite(README, f"{heading}\n\n{text}", *MARKERS)


if __name__ == "__main__":
    main()
