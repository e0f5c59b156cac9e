"""Decodes boundary messages into a DataFrame."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_fast.protocol.kinds import BOUNDARIES, MSG_ORIGIN
from pgoutput_fast.schema.options import Options
from pgoutput_fast.schema.tables import TAGGED_SCHEMA, TRANSACTIONS_SCHEMA
from pgoutput_fast.spark.dataframes.plan import task_options
from pgoutput_fast.spark.dataframes.tagged import expect_tagged
from pgoutput_fast.spark.shipping import shipped
from pgoutput_fast.spark.tasks.changes import ORIGINS_SCHEMA, DecodeOrigins, DecodeRecords
from pgoutput_fast.spark.types import spark_arrow_schema, spark_schema
from pgoutput_fast.spark.workers import check_workers

__all__ = ["transactions"]

# Rows that end a transaction have its origin, but a stream_abort only if it aborts the whole transaction.
_ENDS = ("commit", "prepare", "stream_commit", "stream_prepare")


def transactions(wal: DataFrame, *, options: Options | None = None) -> DataFrame:
    """Returns a row per boundary message, with the columns of `Decoded.transactions`.

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
    options, _ = task_options(options, None)
    tagged = wal.select(*TAGGED_SCHEMA.names)
    rows = tagged.where(F.col("kind").isin(*BOUNDARIES)).mapInArrow(
        shipped(DecodeRecords("transactions", options, spark_arrow_schema(TRANSACTIONS_SCHEMA))),
        spark_schema(TRANSACTIONS_SCHEMA),
    )
    # Values from other messages of the transaction: its origin, and when it was prepared. Both are rare and small.
    origins = (
        tagged.where(F.col("kind") == MSG_ORIGIN)
        .mapInArrow(shipped(DecodeOrigins()), spark_schema(ORIGINS_SCHEMA))
        .groupBy("txn")
        .agg(F.max_by(F.struct("origin", "origin_lsn"), "seq").alias("from"))
    )
    by_transaction = Window.partitionBy("txn")
    prepared = F.max(F.when(F.col("kind").isin("prepare", "stream_prepare"), F.col("prepare_timestamp")))
    ends = F.col("kind").isin(*_ENDS) | (
        (F.col("kind") == "stream_abort") & (F.col("xid") == F.col("subxid"))
    )
    return (
        rows.withColumn("prepared", F.when(F.col("txn").isNotNull(), prepared.over(by_transaction)))
        .join(origins, "txn", "left")
        .withColumn("origin", F.when(ends, F.col("from.origin")))
        .withColumn("origin_lsn", F.when(ends, F.col("from.origin_lsn")))
        .withColumn(
            "prepare_timestamp",
            F.when(F.col("kind") == "commit_prepared", F.col("prepared")).otherwise(
                F.col("prepare_timestamp")
            ),
        )
        .select(*TRANSACTIONS_SCHEMA.names)
    )
