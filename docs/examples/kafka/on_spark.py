"""Decode messages that lie in a Kafka topic, on Spark.

    python on_spark.py TOPIC.parquet

`TOPIC.parquet` stands for the topic: it has Kafka's columns, in any order of rows. With Spark's connector, read the
topic in its place:

    spark.read.format("kafka").option("kafka.bootstrap.servers", "...").option("subscribe", "wal").load()
"""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame, SparkSession

from pgoutput_fast import spark as pgspark


def orders_of(topic: DataFrame) -> DataFrame:
    """The committed changes of the table public.orders."""
    # Marks of Kafka's own transactions take offsets, so offsets that are missing are no error here.
    wal = pgspark.tag(topic, order_by="offset", payload="value", gaps="allow")
    return pgspark.changes(wal, "public.orders", transactions="committed")


def main(spark: SparkSession, path: str) -> None:
    orders = orders_of(spark.read.parquet(path))
    orders.orderBy("_commit_lsn", "_seq").select("_change_type", "id", "note").show()


if __name__ == "__main__":
    main(SparkSession.builder.getOrCreate(), sys.argv[1])
