"""Reads a mirrored table as it is now, with Spark's own Parquet reader."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pgoutput_fast.arguments import expect_list
from pgoutput_fast.protocol.lsn import Lsn
from pgoutput_fast.spark.places import spark_path
from pgoutput_fast.spark.types import described_schema, spark_schema

__all__ = ["read_fresh"]

# The release of Spark that came with recursive queries.
_RECURSIVE = (4, 1)
# These stand for the two DataFrames, until all other braces are escaped. PostgreSQL has no name with a zero byte.
_CURRENT, _HISTORY = "\0current\0", "\0history\0"


def read_fresh(
    target: str | os.PathLike[str],
    table: str,
    columns: Sequence[str] | None = None,
    position: Lsn | datetime | Literal["latest"] = "latest",
    spark: SparkSession | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    iceberg_catalog: Mapping[str, str] | None = None,
) -> DataFrame:
    """Returns a mirrored table with all changes that its history has, also with those that its current table lacks yet.

    The rows are those of `pgoutput_fast.mirror.fresh`. Spark reads the files of the current table and of the changes,
    without the jars of Delta, and puts them together. The call fixes the moment: to see later changes, call it again. A
    mirror that runs may remove the files of a version that is older than its recorded points; the query then fails.

    If current tables are in DuckDB, or the replica identity was altered in the changes that wait, the rows are put
    together on the driver; on Spark 4.0, also if an update of a key keeps a value that the server did not send.

    Args:
        target: of the mirror: a path or a URI. The driver and the executors must see a directory at the same path.
            Spark must be able to read the URI, too. Spark gets it without its query and its password.
        table: qualified name, quoted as in SQL.
        columns: which columns; None for all.
        position: `"latest"`; an LSN, as for `parse_lsn`; or a datetime with a time zone, for all that committed until
            then. Tables that are read at the same LSN belong together.
        spark: the session. Default: the active session.
        storage_options: what delta-rs needs to reach the store, beside what the URI says.
        iceberg_catalog: that of the mirror, if it was given one.

    Raises:
        KeyError: if the table is not mirrored, or has no such column.
        LookupError: if the position cannot be read; the message says what can.
        pgoutput_fast.mirror.MirrorError: if the table is stopped, or must be loaded.
        ValueError, TypeError: if `position` is no position; ValueError also if changes are missing.

    Example:
        orders = read_fresh("lake/", "public.orders")
        orders.where("note = 'paid'").count()
    """
    from pgoutput_fast.mirror import fresh
    from pgoutput_fast.mirror.dialects import Spark
    from pgoutput_fast.mirror.view.moment import open_moment
    from pgoutput_fast.mirror.view.read import chosen_columns
    from pgoutput_fast.mirror.view.sql import sql_of
    from pgoutput_fast.mirror.view.statement import Sources

    if columns is not None:
        expect_list("columns", columns)
    session = SparkSession.active() if spark is None else spark
    moment = open_moment(target, table, position, storage_options, iceberg_catalog)
    chosen = chosen_columns(columns, moment.schema, table)
    query, dialect = None, Spark()
    if moment.base.files is not None and len(moment.keys()) < 2:
        sources = Sources(f"SELECT * FROM {_CURRENT}", f"SELECT * FROM {_HISTORY}")
        query = sql_of(moment, dialect, chosen, sources)
    if query is None or (query.startswith(dialect.recursive) and _release(session) < _RECURSIVE):
        rows = fresh(
            target,
            table,
            chosen,
            position,
            storage_options=storage_options,
            iceberg_catalog=iceberg_catalog,
        )
        return session.createDataFrame(rows, spark_schema(rows.schema))
    query = query.replace("{", "{{").replace("}", "}}")
    query = query.replace(_CURRENT, "{current}").replace(_HISTORY, "{history}")
    assert moment.base.files is not None
    frames: dict[str, Any] = {"current": _frame(session, moment.base.files, moment.base.schema)}
    if "{history}" in query:
        frames["history"] = _frame(session, moment.changes.files, moment.changes.schema)
    return session.sql(query, **frames)


def _release(session: SparkSession) -> tuple[int, ...]:
    """(major, minor) version of a session's Spark."""
    return tuple(int(part) for part in session.version.split(".")[:2])


def _frame(session: SparkSession, files: Sequence[str], schema: pa.Schema) -> DataFrame:
    """The rows of Parquet files. A column that a file lacks is null."""
    types = described_schema(schema)
    if not files:
        return session.createDataFrame([], types)
    reader = session.read.schema(types).option("datetimeRebaseMode", "CORRECTED")
    return reader.parquet(*map(spark_path, files))
