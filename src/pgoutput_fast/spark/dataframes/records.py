"""Returns logical messages and rejects as DataFrames."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.catalog.relations import Catalog
from pgoutput_fast.protocol.kinds import (
    DESCRIPTIONS,
    MSG_MESSAGE,
    REJECTED,
    SESSION_MARK,
    UNKNOWN_OUTCOME,
)
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import MESSAGES_SCHEMA, REJECTS_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.spark.dataframes.outcomes import released
from pgoutput_fast.spark.dataframes.plan import (
    SchemaMode,
    Transactions,
    known_catalog,
    plan,
    rows_of,
    task_options,
)
from pgoutput_fast.spark.dataframes.tagged import expect_tagged, may_have_rejected
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.tasks.changes import DecodeRecords
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.spark.workers import check_workers

__all__ = ["messages", "rejects"]


def messages(
    wal: DataFrame,
    *,
    options: Options | None = None,
    transactions: Transactions | None = None,
    outcomes: DataFrame | None = None,
) -> DataFrame:
    """Returns a row per logical decoding message, as `Decoded.messages`.

    Args:
        wal: tagged payloads (TAGGED_SCHEMA).
        options: how to decode; `on_error` and `transactions` apply here.
        transactions, outcomes: as for `changes`. Nontransactional messages are always included.

    Raises:
        TypeError: if `wal` is not a DataFrame.
        ValueError: if `wal` is not tagged.
        RuntimeError: if Spark's Python workers run another Python than this one.

    The query fails for a malformed message, and for one that `tag` rejected and that may have been a logical one,
    unless the options say quarantine.
    """
    expect_tagged(wal)
    check_workers(wal)
    decoding, which = task_options(options, transactions)
    # Not in quarantine: a rejected message may have been a logical one.
    rejected = decoding.on_error == "raise" and may_have_rejected(wal)
    rows = wal.where(F.col("kind").isin(MSG_MESSAGE, *([REJECTED] if rejected else [])))
    rows = rows.select(*TAGGED_SCHEMA.names)
    task = DecodeRecords("messages", decoding, spark_arrow_schema(MESSAGES_SCHEMA), names=(None,))
    return _decoded(rows, wal, outcomes, which, task, MESSAGES_SCHEMA)


def rejects(
    wal: DataFrame,
    table: str | int | None = None,
    *,
    options: Options | None = None,
    transactions: Transactions | None = None,
    schema_mode: SchemaMode | None = None,
    catalog: Catalog | None = None,
    outcomes: DataFrame | None = None,
) -> DataFrame:
    """Returns, as `Decoded.rejects`, what cannot be decoded or has no Arrow form: what `changes` skips or makes null.

    This function decodes everything. Where `changes` raises for a message, or skips it with `on_error="quarantine"`,
    the result has a row for the message.

    Args:
        wal: tagged payloads (TAGGED_SCHEMA).
        table: one relation, as for `changes`; default: all relations. Messages that `tag` rejected are included if
            their relation is known; with the default all of them are.
        options: as for `changes`; `on_error` and `unrepresentable` have no effect.
        transactions, outcomes: as for `changes`.
        schema_mode, catalog: as for `changes`. Mode latest uses only the given catalog.
    """
    expect_tagged(wal)
    check_workers(wal)
    decoding, which = task_options(options, transactions)
    decoding = replace(decoding, on_error="quarantine", unrepresentable="null", schemas=None)
    names = None
    if table is None:
        chosen = ~F.col("kind").isin(*DESCRIPTIONS, SESSION_MARK, UNKNOWN_OUTCOME)
        known = known_catalog(wal, catalog, schema_mode or "latest", decoding)
    else:
        resolved = plan(wal, table, decoding, catalog, schema_mode, None)
        chosen, known = rows_of(resolved) | (F.col("kind") == REJECTED), resolved.catalog
        names = tuple({each.qualified_name for each in resolved.versions})
    rows = wal.where(chosen).select(*TAGGED_SCHEMA.names)
    task = DecodeRecords("rejects", decoding, spark_arrow_schema(REJECTS_SCHEMA), known.to_json(), names)
    return _decoded(rows, wal, outcomes, which, task, REJECTS_SCHEMA)


def _decoded(
    rows: DataFrame,
    wal: DataFrame,
    outcomes: DataFrame | None,
    which: Transactions,
    task: DecodeRecords,
    schema: pa.Schema,
) -> DataFrame:
    if which != "committed":
        return rows.mapInArrow(shipped(task), spark_schema(schema))
    rows, release = released(rows, wal, outcomes, task.options, task)
    return rows.mapInArrow(shipped(release), spark_schema(schema))
