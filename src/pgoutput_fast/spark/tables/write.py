"""Writes the changes of tables into a lake. The executors decode and write; a row per file goes back to the driver."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import DataFrame, Row, SparkSession

from pgoutput_fast.arguments import expect_count, expect_kind, expect_list, kind_of
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.lake.files import FILE_BYTES, WrittenFile
from pgoutput_fast.lake.formats import FORMATS
from pgoutput_fast.lake.stream import Stream
from pgoutput_fast.lake.target import Mode, TableTarget
from pgoutput_fast.protocol.limits import SPARK_BATCH_BYTES, SPARK_BATCH_ROWS
from pgoutput_fast.schema.evolution import differ_in_case
from pgoutput_fast.schema.options import Options, Transactions
from pgoutput_fast.schema.tables import REJECTS_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.segments.listing import SegmentList, catalog_of
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.segments.tail import check_whole, first_gap
from pgoutput_fast.spark.dataframes.catalog import read_catalog
from pgoutput_fast.spark.dataframes.outcomes import outcomes as decode_outcomes
from pgoutput_fast.spark.dataframes.plan import expect_catalog, task_options
from pgoutput_fast.spark.dataframes.tagged import expect_tagged
from pgoutput_fast.spark.sessions import cores_of
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.source.stream_files import EMITTED_SCHEMA
from pgoutput_fast.spark.tables.plan import (
    DescribedTable,
    PartitionBy,
    described_tables,
    last_of_all,
    oldest_behind,
    outcomes_behind,
    plan_tables,
    plan_work,
)
from pgoutput_fast.spark.tables.run import Run, begin_run
from pgoutput_fast.spark.tables.streams import StreamCheck, stream_at
from pgoutput_fast.spark.tasks.rows import pack_batch
from pgoutput_fast.spark.tasks.tables import (
    FILES_SCHEMA,
    SegmentTask,
    TablePart,
    WriteSegments,
    WriteTables,
    rejects_of,
)
from pgoutput_fast.spark.types import spark_schema
from pgoutput_fast.spark.workers import check_workers
from pgoutput_fast.storage.parquet import COMPRESSIONS, Compression
from pgoutput_fast.storage.paths import Paths, absolute
from pgoutput_fast.storage.stores import open_store

__all__ = ["table_sink", "write_tables"]

_MODES = ("append", "overwrite", "error")


def write_tables(
    source: Paths | DataFrame,
    target: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    format: str = "parquet",
    transactions: Transactions = "committed",
    mode: Mode = "append",
    *,
    options: Options | None = None,
    partition_by: PartitionBy = (),
    file_bytes: int = FILE_BYTES,
    compression: Compression = "zstd",
    storage_options: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> list[Row]:
    """Writes the changes of tables as Parquet, Delta or Iceberg tables, all tables in one pass over the source.

    The tasks decode and write the files. The driver then commits each table once: its rows appear together, or not at
    all. A table remembers how far it goes (its position). So a run that is repeated adds nothing, and a run over a
    source that has grown adds what is new. If a run was killed, the next one finishes or removes what it left. From
    segments, a table also remembers of which stream it is: server, database, slot, and the LSNs where it stops.

    The columns are those of `changes`: the metadata columns, then the columns of all versions of the relation, in
    Spark's types. Rows that `Options(on_error="quarantine")` rejects go to `<target>/_rejects/<table>`.

    Args:
        source: paths of segments (files, directories, globs, URIs), or a DataFrame of tagged payloads. A DataFrame does
            not say of which stream it is. So see to it that a table gets the payloads of one stream only.
        target: a directory or URI. Each table is a directory in it: the schema's name, a dot and the table's name,
            both percent-encoded (with `+` in place of `%` for Delta and Iceberg).
        tables: qualified names, quoted as in SQL. Default: all tables of the source.
        format: `"parquet"`, `"delta"` (needs `pip install 'pgoutput_fast[delta]'`) or `"iceberg"` (needs
            `pip install 'pgoutput_fast[iceberg]'`).
        transactions: `"committed"` writes the rows of transactions whose commit is in the source. `"as_sent"` writes
            all rows.
        mode: `"append"` adds what comes behind the table's position. `"overwrite"` replaces the tables. `"error"`
            refuses tables that exist.
        options: how to decode; default `Options()`.
        partition_by: columns by whose values the files are divided: those of all tables, or
            `{qualified name: columns}`. The columns are booleans, whole numbers, texts or dates. A table keeps its
            partition columns.
        file_bytes: about how many bytes a file has at most.
        compression: `"zstd"` makes the smallest files. `"lz4"` and `"snappy"` take less time, and the files are 1.5 to
            2 times as large. `"none"` takes the least time, and the files are 2.3 to 3.3 times as large.
        storage_options: for `"delta"` in a store: what delta-rs needs to reach it, beside what the URI says.
        catalog: relation versions and types that the source does not describe. A server says more of its types than a
            stream does, for instance how many digits a domain has: pass a snapshot's catalog.
        iceberg_catalog: for `"iceberg"`: the properties of a pyiceberg catalog, such as `{"type": "rest", "uri": ...}`;
            `name` is its name. Default: a catalog in the file `_catalog.db` of a local target.
        spark: the session; default: the DataFrame's, or the active one.

    Returns:
        A row per table: `table` (its directory), `rows`, `files`, `bytes`, `first` and `last` (the smallest and the
        largest `_seq` of the new rows, null if there are none), `position` (how far the table goes now).

    Raises:
        TypeError: for an argument of a wrong type.
        KeyError: if there is no such table; the message lists those that exist.
        ValueError: if arguments are wrong, if the versions of a table fit into no single schema, if a table in the
            target has another schema, has other partition columns, has other `transactions` or belongs to another
            stream, or if segments that it lacks are gone, also those where a transaction began that was open there.
        OSError: if the target or the source cannot be reached, or if the disk is full. A note says what to do. Errors
            of tasks come as Spark's errors, with the same text.
        RuntimeError: if there is no session, or if another process writes to the target.
    """
    _check_arguments(tables, format, mode, file_bytes, compression, partition_by, iceberg_catalog)
    _check_kinds(storage_options, catalog, iceberg_catalog, spark)
    if not isinstance(source, str | os.PathLike | Iterable | DataFrame):
        raise TypeError(
            f"source must be paths of segments, or a DataFrame of tagged payloads, not {kind_of(source)}"
        )
    place = _place(target)
    decoding, which = task_options(options, transactions)
    decoding = replace(decoding, batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES)
    reader: _Source
    if isinstance(source, DataFrame):
        reader = _TaggedSource(source, decoding, which, catalog)
    else:
        reader = _SegmentSource(SegmentList(source), _session(spark), which, catalog)
    run = partial(begin_run, place, format, storage_options or {}, iceberg_catalog)
    return _write(reader, run, place, tables, mode, decoding, partition_by, file_bytes, compression)


def table_sink(
    target: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    format: str = "parquet",
    transactions: Transactions = "committed",
    *,
    options: Options | None = None,
    partition_by: PartitionBy = (),
    file_bytes: int = FILE_BYTES,
    compression: Compression = "zstd",
    storage_options: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Returns a function for `foreachBatch` that writes tables while a capture writes segments.

    The query names the segments of each batch (`format("pgoutput")` with the option `emit` set to `files`); the sink
    writes their tables as `write_tables` does. Each table is committed once per batch. If Spark runs a batch again, for
    instance because the driver was killed between the commit and the checkpoint, tables that have it stay as they are.

    Args:
        target, tables, format, transactions, options, partition_by, file_bytes, compression, storage_options,
            catalog, iceberg_catalog: as in `write_tables`. A table that the segments do not describe yet is written as
            soon as they do, if `tables` is not given. A table that a later batch does not find in the target, because
            you added it to `tables` or because the target was lost, begins with that batch: write it first with
            `write_tables(..., tables=[...], mode="overwrite")`, which takes all segments.

    Raises:
        ValueError: for wrong arguments. The query fails for the reasons of `write_tables`, and if it reads rows instead
            of segments.

    Example:
        query = (
            spark.readStream.format("pgoutput").option("emit", "files").load("segments/")
            .writeStream.foreachBatch(pgspark.table_sink("lake/", format="delta"))
            .option("checkpointLocation", "checkpoint/").start()
        )
    """
    _check_arguments(tables, format, "append", file_bytes, compression, partition_by, iceberg_catalog)
    _check_kinds(storage_options, catalog, iceberg_catalog)
    place = _place(target)
    decoding, which = task_options(options, transactions)
    decoding = replace(decoding, batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES)

    # Footers of earlier batches. Each batch opens only what is new in its directory.
    listed: dict[str, SegmentList] = {}

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        if batch.columns != EMITTED_SCHEMA.names:
            raise ValueError(
                f"table_sink needs the columns {', '.join(EMITTED_SCHEMA.names)}: read the stream with "
                '.format("pgoutput").option("emit", "files")'
            )
        found = batch.collect()
        if not found:
            return
        first, last = min(row["first"] for row in found), max(row["last"] for row in found)
        directory = found[0]["directory"]
        segments = listed.setdefault(directory, SegmentList(directory))
        source = _SegmentSource(segments, batch.sparkSession, which, catalog, first - 1, last)
        if source.catalog.relations:
            run = partial(begin_run, place, format, storage_options or {}, iceberg_catalog)
            _write(source, run, place, tables, "append", decoding, partition_by, file_bytes, compression)

    return write_batch


