"""Writes the changes of tables into a lake. The executors decode and write; the driver gets a row per file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, Row, SparkSession

from pgoutput_fast.base.arguments import expect_count, expect_kind, expect_list, kind_of
from pgoutput_fast.catalog.patterns import check_patterns
from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.protocol.limits import SPARK_BATCH_BYTES, SPARK_BATCH_ROWS
from pgoutput_fast.schema.options import Options, Transactions
from pgoutput_fast.segments.listing import SegmentList
from pgoutput_fast.spark.dataframes.plan import expect_catalog, task_options
from pgoutput_fast.spark.sessions import session_of, start_of
from pgoutput_fast.spark.source.stream_files import read_emitted
from pgoutput_fast.spark.tables.job import Remembered, TableJob
from pgoutput_fast.spark.tables.plan import PartitionBy
from pgoutput_fast.spark.tables.problems import OnTableError, check_on_table_error
from pgoutput_fast.spark.tables.sources import SegmentSource, TaggedSource
from pgoutput_fast.storage.parquet import COMPRESSIONS, Compression
from pgoutput_fast.storage.paths import Paths, absolute
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.tables.files import APPENDED_FILE_BYTES
from pgoutput_fast.tables.formats import FORMATS, check_name
from pgoutput_fast.tables.naming import Naming, Rename
from pgoutput_fast.tables.options import TableOptions
from pgoutput_fast.tables.table import Mode

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
    on_table_error: OnTableError = "stop",
    namespace: Rename = "",
    table_name: Rename = "",
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

    The tasks decode and write the files. The driver then commits each table that has new rows once: they become visible
    atomically. A table records its position, and a file of the target how far tables without new rows were read. So a
    repeated run adds nothing, and a run over a larger source adds only new rows. If a run was killed, the next one
    completes its commit or removes its files. From segments, a table also records its stream: server, database, slot,
    and the LSNs where it stops.

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
        on_table_error: what an error of a single table does, such as a type that cannot change, or a value that cannot
            be decoded. `"stop"`: it is raised, and nothing is written. `"skip"`: the table is stopped, stays as it is,
            and the others go on; `error` of its row and `table_status` have the reason. The next call tries it again,
            from its position on. If no table can go on, the error is raised.
        namespace: a prefix of the schemas' names in the target, or a function of database, schema and table that
            returns the name. So the tables of several databases share a target. The database is None for a DataFrame.
        table_name: the same of the tables' names.
        format: `"parquet"`, `"delta"` (needs `pip install 'pgoutput_fast[delta]'`) or `"iceberg"` (needs
            `pip install 'pgoutput_fast[iceberg]'`).
        transactions: `"committed"` writes the rows of transactions whose commit is in the source. `"as_sent"` writes
            all rows.
        mode: `"append"` adds everything after the table's position. `"overwrite"` replaces the tables. `"error"`
            refuses existing tables.
        options: how to decode; default `Options()`.
        partition_by: columns by whose values the files are partitioned: those of all tables, or
            `{qualified name: columns}`. The columns are booleans, integers, texts or dates. `_commit_date`, the day of
            the commit in UTC, is added to tables that it partitions. A table keeps its partition columns.
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
        largest `_seq` of the new rows, null if there are none), `position` (the table's new position), `error` (why it
        is stopped, otherwise null).

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
    check_arguments(tables, exclude, on_table_error, format, mode, file_bytes, compression, partition_by)
    table_options = checked_target(target, format, storage_options, catalog, iceberg_catalog, spark)
    if not isinstance(source, str | os.PathLike | Iterable | DataFrame):
        raise TypeError(
            f"source must be paths of segments, or a DataFrame of tagged payloads, not {kind_of(source)}"
        )
    decoding, which = task_options(options, transactions)
    job = TableJob(
        _place(target),
        format,
        table_options,
        tables,
        exclude,
        replace(decoding, batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES),
        partition_by,
        file_bytes,
        compression,
        on_table_error,
        Naming(namespace, table_name),
    )
    if isinstance(source, DataFrame):
        return job.run(TaggedSource(source, job.options, which, catalog), mode)
    return job.run(SegmentSource(SegmentList(source), session_of(spark), which, catalog), mode)


def table_sink(
    target: str | os.PathLike[str],
    tables: Sequence[str] | None = None,
    format: str = "parquet",
    transactions: Transactions = "committed",
    *,
    exclude: Sequence[str] = (),
    on_table_error: OnTableError = "skip",
    namespace: Rename = "",
    table_name: Rename = "",
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
    writes their tables like `write_tables`. Each table with new rows is committed once per batch. If Spark runs a batch
    again, for instance because the driver was killed between the commit and the checkpoint, tables that already have it
    stay as they are.

    Args:
        on_table_error: as in `write_tables`, but `"skip"` is the default. A table that was stopped is tried again when
            the query starts again, and then gets the changes since its position.
        target, tables, format, transactions, exclude, namespace, table_name, options, partition_by, file_bytes,
            compression, storage_options, catalog, iceberg_catalog: as in `write_tables`. Without `tables`, a table is
            written once it has changes. A table that is missing in the target at a later batch, because you added it to
            `tables` or because the target was lost, also gets the changes of earlier batches.

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
    check_arguments(tables, exclude, on_table_error, format, "append", file_bytes, compression, partition_by)
    table_options = checked_target(target, format, storage_options, catalog, iceberg_catalog)
    decoding, which = task_options(options, transactions)
    job = TableJob(
        _place(target),
        format,
        table_options,
        tables,
        exclude,
        replace(decoding, batch_rows=SPARK_BATCH_ROWS, batch_bytes=SPARK_BATCH_BYTES),
        partition_by,
        file_bytes,
        compression,
        on_table_error,
        Naming(namespace, table_name),
    )

    # Footers of earlier batches. A batch opens only new files of its directory.
    listed: dict[str, SegmentList] = {}
    remembered: dict[str, Remembered] = {}

    def write_batch(batch: DataFrame, batch_id: int) -> None:
        found = read_emitted(batch, "table_sink")
        if found is None:
            return
        segments = listed.setdefault(found.directory, SegmentList(found.directory))
        source = SegmentSource(segments, batch.sparkSession, which, catalog, found)
        if source.catalog.relations:
            now = remembered.setdefault(found.directory, Remembered())
            now.begin(start_of(batch.sparkSession))
            job.run(source, "append", now)

    return write_batch


def check_arguments(
    tables: Sequence[str] | None,
    exclude: Sequence[str],
    on_table_error: str,
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
    check_patterns("exclude", exclude)
    check_on_table_error(on_table_error)
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
