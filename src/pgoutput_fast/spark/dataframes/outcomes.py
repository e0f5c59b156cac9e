"""The outcomes of transactions, and the rows that their commits release."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.protocol.kinds import COMMITS, MSG_MESSAGE, OUTCOMES, ROLLBACKS
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import OUTCOMES_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.spark.dataframes.plan import task_options
from pgoutput_fast.spark.dataframes.tagged import expect_tagged
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.tasks.changes import DecodeRecords
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.spark.workers import check_workers

__all__ = ["outcomes", "released"]

# Maximum number of commits, some 50 bytes each, broadcast to the executors; with more, the changes are shuffled to
# them.
_MOST_BROADCAST = 1 << 21


def outcomes(wal: DataFrame, *, options: Options | None = None) -> DataFrame:
    """Returns a row per transaction or subtransaction whose outcome is in the tagged payloads, as `Decoded.outcomes`.

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
    return _decode_outcomes(wal, OUTCOMES, options)


def _decode_outcomes(wal: DataFrame, kinds: tuple[int, ...], options: Options | None) -> DataFrame:
    decoding, _ = task_options(options, None)
    return (
        wal.where(F.col("kind").isin(*kinds))
        .select(*TAGGED_SCHEMA.names)
        .mapInArrow(
            shipped(DecodeRecords("outcomes", decoding, spark_arrow_schema(OUTCOMES_SCHEMA))),
            spark_schema(OUTCOMES_SCHEMA),
        )
    )


def released(rows: DataFrame, wal: DataFrame, outcomes: DataFrame | None, options: Options) -> DataFrame:
    """Returns the tagged rows (changes, truncates, messages) that are committed or belong to no transaction.

    Args:
        rows: a part of `wal`.
        wal: contains the outcomes if `outcomes` is not given. A small Spark job then counts its commits.
        outcomes: the outcomes of transactions.
        options: how to decode the outcomes if `outcomes` is not given.

    Returns:
        TAGGED_SCHEMA, with the commit's LSN and time.
    """
    if outcomes is None:
        count = wal.where(F.col("kind").isin(*COMMITS)).count()
        # Separately, so that no boundary message is decoded twice.
        ended, aborted = _decode_outcomes(wal, COMMITS, options), _decode_outcomes(wal, ROLLBACKS, options)
    else:
        count = outcomes.where("outcome = 'committed'").count()
        ended = aborted = outcomes
    # A transaction commits once, but outcomes from several sources may repeat its commit; this must not duplicate rows.
    commits = (
        ended.where("outcome = 'committed' and subxid is null")
        .groupBy(F.col("txn").alias("ended"))
        .agg(F.max("commit_lsn").alias("ended_lsn"), F.max("commit_timestamp").alias("ended_at"))
    )
    rolled_back = (
        aborted.where("outcome = 'aborted' and subxid is not null")
        .groupBy(F.col("txn").alias("of"), F.col("subxid").alias("part"))
        .agg(F.max("at_seq").alias("before"))
    )
    if count <= _MOST_BROADCAST:
        commits = F.broadcast(commits)
    given = (
        rows.join(commits, F.col("txn") == F.col("ended"), "left")
        .where("txn is null or ended is not null")
        .withColumn("commit_lsn", F.col("ended_lsn"))
        .withColumn("commit_timestamp", F.col("ended_at"))
        .select(*TAGGED_SCHEMA.names)
    )
    # The server sends a message with the xid of its top transaction, even inside a savepoint. So the message stays.
    gone = (
        (F.col("txn") == F.col("of"))
        & (F.col("subxid") == F.col("part"))
        & (F.col("seq") < F.col("before"))
        & (F.col("kind") != MSG_MESSAGE)
    )
    return given.join(F.broadcast(rolled_back), gone, "left_anti")
