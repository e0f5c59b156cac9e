"""The outcomes of transactions as DataFrames, and what releases the rows of a DataFrame by them."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.protocol.kinds import OUTCOME_ROWS
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.spark.dataframes.plan import task_options
from pgoutput_fast.spark.dataframes.tagged import expect_tagged, untagged_of
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.tasks.changes import (
    COMMITTED_MARK,
    ROLLED_BACK_MARK,
    UNKNOWN_MARK,
    DecodeChanges,
    DecodeRecords,
    ReleaseRows,
    sent,
)
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.spark.workers import check_workers
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = ["outcomes", "released"]

# Maximum number of outcomes, some 50 bytes each, sent to every task; with more, outcomes and payloads are shuffled.
_MOST_SENT = 1 << 21


def outcomes(wal: DataFrame, *, options: Options | None = None) -> DataFrame:
    """Returns a row per transaction or subtransaction whose outcome is in the tagged payloads, as `Decoded.outcomes`.

    If `tag` rejected a message that may have ended a transaction, the outcome of that transaction is `unknown`.

    Args:
        wal: tagged payloads (TAGGED_SCHEMA).
        options: how to decode; only `on_error` matters here.

    Raises:
        TypeError: if `wal` is not a DataFrame.
        ValueError: if `wal` is not tagged.
        RuntimeError: if Spark's Python workers run another Python than this one.
    """
    expect_tagged(wal)
    check_workers(wal)
    decoding, _ = task_options(options, None)
    task = DecodeRecords("outcomes", decoding, spark_arrow_schema(OUTCOMES_SCHEMA))
    if (untagged := untagged_of(wal)) is not None:
        return untagged.outcomes(task, spark_schema(OUTCOMES_SCHEMA))
    rows = wal.where(F.col("kind").isin(*OUTCOME_ROWS)).select(*TAGGED_SCHEMA.names)
    return rows.mapInArrow(shipped(task), spark_schema(OUTCOMES_SCHEMA))


def released(
    rows: DataFrame,
    wal: DataFrame,
    ended: DataFrame | None,
    options: Options,
    task: DecodeChanges | DecodeRecords,
) -> tuple[DataFrame, ReleaseRows]:
    """Returns the rows to send, and a task that releases those that are committed and passes them to `task`.

    Small Spark jobs count and read the outcomes. If there are very many, they are shuffled to the tasks instead.

    Args:
        rows: a part of `wal`, with TAGGED_SCHEMA.
        wal: contains the outcomes if `ended` is not given.
        ended: the outcomes of transactions.
        options: how to decode the outcomes if `ended` is not given.
        task: decodes the released rows.
    """
    untagged = untagged_of(wal) if ended is None else None
    if untagged is not None:
        known = untagged.full_survey.outcomes
        count = len(known.txns) + len(known.rolled_back)
    else:
        count = (wal.where(F.col("kind").isin(*OUTCOME_ROWS)) if ended is None else ended).count()
    ended = outcomes(wal, options=options) if ended is None else ended
    ended = ended.where("outcome in ('committed', 'unknown') or subxid is not null")
    if count > _MOST_SENT:
        return _shuffled(rows, ended), ReleaseRows(task, (), None)
    if untagged is None:
        known = TransactionOutcomes.of_batch(ended.select(*OUTCOMES_SCHEMA.names).toArrow())
    if isinstance(task, DecodeRecords):
        return rows, ReleaseRows(task, (), known)
    # Outcomes are found by `txn`, and rollbacks to savepoints by `subxid`.
    left_out = tuple({*task.unused, "commit_lsn", "commit_timestamp"} - {"txn", "subxid"})
    return rows.selectExpr(*sent(left_out)), ReleaseRows(task, left_out, known)


def _shuffled(rows: DataFrame, ended: DataFrame) -> DataFrame:
    """The rows, with the outcomes of their transactions at the beginning of each partition."""
    outcome = F.col("outcome")
    mark = F.when(outcome == "committed", COMMITTED_MARK).when(outcome == "unknown", UNKNOWN_MARK)
    mark = mark.otherwise(ROLLED_BACK_MARK)
    marks = ended.select(
        "txn",
        "subxid",
        "commit_lsn",
        "commit_timestamp",
        F.col("at_seq").alias("seq"),
        mark.cast("byte").alias("kind"),
    )
    # Logical messages outside of transactions may be many.
    return (
        rows.unionByName(marks, allowMissingColumns=True)
        .repartition(F.coalesce("txn", "seq"))
        .sortWithinPartitions(F.col("kind") >= 0)
    )