def _write(
    source: _Source,
    begin: Callable[[], AbstractContextManager[Run]],
    target: str,
    tables: Sequence[str] | None,
    mode: Mode,
    options: Options,
    partition_by: PartitionBy,
    file_bytes: int,
    compression: Compression,
) -> list[Row]:
    # First this: a run that is refused for its arguments leaves no target behind.
    described = described_tables(source.catalog, tables, options, partition_by, start=source.start)
    with begin() as run:
        parts = plan_tables(described, options, run, whole=mode != "append", start=source.start)
        parts = _checked_targets(run, parts, mode, source)
        if mode != "overwrite":
            _check_columns(run, described, parts, options)
        task = WriteTables(
            target,
            run.name,
            tuple(parts),
            run.hidden,
            file_bytes,
            compression,
            options.metadata_prefix,
            None,
            source.last_seq,
        )
        return _commit(run, parts, source.write(task), source, mode)


def _check_arguments(
    tables: Sequence[str] | None,
    format: str,
    mode: str,
    file_bytes: int,
    compression: str,
    partition_by: PartitionBy,
    iceberg_catalog: Mapping[str, str] | None,
) -> None:
    if tables is not None:
        expect_list("tables", tables)
        if not len(tables):
            raise ValueError("tables is empty: leave it out to write all tables")
        for each in tables:
            if not isinstance(each, str | int):
                raise TypeError(
                    f"tables must be a list of qualified names such as public.orders, and has {kind_of(each)}"
                )
    by_table = partition_by if isinstance(partition_by, Mapping) else {"": partition_by}
    for columns in by_table.values():
        expect_list("partition_by", columns)
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(map(repr, FORMATS))}, not {format!r}")
    if mode not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    expect_count("file_bytes", file_bytes)
    if compression not in COMPRESSIONS:
        raise ValueError(
            f"compression must be one of {', '.join(map(repr, COMPRESSIONS))}, not {compression!r}"
        )
    if iceberg_catalog is not None and format != "iceberg":
        raise ValueError("iceberg_catalog= is for format='iceberg': leave it out, or pass format='iceberg'")


