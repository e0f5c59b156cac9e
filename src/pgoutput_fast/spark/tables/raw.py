"""Writes raw payloads as tables of a lake."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pyspark.sql import DataFrame, Row, SparkSession

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.decoding.state import StreamState
from pgoutput_fast.schema.options import Options, Transactions
from pgoutput_fast.spark.dataframes.plan import task_options
from pgoutput_fast.spark.dataframes.tagged import state_after
from pgoutput_fast.spark.tables.plan import PartitionBy
from pgoutput_fast.spark.tables.problems import OnTableError
from pgoutput_fast.spark.tables.write import check_arguments, checked_target, write_tables
from pgoutput_fast.spark.tagging.tag import tag_payloads
from pgoutput_fast.storage.parquet import Compression
from pgoutput_fast.storage.paths import Paths
from pgoutput_fast.tables.files import APPENDED_FILE_BYTES
from pgoutput_fast.tables.naming import Rename
from pgoutput_fast.tables.table import Mode

__all__ = ["WrittenTables", "write_raw"]


class WrittenTables(list[Row]):
    """A row per table, as `write_tables` returns them, and the state with which the stream continues.

    Attributes:
        state: the state after the last payload: `state=` of the next call takes it, also as JSON text.
    """

    state: StreamState

    def __init__(self, rows: Sequence[Row], state: StreamState) -> None:
        super().__init__(rows)
        self.state = state


def write_raw(
    source: DataFrame | Paths,
    target: str | os.PathLike[str],
    *,
    order_by: str | Sequence[str],
    payload: str | None = None,
    lsn: str | None = None,
    session_starts: str | None = None,
    gaps: Literal["error", "allow"] = "error",
    on_error: Literal["raise", "quarantine"] = "raise",
    partitions: int | None = None,
    state: StreamState | str | None = None,
    tables: Sequence[str] | None = None,
    format: str = "parquet",
    transactions: Transactions = "committed",
    mode: Mode = "append",
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
) -> WrittenTables:
    """Writes untagged payloads as Parquet, Delta or Iceberg tables: `write_tables` of the result of `tag`.

    The executors tag, decode and write in one task. Payloads of Parquet files that are in order, named by their paths,
    never leave the process that decodes them. Those of a DataFrame cross from the JVM into Python once. As with
    `write_tables`, each table is committed once and records its position, so a repeated call over the same payloads, or
    over more of them, adds nothing twice.

    Args:
        source: a DataFrame of payloads, or paths of Parquet files with them, as for `tag`.
        target: as for `write_tables`.
        order_by, payload, lsn, session_starts, gaps, partitions: as for `tag`.
        on_error: `"raise"`: a damaged message is an error, as for `tag`. `"quarantine"`: it goes to the rejects, with
            everything that depends on it, and so does a malformed value, whatever the options say. Rejects are in
            `<target>/_rejects/<table>`, or in `<target>/_rejects/_other` if they belong to no table that is written,
            such as an empty payload.
        state: the state before the first payload, if the source does not begin where the stream did: `state` of the
            result of an earlier call.
        tables, format, transactions, mode, exclude, on_table_error, namespace, table_name, options, partition_by,
            file_bytes, compression, storage_options, catalog, iceberg_catalog, spark: as for `write_tables`.

    Returns:
        The rows of `write_tables`; `state` of the list is the state after the last payload.

    Raises:
        The errors of `tag` and of `write_tables`. A transaction that began before the source, and commits in it, needs
        its first messages: a ValueError.

    Example:
        written = pgspark.write_raw("dump/*.parquet", "lake/", order_by="place", format="delta")
        Path("state.json").write_text(written.state.to_json())
    """
    check_arguments(tables, exclude, on_table_error, format, mode, file_bytes, compression, partition_by)
    checked_target(target, format, storage_options, catalog, iceberg_catalog, spark)
    task_options(options, transactions)
    if on_error == "quarantine":
        options = replace(Options() if options is None else options, on_error=on_error)
    wal = tag_payloads(
        source,
        order_by,
        payload,
        state,
        lsn,
        session_starts,
        gaps,
        on_error,
        partitions,
        spark,
        commits=transactions == "committed",
    )
    rows = write_tables(
        wal,
        target,
        tables,
        format,
        transactions,
        mode,
        exclude=exclude,
        on_table_error=on_table_error,
        namespace=namespace,
        table_name=table_name,
        options=options,
        partition_by=partition_by,
        file_bytes=file_bytes,
        compression=compression,
        storage_options=storage_options,
        catalog=catalog,
        iceberg_catalog=iceberg_catalog,
        spark=spark,
    )
    return WrittenTables(rows, state_after(wal))
