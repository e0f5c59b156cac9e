"""From raw payloads to tables: `write_raw` beside segments of the same payloads, and beside what others do.

    python -m benchmarks.spark_raw

The payloads are a binary column of Parquet files in stream order, as a dump or a sink of Kafka has them. The session
has two cores. `the identity` is a `mapInArrow` that returns the payloads: what it costs to show each one to Python once
and get it back. With paths, the tasks read the files themselves. `tagged first` is `write_tables(tag(...))` with tagged
payloads that go back to the JVM and come a second time. `out of order` has the payloads of the stream in random order
over all files. `3 partitions` has runs of them in three files in turn, as three partitions of a topic have them.

Two ways do without this package. `plain Python` is a `mapInArrow` with a loop over messages and cells, for each table,
which knows its columns. `Debezium's JSON` is `from_json` over events of the same changes, a directory for each table as
Debezium has a topic for each; an example of the pages makes the events.

A round before the others measures each way with new workers: their memory, and the bytes between the JVM and Python,
for each byte of payloads. At full size this rewrites the tables in README.md.
"""

from __future__ import annotations

import argparse
import json
import runpy
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks import corpora
from benchmarks.report import README, Section, machine, rewrite
from benchmarks.spark.measuring import Crossing, end_workers, measured, peak_of_workers
from benchmarks.spark.queries import SOURCE, identity, session
from benchmarks.timing import Measured
from benchmarks.yardsticks import parse_wide_text

MARKERS = "<!-- spark raw figures -->", "<!-- end of spark raw figures -->"
TIMES = {"wide text": 3, corpora.NARROW: 6, "pgbench": 3}
ROW_GROUP = 20_000
# So many payloads in a row go to the same partition.
RUN = 1_000
EVENTS = Path(__file__).parents[2] / "docs" / "examples" / "debezium_events.py"

SEGMENTS, IDENTITY = "own segments", "the identity"
PATHS, ONCE, TWICE = "write_raw(paths)", "write_raw(DataFrame)", "tagged first"
SHUFFLED, PARTITIONS = "write_raw, out of order", "write_raw, 3 partitions"
CURRENT = "current_sink(segments)"
PYTHON, JSON = "plain Python", "Debezium's JSON"

# What Debezium sends for a type of Spark, and the value of that.
_SENT = {"date": "int", "timestamp_ntz": "bigint"}
_VALUE = {"date": "date_from_unix_date({})", "timestamp_ntz": "cast(timestamp_micros({}) as timestamp_ntz)"}
_ENVELOPE = (
    "op string, ts_ms bigint, source struct<connector: string, name: string, ts_ms: bigint, ts_us: bigint, "
    "snapshot: string, db: string, schema: string, table: string, txId: bigint, lsn: bigint, sequence: string>"
)

COLUMNS = [
    "wall s",
    "CPU s a GB",
    "wall beside segments",
    "CPU beside segments",
    "to Python",
    "back",
    "worker MB",
]