def _check_kinds(
    storage_options: Mapping[str, str] | None,
    catalog: Catalog | None,
    iceberg_catalog: Mapping[str, str] | None,
    spark: SparkSession | None = None,
) -> None:
    expect_kind("storage_options", storage_options, Mapping, "a dict")
    expect_kind("iceberg_catalog", iceberg_catalog, Mapping, "a dict")
    expect_catalog(catalog)
    if spark is not None and not hasattr(
        spark, "range"
    ):  # the classes of the two kinds of sessions have no base
        raise TypeError(f"spark must be a SparkSession or None, not {kind_of(spark)}")


def _place(target: str | os.PathLike[str]) -> str:
    """The target as every process of this machine finds it, whatever its working directory is."""
    open_store(target)  # an error for a URI that was turned into a Path
    return absolute(target)


def _session(spark: SparkSession | None) -> SparkSession:
    if spark is not None:
        return spark
    try:
        return SparkSession.active()  # also in another thread than the one that made it
    except PySparkRuntimeError:
        raise RuntimeError("there is no Spark session: make one, or pass spark=") from None


def _checked_targets(run: Run, parts: Sequence[TablePart], mode: Mode, source: _Source) -> list[TablePart]:
    """Checks before any work that every table can take the rows. Returns the parts with the types of the tables."""
    checked = []
    for part in parts:
        if run.format == "delta":
            _check_case(run, part)
        table = run.table(part.directory)
        if not table.exists():
            run.check_format(part.directory)
        if mode == "overwrite":
            table.check_overwrite()
        if mode == "error" and table.exists():
            raise ValueError(f"{run.store}/{part.directory} exists: use mode='append' or mode='overwrite'")
        if mode != "overwrite":
            _check_stream(run, part.directory, table, source)
            _check_transactions(run, part.directory, table, source)
        if part.after is None or table.position() is None:
            if mode == "append" and table.exists():
                run.check_format(part.directory)
                raise ValueError(
                    f"{run.store}/{part.directory} has no position: something else wrote it. Use another target, or "
                    "mode='overwrite'"
                )
        elif part.after > source.last_seq:
            raise ValueError(
                f"{run.store}/{part.directory} goes up to message {part.after}, but the source ends at message "
                f"{source.last_seq}: it is not the stream that the table was written from, or its last segments are "
                "missing. Pass all segments, or write to another target"
            )
        _check_gap(run, part.directory, part.after, source)
        if table.position() is not None and mode != "overwrite":
            _check_begun(run, part.directory, part.after, source)
        if table.exists() and table.partition_by() != part.partitioning.columns:
            raise ValueError(
                f"{run.store}/{part.directory} is partitioned by {list(table.partition_by())}, not by "
                f"{list(part.partitioning.columns)}: a table keeps its partition columns. Pass them as partition_by=, "
                "or use another target"
            )
        target = part.decode.target if mode == "overwrite" else table.fitted(part.decode.target)
        checked.append(replace(part, decode=replace(part.decode, target=target)))
    return checked


