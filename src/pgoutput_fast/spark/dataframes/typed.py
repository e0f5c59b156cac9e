"""Reads files of typed rows with Spark's own Parquet reader: those of a capture, or of `write_tables`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pgoutput_fast.catalog.identifiers import parse_qualified_name
from pgoutput_fast.catalog.relations import Relation, no_such_table
from pgoutput_fast.lake.delta import delta_directory
from pgoutput_fast.lake.formats import formats_of, tables_in
from pgoutput_fast.lake.manifest import ParquetTable, read_table
from pgoutput_fast.schema.evolution import differ_in_case
from pgoutput_fast.spark.places import spark_path
from pgoutput_fast.spark.tagging.order import quoted
from pgoutput_fast.spark.types import described_schema
from pgoutput_fast.storage.stores import Store, open_store
from pgoutput_fast.storage.table_directories import table_directory, table_of
from pgoutput_fast.typed_files.unify import find_typed_table

__all__ = ["read_typed"]

# Format -> how to read a table of it.
_OTHER_READERS = {
    "delta": "read it with deltalake.DeltaTable({place!r}), or with delta-spark and spark.read.format('delta')",
    "iceberg": "read it through its catalog, with pyiceberg as docs/spark.md shows, or with Iceberg's library",
}


def read_typed(path: str | os.PathLike[str], table: str, spark: SparkSession | None = None) -> DataFrame:
    """Returns the changes of a table from files: those of a capture with `typed=True`, or of `write_tables` as Parquet.

    The rows are those of `changes(..., transactions="committed")`, one per tuple, in no order, with all metadata
    columns. (A table of `write_tables(..., transactions="as_sent")` has all rows.) Spark's own Parquet reader reads
    them: there is no Python worker in the plan, and Spark reads only the columns and the row groups that the query
    needs.

    The call fixes the schema. It unifies the schemas of all files of the table, as `changes` unifies relation versions:
    columns by name, those of the newest version first, types widened where nothing is lost. A column that a file lacks
    is null. A version has files only if one of its changes has committed. Times and intervals are strings.

    Of a capture, the call reads the footer of each file of the table on the driver. Of `write_tables`, it reads the
    manifest of the table, which has the schema and the files that are committed. To see files that are made later, call
    it again. Unfinished files are skipped. Retention, or `mode="overwrite"`, may remove a file while a query runs; the
    query then fails.

    Args:
        path: the directory of the segments, which has the typed files in its directory `typed`, or the target of
            `write_tables`; a path or a URI. The driver and the executors must see a directory at the same path. The
            driver lists the files itself, and Spark must be able to read the URI, too. Spark gets it without its query
            and its password.
        table: the table's qualified name, quoted as in SQL.
        spark: the session. Default: the active session.

    Raises:
        FileNotFoundError: if there are no such files; the message says how to make them.
        KeyError: if there are none of this table; the message lists the tables that are there.
        ValueError: if no schema can hold all files, if a file is damaged, if names of columns differ only in case and
            Spark's setting does not distinguish these, or if the target has Delta or Iceberg tables; the message says
            how to read these.
        TypeError: if `table` is not a text.

    Example:
        orders = read_typed("segments/", "public.orders")
        orders.where("_commit_timestamp >= '2026-01-01'").select("id", "note").show()
    """
    if not isinstance(table, str):
        raise TypeError(f"table must be a qualified name such as public.orders, not a {type(table).__name__}")
    session = SparkSession.active() if spark is None else spark
    store, parts = open_store(path), parse_qualified_name(table)
    if parts is not None:
        directory = table_directory(*parts)
        written = read_table(store, directory)
        if written is not None:
            return _read_written(session, written, path, directory, table)
        _expect_parquet(store, delta_directory(directory))
    try:
        found = find_typed_table(store, table)
    except FileNotFoundError:
        _expect_none_written(store, table)
        raise
    return _read_files(session, found.schema, table, [spark_path(path, name) for name in found.directories])


def _read_files(
    session: SparkSession, schema: pa.Schema, table: str, paths: Sequence[str], base: str | None = None
) -> DataFrame:
    """Reads files, or all files of directories. `base` is the directory that has those of partitions."""
    _check_case(session, schema.names, table)
    reader = session.read.schema(described_schema(schema))
    # The files have PostgreSQL's calendar, which is the one that Spark has now.
    reader = reader.option("datetimeRebaseMode", "CORRECTED")
    return (reader if base is None else reader.option("basePath", base)).parquet(*paths)


def _read_written(
    session: SparkSession, written: ParquetTable, path: str | os.PathLike[str], directory: str, table: str
) -> DataFrame:
    """Reads the committed files of a table of `write_tables`."""
    if not written.files:
        _check_case(session, written.schema.names, table)
        return session.createDataFrame([], described_schema(written.schema))
    paths = [spark_path(path, f"{directory}/{name}") for name in written.files]
    if not written.partition_by:
        return _read_files(session, written.schema, table, paths)
    base = spark_path(path, directory, glob=False)
    rows = _read_files(session, written.schema, table, paths, base)
    return rows.select(*map(quoted, written.schema.names))  # Spark has partition columns last


def _expect_parquet(store: Store, directory: str) -> None:
    """Checks that a directory has no table that Spark's Parquet reader cannot read.

    Raises:
        ValueError: if it has one.
    """
    for format in formats_of(store, directory):
        if format in _OTHER_READERS:
            raise ValueError(
                f"{store}/{directory} is a table of the format {format!r}, and read_typed reads Parquet: "
                f"{_OTHER_READERS[format].format(place=f'{store}/{directory}')}"
            )


def _expect_none_written(store: Store, table: str) -> None:
    """Checks that there are no tables of `write_tables`.

    Raises:
        KeyError: if there are; the message has their names.
    """
    names = [table_of(directory.replace("+", "%")) for directory in tables_in(store)]
    if names:
        known = [Relation(0, 0, *name, "d", ()) for name in names if name is not None]
        raise KeyError(no_such_table(table, known))


def _check_case(session: SparkSession, names: Sequence[str], table: str) -> None:
    """Checks that Spark can distinguish the columns. Otherwise it would take the values of the wrong one.

    Raises:
        ValueError: if it cannot.
    """
    if session.conf.get("spark.sql.caseSensitive") == "true":
        return
    found = differ_in_case(names)
    if found is not None:
        raise ValueError(
            f"{table}: the names of columns {found[0]!r} and {found[1]!r} differ only in case: set "
            "spark.sql.caseSensitive to true before you call this"
        )