@dataclass(frozen=True)
class Stream:
    """The messages of a corpus, `times` times in a row, in the forms that the ways read.

    Attributes:
        directory: has `segments`; `dump`, `shuffled` and `partitions` with Parquet files of payloads; `events` with a
            directory of JSON for each table.
        corpus: the messages.
        times: how often.
    """

    directory: Path
    corpus: corpora.Corpus
    times: int

    def write(self) -> None:
        """Writes the files."""
        import pgoutput_fast as pgo
        from pgoutput_fast.segments import write_segment

        state = None
        (self.directory / "segments").mkdir(parents=True)
        for _ in range(self.times):
            tagged, state = pgo.tag(self.corpus.payloads, state)
            write_segment(self.directory / "segments", tagged, state, source=SOURCE)
        places = np.arange(len(self.corpus.payloads) * self.times)
        mixed = np.random.default_rng(corpora.SEED).permutation(places)
        self._write_dump("dump", np.array_split(places, self.times))
        self._write_dump("shuffled", np.array_split(mixed, self.times))
        self._write_dump("partitions", [places[places // RUN % 3 == k] for k in range(3)])
        self._write_events()

    def _write_dump(self, name: str, files: Sequence[Any]) -> None:
        (self.directory / name).mkdir()
        for k, places in enumerate(files):
            payloads = self.corpus.payloads.take(pa.array(places % len(self.corpus.payloads)))
            _write(
                pa.table({"place": places, "payload": payloads}), self.directory / name / f"{k:03}.parquet"
            )

    def _write_events(self) -> None:
        """Events of the messages of the corpus, with the fields of Debezium's JSON."""
        import pgoutput_fast as pgo

        events = runpy.run_path(str(EVENTS))["events"]
        decoder = pgo.Decoder(pgo.Options(transactions="committed"))
        for begin in range(0, len(self.corpus.payloads), ROW_GROUP):
            lines: dict[str, list[str]] = {}
            for event in events(
                decoder.decode(self.corpus.payloads[begin : begin + ROW_GROUP]), "bench", "bench"
            ):
                table = "{schema}.{table}".format(**event["source"])
                if event["op"] != "t":  # Debezium leaves truncates out unless it is told otherwise
                    lines.setdefault(table, []).append(json.dumps(event))
            for table, some in lines.items():
                topic = self.directory / "events" / table
                topic.mkdir(parents=True, exist_ok=True)
                for k in range(self.times):
                    _write(pa.table({"value": some}), topic / f"{k:03}-{begin:08}.parquet")


def _write(rows: pa.Table, path: Path) -> None:
    pq.write_table(rows, path, row_group_size=ROW_GROUP, compression="zstd")


def ways(spark: Any, stream: Stream, transactions: Any) -> dict[str, Callable[[Path], Any]]:
    """{name: function that writes the tables below a directory, or only moves the payloads}."""
    from pgoutput_fast import spark as pgspark

    segments, dump = stream.directory / "segments", stream.directory / "dump"
    rows = spark.read.parquet(str(dump))
    payloads = rows.select("payload")

    def raw(source: Any) -> Callable[[Path], Any]:
        return lambda target: pgspark.write_raw(source, target, order_by="place", transactions=transactions)

    def moved(target: Path) -> None:
        payloads.mapInArrow(identity, payloads.schema).write.format("noop").mode("overwrite").save()

    def into_segments(target: Path) -> None:
        pgspark.write_segments(pgspark.tag(dump, "place", spark=spark), target)

    def tagged_first(target: Path) -> Any:
        wal = pgspark.tag(rows, "place", payload="payload").select("*")
        return pgspark.write_tables(wal, target, transactions=transactions)

    compared: dict[str, Callable[[Path], Any]] = {
        SEGMENTS: lambda target: pgspark.write_tables(segments, target, transactions=transactions),
        PATHS: raw(dump),
        ONCE: raw(rows),
    }
    if transactions == "committed":
        compared |= {
            SHUFFLED: raw(stream.directory / "shuffled"),
            PARTITIONS: raw(stream.directory / "partitions"),
            TWICE: tagged_first,
            JSON: lambda target: write_from_json(spark, stream, target),
        }
        if stream.corpus.name != "pgbench":  # which changes rows that are older than the stream
            compared[CURRENT] = lambda target: keep_current(spark, segments, target)
        return compared
    return compared | {
        IDENTITY: moved,
        "write_segments(tag(paths))": into_segments,
        PYTHON: lambda target: write_with_python(spark, stream, target),
    }


def keep_current(spark: Any, segments: Path, target: Path) -> None:
    """Applies the changes to current tables, a segment in a batch."""
    from pgoutput_fast import spark as pgspark

    files = spark.readStream.format("pgoutput").option("emit", "files").option("max_segments", 1)
    query = files.load(str(segments)).writeStream.foreachBatch(pgspark.current_sink(target / "lake"))
    query = query.option("checkpointLocation", str(target / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()


class PlainPython:
    """Parses the rows of a table, for `mapInArrow`."""

    def __init__(self, oid: int, schema: pa.Schema) -> None:
        self._oid, self._schema = oid.to_bytes(4, "big"), schema

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            messages = [each for each in batch.column("payload").to_pylist() if each[1:5] == self._oid]
            yield from parse_wide_text(messages, self._schema).to_batches()


def write_with_python(spark: Any, stream: Stream, target: Path) -> None:
    """Writes the tables of the payloads without this package."""
    from pgoutput_fast.segments import segment_catalog

    payloads = spark.read.parquet(str(stream.directory / "dump")).select("payload")
    catalog = segment_catalog(stream.directory / "segments")
    for table, rows in stream.corpus.tables.items():
        parser = PlainPython(catalog.named(table)[-1].oid, rows.schema)
        parsed = payloads.mapInArrow(parser, _spark_schema(rows.schema))
        parsed.write.option("compression", "zstd").parquet(str(target / table))


def write_from_json(spark: Any, stream: Stream, target: Path) -> None:
    """Writes the tables of the events without this package."""
    from pyspark.sql import functions as sf

    for table, rows in stream.corpus.tables.items():
        types = [(each.name, each.dataType.simpleString()) for each in _spark_schema(rows.schema).fields]
        image = ", ".join(f"{name}: {_SENT.get(kind, kind)}" for name, kind in types)
        schema = f"before struct<{image}>, after struct<{image}>, {_ENVELOPE}"
        values = spark.read.parquet(str(stream.directory / "events" / table))
        events = values.select(sf.from_json("value", schema).alias("event"))
        columns = [
            _VALUE.get(kind, "{}").format(f"event.after.{name}") + f" as {name}" for name, kind in types
        ]
        parsed = events.selectExpr(
            "event.op", "event.source.lsn", "event.source.txId", "event.source.ts_us", *columns
        )
        parsed.write.option("compression", "zstd").parquet(str(target / table))


def _spark_schema(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


def section(spark: Any, directory: Path, name: str, times: int, scale: float, rounds: int) -> Section:
    """The table of a corpus.

    Raises:
        AssertionError: if a way writes other tables than from segments, or another number of rows.
    """
    stream = Stream(directory / name, corpora.corpus(name, scale), times)
    stream.write()
    nbytes = stream.corpus.nbytes * times
    found = Section(f"{name}: {nbytes / 1e9:.2f} GB of payloads", ["", *COLUMNS])
    for transactions in ("committed", "as_sent"):
        compared = ways(spark, stream, transactions)
        walls: dict[str, list[float]] = {label: [] for label in compared}
        cpus: dict[str, list[float]] = {label: [] for label in compared}
        others: dict[str, list[str]] = {}
        tables: Any = None
        for number in range(rounds + 1):
            for label, run in compared.items():
                target = directory / "target"
                target.mkdir()
                if number:
                    wall, cpu = measured(lambda run=run, target=target: run(target))
                    walls[label].append(wall)
                    cpus[label].append(cpu)
                else:
                    end_workers()
                    crossing = Crossing(spark)
                    written = run(target)
                    crossed = (f"{each / nbytes:.2f}" for each in crossing.nbytes())
                    others[label] = [*crossed, f"{peak_of_workers():.0f}"]
                    if label in (PYTHON, JSON):
                        assert _rows(target) == _changes(stream.corpus.payloads) * times, label
                    elif written is not None:
                        now = [(row["table"], row["rows"], row["position"]) for row in written]
                        tables = tables or now
                        assert now == tables, label
                shutil.rmtree(target)
        wall_of, cpu_of = ({label: Measured(each) for label, each in some.items()} for some in (walls, cpus))
        for label in compared:
            found.rows.append(
                [
                    f"{label}, {transactions}",
                    f"{wall_of[label].seconds:.2f}",
                    f"{cpu_of[label].seconds / nbytes * 1e9:.1f}",
                    *(f"{each[label].seconds / each[SEGMENTS].seconds:.2f}" for each in (wall_of, cpu_of)),
                    *others[label],
                ]
            )
    shutil.rmtree(directory / name)
    return found


def _changes(payloads: pa.Array) -> int:
    kinds = pc.binary_slice(payloads, 0, 1)
    return int(pc.sum(pc.is_in(kinds, pa.array([b"I", b"U", b"D"], kinds.type))).as_py())


def _rows(target: Path) -> int:
    return sum(pq.read_metadata(each).num_rows for each in target.rglob("*.parquet"))


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    from pgoutput_fast import spark as pgspark

    parser = argparse.ArgumentParser("python -m benchmarks.spark_raw", description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="share of a corpus's full size")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    spark = session()
    pgspark.register(spark)
    sections = []
    with tempfile.TemporaryDirectory() as name:
        for corpus, times in TIMES.items():
            sections.append(section(spark, Path(name), corpus, times, given.scale, given.rounds))
            print(sections[-1], flush=True)
    heading = f"{machine()}; PySpark {spark.version}, local[2], median of {given.rounds} rounds."
    spark.stop()
    if given.scale == 1:
        rewrite(README, "\n\n".join([heading, "\n".join(map(str, sections))]), *MARKERS)


if __name__ == "__main__":
    main()