def _check_columns(
    run: Run, described: Sequence[DescribedTable], parts: Sequence[TablePart], options: Options
) -> None:
    """Checks that options do not leave out columns that a table has: nulls would take their place, without a word."""
    for table, part in zip(described, parts, strict=True):
        there = run.table(part.directory).column_names()
        place, seq = f"{run.store}/{part.directory}", f"{options.metadata_prefix}seq"
        if there and seq not in there:
            raise ValueError(
                f"{place} has no column {seq}: it was written with another metadata_prefix. Pass that one, write "
                "to another target, or replace the table with mode='overwrite'"
            )
        # A column that the newest version lacks was dropped: an option may leave it out.
        sent = {column.name for column in table.resolved.versions[-1].columns}
        left_out = [name for name in there if name in sent and name not in part.decode.target.names]
        if left_out:
            raise ValueError(
                f"{place} has the column {left_out[0]}, which the options leave out: in new rows it would be null. "
                "Pass the options that the table was written with, write to another target, or replace the table "
                "with mode='overwrite'"
            )


def _check_case(run: Run, part: TablePart) -> None:
    """Checks that a Delta table can have the columns."""
    found = differ_in_case(part.decode.target.names)
    if found is not None:
        raise ValueError(
            f"{run.store}/{part.directory} cannot be a Delta table: the names of its columns {found[0]!r} and "
            f"{found[1]!r} differ only in case. Leave one out with Options(columns=...), or use format='parquet' or "
            "format='iceberg'"
        )


def _check_gap(run: Run, directory: str, after: int | None, source: _Source) -> None:
    """Checks that the source has all messages behind a position, or from its first one on if there is no position."""
    gap = source.gap(after)
    if gap is None:
        return
    if after is not None and gap[1] + 1 == source.first_seq:
        raise ValueError(
            f"{run.store}/{directory} goes up to message {after}, but the source begins at message "
            f"{source.first_seq}: what comes in between is gone. Load the table again with mode='overwrite'"
        )
    raise ValueError(
        f"{run.store}/{directory} cannot be written: the source lacks messages {gap[0]} to {gap[1]}, which come before "
        "others that it has. A segment is missing. Bring it back. If it is lost, pass the paths of the segments behind "
        "the gap, and replace the table with mode='overwrite' or use another target"
    )


def _check_begun(run: Run, directory: str, after: int | None, source: _Source) -> None:
    """Checks that the source has all rows of the transactions that began before a position and commit behind it."""
    begun = None if after is None or source.transactions != "committed" else source.begun_before(after)
    gap = None if begun is None else source.gap(begun - 1)
    if gap is not None:
        raise ValueError(
            f"{run.store}/{directory} goes up to message {after}. A transaction that began at message {begun} commits "
            f"only behind it, and the source lacks messages {gap[0]} to {gap[1]}, where it may have rows. Pass the "
            f"segments from message {begun} on, too. If they are lost, replace the table with mode='overwrite'"
        )


