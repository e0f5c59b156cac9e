"""What became of transactions, and the rows that their commits release."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_fast.kinds import COMMITS, MSG_MESSAGE, OUTCOMES, ROLLBACKS
from pgoutput_fast.options import Options
from pgoutput_fast.schema import OUTCOMES_SCHEMA, TAGGED_SCHEMA
from pgoutput_fast.spark.plan import task_options
from pgoutput_fast.spark.tagged import expect_tagged
from pgoutput_fast.spark.tasks import DecodeRecords
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.spark.workers import check_workers

__all__ = ["outcomes", "released"]

# So many commits, some 50 bytes each, go to every executor; with more the changes are shuffled to them.
_MOST_BROADCAST = 1 << 21


def outcomes(wal: DataFrame, *, options: Options | None = None) -> DataFrame:
    """A row per transaction or subtransaction whose fate the tagged payloads tell, as `Decoded.outcomes`.

    Args:
        wal: tagged payloads.
        options: only `on_error` matters here.
    """
    expect_tagged(wal)
    check_workers(wal)
    return _fates(wal, OUTCOMES, options)


def _fates(wal: DataFrame, kinds: tuple[int, ...], options: Options | None) -> DataFrame:
    decoding, _ = task_options(options, None)
    return (
        wal.where(F.col("kind").isin(*kinds))
        .select(*TAGGED_SCHEMA.names)
        .mapInArrow(
            DecodeRecords("outcomes", decoding, spark_arrow_schema(OUTCOMES_SCHEMA)),
            spark_schema(OUTCOMES_SCHEMA),
        )
    )


def released(rows: DataFrame, wal: DataFrame, fates: DataFrame | None, options: Options) -> DataFrame:
    """Those tagged rows (changes, truncates, messages) that are committed or in no transaction.

    Args:
        rows: some of `wal`.
        wal: where the fates are if `fates` is not given. Commits are counted there: a small Spark job.
        fates: outcomes.
        options: how to read them if they are not given.

    Returns:
        TAGGED_SCHEMA, with the commit's position and time.
    """
    if fates is None:
        count = wal.where(F.col("kind").isin(*COMMITS)).count()
        # Apart, so that no boundary message is decoded twice.
        ended, aborted = _fates(wal, COMMITS, options), _fates(wal, ROLLBACKS, options)
    else:
        count = fates.where("outcome = 'committed'").count()
        ended = aborted = fates
    # A transaction commits once. But outcomes that were put together may have it twice, which must not double rows.
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
    # The wire gives a message its top transaction's xid, whatever savepoint it was in: it stays.
    gone = (
        (F.col("txn") == F.col("of"))
        & (F.col("subxid") == F.col("part"))
        & (F.col("seq") < F.col("before"))
        & (F.col("kind") != MSG_MESSAGE)
    )
    return given.join(F.broadcast(rolled_back), gone, "left_anti")
