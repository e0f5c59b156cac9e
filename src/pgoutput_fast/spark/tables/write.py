"""Writes the changes of tables into a lake. The executors decode and write; the driver gets a row per file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession

from pgoutput_fast.base.arguments import expect_count, expect_kind, expect_list, kind_of
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.protocol.limits import SPARK_BATCH_BYTES, SPARK_BATCH_ROWS
from pgoutput_fast.schema.options import Options, Transactions
from pgoutput_fast.schema.tables import REJECTS_SCHEMA
from pgoutput_fast.segments.listing import SegmentList
from pgoutput_fast.spark.dataframes.plan import expect_catalog, task_options
from pgoutput_fast.spark.sessions import session_of
from pgoutput_fast.spark.source.stream_files import read_emitted
from pgoutput_fast.spark.tables.checks import begun_with_query, check_columns, checked_targets, with_rows
from pgoutput_fast.spark.tables.plan import PartitionBy, check_exclude, described_tables, plan_tables
from pgoutput_fast.spark.tables.run import Run, begin_run
from pgoutput_fast.spark.tables.sources import SegmentSource, Source, TaggedSource
from pgoutput_fast.spark.tasks.tables import (
    OTHER_REJECTS,
    RejectedPart,
    TablePart,
    WriteTables,
    rejects_of,
)
from pgoutput_fast.storage.parquet import COMPRESSIONS, Compression
from pgoutput_fast.storage.paths import Paths, absolute
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import APPENDED_FILE_BYTES, WrittenFile
from pgoutput_fast.tables.formats import FORMATS, check_name
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import Mode, Ordinal

__all__ = ["check_arguments", "checked_target", "table_sink", "write_tables"]

_MODES = ("append", "overwrite", "error")


def write_tables(
    source: Paths | DataFrame,
    target: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    format: str = "parquet",
    transactions: Transactions = "committed",
    mode: Mode = "append",
    *,
    exclude: Sequence[str] = (),
    options: Options | None = None,
    partition_by: PartitionBy = (),
    file_bytes: int = APPENDED_FILE_BYTES,
    compression: Compression = "zstd",
    storage_options: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> list[Row]:
    """Writes the changes of tables as Parquet, Delta or Iceberg tables, all tables in one pass over the source.

    The tasks decode and write the files. The driver then commits each table once: its rows become visible atomically. A
    table records its position. So a repeated run adds nothing, and a run over a larger source adds only new rows. If a
    run was killed, the next one completes its commit or removes its files. From segments, a table also records its
    stream: server, database, slot, and the LSNs where it stops.

    The columns are those of `changes`: the metadata columns, then the columns of all versions of the relation, in
    Spark's types. Rows that `Options(on_error="quarantine")` rejects go to `<target>/_rejects/<table>`. So do messages
    that `tag` rejected, if the source is a DataFrame; those that belong to no table that is written go to
    `<target>/_rejects/_other`.

    Args:
        source: paths of segments (files, directories, globs, URIs), or a DataFrame of tagged payloads. A DataFrame does
            not identify its stream, so write the payloads of one stream only to a table.
        target: a directory or URI. Each table is a directory in it: the schema's name, a dot and the table's name,
            both percent-encoded (with `+` in place of `%` for Delta and Iceberg).
        tables: qualified names, quoted as in SQL. Default: all tables with changes in the source.
        exclude: names of tables that are not written, quoted as in SQL, or patterns such as `audit.*`. `*` stands for
            any text, `?` for a character. Their changes are skipped, even if their versions do not fit into one schema.
        format: `"parquet"`, `"delta"` (needs `pip install 'pgoutput_fast[delta]'`) or `"iceberg"` (needs
            `pip install 'pgoutput_fast[iceberg]'`).
        transactions: `"committed"` writes the rows of transactions whose commit is in the source. `"as_sent"` writes
            all rows.
        mode: `"append"` adds everything after the table's position. `"overwrite"` replaces the tables. `"error"`
            refuses existing tables.
        options: how to decode; default `Options()`.
        partition_by: columns by whose values the files are partitioned: those of all tables, or
            `{qualified name: columns}`. The columns are booleans, integers, texts or dates. A table keeps its
            partition columns.
        file_bytes: approximate maximum size of a file.
        compression: `"zstd"` makes the smallest files. `"lz4"` and `"snappy"` take less time, and the files are 1.5 to
            2 times as large. `"none"` takes the least time, and the files are 2.3 to 3.3 times as large.
        storage_options: for `"delta"` in a store: options of delta-rs for the store, beside the URI.
        catalog: relation versions and types that the source does not describe. A server has more details of its types
            than a stream, for instance the number of digits of a domain: pass a snapshot's catalog.
        iceberg_catalog: for `"iceberg"`: the properties of a pyiceberg catalog, such as `{"type": "rest", "uri": ...}`;
            `name` is its name. Default: a catalog in the file `_catalog.db` of a local target.
        spark: the session; default: the DataFrame's, or the active one.

    Returns:
        A row per table: `table` (its directory), `rows`, `files`, `bytes`, `first` and `last` (the smallest and the
        largest `_seq` of the new rows, null if there are none), `position` (the table's new position).

    Raises:
        TypeError: for an argument of a wrong type.
        KeyError: if there is no such table; the message lists those that exist.
        DecodeError: as Spark's error of a task, for a damaged message, unless the options say quarantine. Also for a
            message that `tag` rejected.
        ValueError: if arguments are wrong, if the versions of a table do not fit into a single schema, if a table in
            the target has another schema, other partition columns or other `transactions`, or belongs to another
            stream, or if segments that it needs are missing, including those in which a transaction began that was open
            there.
        OSError: if the target or the source is unavailable, or if the disk is full. A note says what to do. Errors of
            tasks are raised as Spark's errors, with the same text.
        RuntimeError: if there is no session, or if another process writes to the target.
    """
    check_arguments(tables, exclude, format, mode, file_bytes, compression, partition_by)
    table_options = checked_target(target, format, storage_options, catalog, iceberg_catalog, spark)
    if not isinstance(source, str | os.PathLike | Iterable | DataFrame):
        raise TypeError(
            f"source must be paths of segments, or a DataFrame of tagged payloads, not {kind_of(source)}"
        )
    place = _place(target)
    decoding, which = task_options(options, transactions)
    decoding = replace(decoding, batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES)
    reader: Source
    if isinstance(source, DataFrame):
        reader = TaggedSource(source, decoding, which, catalog)
    else:
        reader = SegmentSource(SegmentList(source), session_of(spark), which, catalog)
    run = partial(begin_run, place, format, table_options)
    return _write(reader, run, place, tables, exclude, mode, decoding, partition_by, file_bytes, compression)


def table_sink(
    target: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    format: str = "parquet",
    transactions: Transactions = "committed",
    *,
    exclude: Sequence[str] = (),
    options: Options | None = None,
    partition_by: PartitionBy = (),
    file_bytes: int = APPENDED_FILE_BYTES,
    compression: Compression = "zstd",
    storage_options: Mapping[str, str] | None = None,
    catalog: Catalog | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Returns a function for `foreachBatch` that writes tables while a capture writes segments.

    The query names the segments of each batch (`format("pgoutput")` with the option `emit` set to `files`); the sink
    writes their tables like `write_tables`. Each table is committed once per batch. If Spark runs a batch again, for
    instance because the driver was killed between the commit and the checkpoint, tables that already have it stay as
    they are.

    Args:
        target, tables, format, transactions, exclude, options, partition_by, file_bytes, compression, storage_options,
            catalog, iceberg_catalog: as in `write_tables`. Without `tables`, a table is written once it has changes. A
            table that is missing in the target at a later batch, because you added it to `tables` or because the target
            was lost, also gets the changes of earlier batches.

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
    check_arguments(tables, exclude, format, "append", file_bytes, compression, partition_by)
    table_options = checked_target(target, format, storage_options, catalog, iceberg_catalog)
    place = _place(target)
    decoding, which = task_options(options, transactions)
    decoding = replace(decoding, batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES)

    # Footers of earlier batches. A batch opens only new files of its directory.
    listed: dict[str, SegmentList] = {}

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        found = read_emitted(batch, "table_sink")
        if found is None:
            return
        segments = listed.setdefault(found.directory, SegmentList(found.directory))
        source = SegmentSource(segments, batch.sparkSession, which, catalog, found)
        if source.catalog.relations:
            run = partial(begin_run, place, format, table_options)
            _write(
                source, run, place, tables, exclude, "append", decoding, partition_by, file_bytes, compression
            )

    return write_batch


def _write(
    source: Source,
    begin: Callable[[], AbstractContextManager[Run]],
    target: str,
    tables: Sequence[str] | None,
    exclude: Sequence[str],
    mode: Mode,
    options: Options,
    partition_by: PartitionBy,
    file_bytes: int,
    compression: Compression,
) -> list[Row]:
    # First, so that a run refused for its arguments creates no target.
    described = described_tables(
        source.catalog, tables, exclude, options, partition_by, more=source.batch is not None
    )
    with begin() as run:
        parts = plan_tables(described, options, run, mode)
        if tables is None:
            described, parts = with_rows(run, described, parts, source)
        if not parts and not source.rejected:
            return []
        if isinstance(source, SegmentSource) and source.batch is not None:
            parts = begun_with_query(run, parts, source, source.batch, named=tables is not None)
        parts = checked_targets(run, parts, mode, source)
        if mode != "overwrite":
            check_columns(run, described, parts, options)
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
            _rejected_part(source, run, mode, options),
        )
        return _commit(run, parts, source.write(task), source, mode)


def _rejected_part(source: Source, run: Run, mode: Mode, options: Options) -> RejectedPart | None:
    if not source.rejected:
        return None
    written = run.ordinal(OTHER_REJECTS) if mode == "append" else None
    after = None if written is None else written.seq
    return RejectedPart(source.catalog.to_json(), after, options.on_error == "raise")


def check_arguments(
    tables: Sequence[str] | None,
    exclude: Sequence[str],
    format: str,
    mode: str,
    file_bytes: int,
    compression: str,
    partition_by: PartitionBy,
) -> None:
    """Checks the arguments that say what is written, and how.

    Raises:
        TypeError: for an argument of a wrong type.
        ValueError: for a wrong value.
    """
    if tables is not None:
        expect_list("tables", tables)
        if not len(tables):
            raise ValueError("tables is empty: leave it out to write all tables")
        for each in tables:
            if not isinstance(each, str | int):
                raise TypeError(
                    f"tables must be a list of qualified names such as public.orders, and has {kind_of(each)}"
                )
    check_exclude(exclude)
    by_table = partition_by if isinstance(partition_by, Mapping) else {"": partition_by}
    for columns in by_table.values():
        expect_list("partition_by", columns)
    check_name(format, "changes")
    if mode not in _MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, not {mode!r}")
    expect_count("file_bytes", file_bytes)
    if compression not in COMPRESSIONS:
        raise ValueError(
            f"compression must be one of {', '.join(map(repr, COMPRESSIONS))}, not {compression!r}"
        )


def checked_target(
    target: str | os.PathLike[str],
    format: str,
    storage_options: Mapping[str, str] | None,
    catalog: Catalog | None,
    iceberg_catalog: Mapping[str, str] | None,
    spark: SparkSession | None = None,
) -> TableOptions:
    """Returns the options of the tables, after checks of the arguments that say where they are.

    Raises:
        TypeError: for an argument of a wrong type.
        ImportError: if the package of the format is missing.
        ValueError: if the format cannot be there.
    """
    expect_kind("storage_options", storage_options, Mapping, "a dict")
    expect_kind("iceberg_catalog", iceberg_catalog, Mapping, "a dict")
    expect_catalog(catalog)
    if spark is not None and not hasattr(
        spark, "range"
    ):  # the classes of the two kinds of sessions have no common base
        raise TypeError(f"spark must be a SparkSession or None, not {kind_of(spark)}")
    table_options = TableOptions(storage_options, iceberg_catalog)
    FORMATS[format].check(open_store(_place(target)), table_options, format)
    return table_options


def _place(target: str | os.PathLike[str]) -> str:
    """The target as an absolute path or URI, valid in any working directory."""
    open_store(target)  # an error for a URI that was converted to a Path
    return absolute(target)


def _commit(
    run: Run, parts: Sequence[TablePart], files: Iterable[WrittenFile], source: Source, mode: Mode
) -> list[Row]:
    position = Ordinal(source.last_seq, source.stream, source.transactions)
    by_table: dict[str, list[WrittenFile]] = {}
    for file in sorted(files, key=lambda each: (each.first or 0, each.name)):
        by_table.setdefault(file.directory, []).append(file)
    rows = []
    if source.rejected:
        _commit_rejects(run, OTHER_REJECTS, by_table.get(OTHER_REJECTS, []), position, mode)
    for part in parts:
        # Rejects are committed first: a repeated run writes only those of tables that were not committed.
        directory = rejects_of(part.directory)
        _commit_rejects(run, directory, by_table.get(directory, []), position, mode)
        found = by_table.get(part.directory, [])
        run.added.setdefault(part.directory, set())
        # A query may lag behind `write_tables` calls in the meantime.
        begins = mode == "overwrite" or part.after is None
        reached = position.seq if begins else max(part.after or 0, position.seq)
        changed = part.after != position.seq or mode == "overwrite"
        if reached == position.seq and (changed or _lacks_marks(run.ordinal(part.directory), position)):
            run.commit(part.directory, found, position, part.decode.target, mode, part.partitioning.columns)
        else:
            run.lease.check()  # it may commit, too
            run.table(part.directory).fix_statistics()
        rows.append(_summary(part.directory, found, reached))
    return rows


def _lacks_marks(before: Ordinal | None, position: Ordinal) -> bool:
    """Whether an earlier version wrote a table: its stream or its kind of transactions is not recorded."""
    if before is None or before.transactions is None:
        return True
    return position.stream is not None and before.stream is None


def _commit_rejects(
    run: Run, directory: str, files: Sequence[WrittenFile], position: Ordinal, mode: Mode
) -> None:
    if not files and mode != "overwrite":
        return
    schema = pa.schema([pa.field(field.name, field.type) for field in REJECTS_SCHEMA])
    before = run.ordinal(directory)
    overwritten = mode == "overwrite" and (files or before is not None)
    if overwritten or (mode != "overwrite" and (before is None or before.seq < position.seq)):
        run.commit(directory, files, position, schema, mode)
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