def _check_stream(run: Run, directory: str, table: TableTarget, source: _Source) -> None:
    """Checks that a table does not get changes of another stream than the one that it has."""
    if source.streams is None:
        return
    source.streams.check(f"{run.store}/{directory}", table)
    if table.stream() is None:  # else its rejects are of the same stream
        rejects = rejects_of(directory)
        source.streams.check(f"{run.store}/{rejects}", run.table(rejects))


def _check_transactions(run: Run, directory: str, table: TableTarget, source: _Source) -> None:
    """Checks that a table goes on with the kind of transactions that it has."""
    known = table.transactions()
    if known is None:  # else its rejects are of the same kind
        directory = rejects_of(directory)
        known = run.table(directory).transactions()
    if known is not None and known != source.transactions:
        raise ValueError(
            f"{run.store}/{directory} was written with transactions={known!r}. With {source.transactions!r} it would "
            f"lose rows, or get some twice. Pass transactions={known!r}, write to another target, or replace the "
            f"table by write_tables(..., transactions={source.transactions!r}, mode='overwrite')"
        )


def _commit(
    run: Run, parts: Sequence[TablePart], files: Iterable[WrittenFile], source: _Source, mode: Mode
) -> list[Row]:
    position, stream = source.last_seq, source.stream
    by_table: dict[str, list[WrittenFile]] = {}
    for file in sorted(files, key=lambda each: (each.first or 0, each.name)):
        by_table.setdefault(file.directory, []).append(file)
    rows = []
    for part in parts:
        # The rejects first: a run that is repeated makes only those of tables that were not committed.
        _commit_rejects(run, part, by_table.get(rejects_of(part.directory), []), source, mode)
        found = by_table.get(part.directory, [])
        run.added.setdefault(part.directory, set())
        if part.after != position or mode == "overwrite" or _lacks_marks(run.table(part.directory), source):
            columns, kind = part.partitioning.columns, source.transactions
            run.commit(part.directory, found, position, part.decode.target, mode, columns, stream, kind)
        rows.append(_summary(part.directory, found, position))
    return rows


def _lacks_marks(table: TableTarget, source: _Source) -> bool:
    """Whether an earlier version wrote a table: it has no stream, or does not say which transactions it has."""
    return table.transactions() is None or (source.stream is not None and table.stream() is None)


def _commit_rejects(
    run: Run, part: TablePart, files: Sequence[WrittenFile], source: _Source, mode: Mode
) -> None:
    if not files and mode != "overwrite":
        return
    directory = rejects_of(part.directory)
    schema = pa.schema([pa.field(field.name, field.type) for field in REJECTS_SCHEMA])
    before = run.table(directory).position()
    overwritten = mode == "overwrite" and (files or before is not None)
    if overwritten or (mode != "overwrite" and (before is None or before < source.last_seq)):
        stream, kind = source.stream, source.transactions
        run.commit(directory, files, source.last_seq, schema, mode, stream=stream, transactions=kind)
    else:
        run.added.setdefault(directory, set())  # so that the files are removed


def _summary(directory: str, files: Sequence[WrittenFile], position: int) -> Row:
    return Row(
        table=directory,
        rows=sum(each.rows for each in files),
        files=len(files),
        bytes=sum(each.nbytes for each in files),
        first=min((each.first for each in files if each.first is not None), default=None),
        last=max((each.last for each in files if each.last is not None), default=None),
        position=position,
    )


