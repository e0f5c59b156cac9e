"""Reads the typed files of a capture as a DataFrame, with Spark's own Parquet reader."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from pgoutput_fast.spark.places import spark_path
from pgoutput_fast.spark.types import described_schema
from pgoutput_fast.storage.stores import open_store
from pgoutput_fast.typed_files.unify import find_typed_table

__all__ = ["read_typed"]


def read_typed(path: str | os.PathLike[str], table: str, spark: SparkSession | None = None) -> DataFrame:
    """Returns the committed changes of a table from the typed files that a capture with `typed=True` has made.

    The rows are those of `changes(..., transactions="committed")`, one per tuple, in no order, with all metadata
    columns. Spark's own Parquet reader reads them: there is no Python worker in the plan, and Spark reads only the
    columns and the row groups that the query needs.

    The call fixes the schema. It unifies the schemas of all files of the table, as `changes` unifies relation versions:
    columns by name, those of the newest version first, types widened where nothing is lost. A column that a file lacks
    is null. A version has files only if one of its changes has committed. Times and intervals are strings.

    The call reads the footer of each file of the table on the driver. Spark lists the files once, at this call: to see
    files that are made later, call it again. Unfinished files are skipped. Retention may remove a file while a query
    runs; the query then fails.

    Args:
        path: the directory of the segments, or its URI. The typed files are in its directory `typed`. The driver and
            the executors must see a directory at the same path. The driver lists the files itself, and Spark must be
            able to read the URI, too. Spark gets it without its query and its password.
        table: the table's qualified name, quoted as in SQL.
        spark: the session. Default: the active session.

    Raises:
        FileNotFoundError: if there are no typed files; the message says how to make them.
        KeyError: if there are none of this table; the message lists the tables that are there.
        ValueError: if no schema can hold all files, if a file is damaged, or if names of columns differ only in case
            and Spark's setting does not distinguish these.
        TypeError: if `table` is not a text.

    Example:
        orders = read_typed("segments/", "public.orders")
        orders.where("_commit_timestamp >= '2026-01-01'").select("id", "note").show()
    """
    if not isinstance(table, str):
        raise TypeError(f"table must be a qualified name such as public.orders, not a {type(table).__name__}")
    found = find_typed_table(open_store(path), table)
    session = SparkSession.active() if spark is None else spark
    _check_case(session, found.schema.names, table)
    return (
        session.read.schema(described_schema(found.schema))
        # The files have PostgreSQL's calendar, which is the one that Spark has now.
        .option("datetimeRebaseMode", "CORRECTED")
        .parquet(*(spark_path(path, name) for name in found.directories))
    )


def _check_case(session: SparkSession, names: Sequence[str], table: str) -> None:
    """Checks that Spark can distinguish the columns. Otherwise it would take the values of the wrong one.

    Raises:
        ValueError: if it cannot.
    """
    if session.conf.get("spark.sql.caseSensitive") == "true":
        return
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(name.lower(), name)
        if other != name:
            raise ValueError(
                f"{table}: the names of columns {other!r} and {name!r} differ only in case: set "
                "spark.sql.caseSensitive to true before you call this"
            )
