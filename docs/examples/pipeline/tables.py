"""A pipeline of Spark's declarative kind: it says which tables there are, and Spark keeps them up to date.

    spark-pipelines run --spec spark-pipeline.yml

It needs Spark 4.1 or later with Spark Connect. The segments are those of a capture.
"""

from __future__ import annotations

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

spark = SparkSession.getActiveSession()
assert spark is not None
SEGMENTS = spark.conf.get("spark.pgoutput.segments")


@pipelines.table
def order_changes() -> DataFrame:
    """Every committed change: a streaming table. Each run adds what is new."""
    return spark.readStream.format("pgoutput").option("table", "public.orders").load(SEGMENTS)


@pipelines.materialized_view
def orders_by_note() -> DataFrame:
    """How many rows were inserted or updated with each note. Each run computes it again."""
    changes = spark.read.table("order_changes")
    return changes.where(F.col("_change_type").isin("insert", "update_postimage")).groupBy("note").count()