class _SegmentSource:
    """Segments: planned as the data source plans them.

    `start` is the position of a table that has none, and `last` the ordinal of the last message that counts. `stream`
    is what tables have then, and `streams` checks what they had before.
    """

    def __init__(
        self,
        listed: SegmentList,
        spark: SparkSession,
        transactions: Transactions,
        catalog: Catalog | None,
        start: int | None = None,
        last: int | None = None,
    ) -> None:
        found, stored = listed.read(lambda segments: (segments, catalog_of(segments)))
        self.catalog = _merged(catalog, stored)
        if not found:
            raise ValueError("the source has no segments")
        self._found, self._listed = found, listed
        self._begun: dict[int, int | None] = {}
        self._spark = spark
        self.transactions = transactions
        self.start = start
        self.first_seq = found[0].first_seq
        # A segment may go beyond `last`, if small segments were joined.
        self.last_seq = found[-1].last_seq if last is None else last
        self.stream: Stream | None = stream_at(found, self.last_seq)
        self.streams: StreamCheck | None = StreamCheck(found)

    def write(self, task: WriteTables) -> list[WrittenFile]:
        work = self._listed.read(lambda segments: self._work(segments, task.tables))
        if not work:
            return []
        numbers = self._spark.range(0, len(work), 1, len(work))
        check_workers(numbers)
        packed = tuple(each.pack() for each in work)
        return _files(numbers.mapInArrow(shipped(WriteSegments(task, packed)), spark_schema(FILES_SCHEMA)))

    def gap(self, after: int | None) -> tuple[int, int] | None:
        """(first, last) ordinal of the first messages behind a position that no segment has; None if all are there."""

        def look() -> tuple[int, int] | None:
            begin = self._found[0].first_seq if after is None else after + 1
            return first_gap(self._found, begin, self.last_seq + 1)

        if look() is not None:
            # Another process may have joined segments during the listing, so that it saw neither these nor theirs.
            self._found = self._listed.segments()
        return look()

    def begun_before(self, after: int) -> int | None:
        """Ordinal of the message where the oldest transaction begins that is open at a position and commits behind it.

        None if there is none.
        """
        if after not in self._begun:
            self._begun[after] = self._listed.read(lambda segments: self._oldest(segments, after))
        return self._begun[after]

    def _oldest(self, segments: Sequence[Segment], after: int) -> int | None:
        behind = [each for each in segments if each.last_seq > after and each.first_seq <= self.last_seq]
        return oldest_behind(self._listed.outcomes(behind), after, self.last_seq)

    def _work(self, found: Sequence[Segment], tables: Sequence[TablePart]) -> tuple[SegmentTask, ...]:
        after = last_of_all(tables)
        check_whole(found, None if after is None else after + 1)
        segments = [each for each in found if each.first_seq <= self.last_seq]
        outcomes = None
        if self.transactions == "committed":
            outcomes = outcomes_behind(self._listed, segments, after, self.last_seq)
        oids = sorted({oid for table in tables for oid in table.oids})
        return plan_work(segments, oids, after, outcomes, cores_of(self._spark))


class _TaggedSource:
    """A DataFrame of tagged payloads: they go to Python once, and nothing comes back."""

    start = None
    # Tagged payloads do not say of which stream they are.
    stream: Stream | None = None
    streams: StreamCheck | None = None

    def __init__(
        self, wal: DataFrame, options: Options, transactions: Transactions, catalog: Catalog | None
    ) -> None:
        expect_tagged(wal)
        check_workers(wal)
        self._wal = wal
        # First: on Spark Connect each query lists the files again. What has come since then is for the next run.
        ends: Any = wal.selectExpr("min(seq) AS first", "max(seq) AS last").first()
        if ends["last"] is None:
            raise ValueError("the source has no payloads")
        self.first_seq, self.last_seq = int(ends["first"]), int(ends["last"])
        self.catalog = _merged(catalog, read_catalog(wal, on_error=options.on_error))
        self.transactions = transactions
        self._outcomes = None
        if transactions == "committed":
            known = decode_outcomes(wal, options=options).where(f"at_seq <= {self.last_seq}")
            (found,) = known.toArrow().combine_chunks().to_batches() or [None]
            self._outcomes = found

    def gap(self, after: int | None) -> tuple[int, int] | None:
        """As for segments. The rows may be a part of a stream, so only the beginning is checked."""
        return None if after is None or after + 1 >= self.first_seq else (after + 1, self.first_seq - 1)

    def begun_before(self, after: int) -> int | None:
        """As for segments."""
        return None if self._outcomes is None else oldest_behind(self._outcomes, after, self.last_seq)

    def write(self, task: WriteTables) -> list[WrittenFile]:
        if self.transactions == "committed" and self._outcomes is None:
            return []
        packed = None if self._outcomes is None else pack_batch(self._outcomes)
        rows = self._wal.select(*TAGGED_SCHEMA.names)
        return _files(rows.mapInArrow(shipped(replace(task, outcomes=packed)), spark_schema(FILES_SCHEMA)))


_Source = _SegmentSource | _TaggedSource


def _merged(given: Catalog | None, stored: Catalog) -> Catalog:
    return stored if given is None else given.merged(stored)


def _files(written: DataFrame) -> list[WrittenFile]:
    """Runs the job."""
    return [WrittenFile(**row) for row in written.toArrow().to_pylist()]
