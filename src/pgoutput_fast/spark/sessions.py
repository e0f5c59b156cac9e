"""The two kinds of sessions. No other module asks which kind a session is.

A classic session has a JVM in reach, and with it calls that are faster than the public ones. A session of Spark Connect
has a connection to a server: no JVM, no SparkContext, and perhaps no py4j. Everything works without the faster calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["context_of", "cores_of", "java_frame", "java_session", "plan_of"]

# A range of so many rows has a row in each of its partitions, unless there are more cores than rows.
_ROWS = 1 << 16


def java_session(spark: SparkSession) -> Any:
    """Returns the session's object in the JVM; None on Spark Connect."""
    return getattr(spark, "_jsparkSession", None)


def java_frame(df: DataFrame) -> Any:
    """Returns the DataFrame's object in the JVM; None on Spark Connect."""
    # Not of the frame: there, a name that is no attribute may become a column.
    return None if java_session(df.sparkSession) is None else getattr(df, "_jdf", None)


def context_of(spark: SparkSession) -> SparkContext | None:
    """Returns the session's SparkContext; None on Spark Connect."""
    return None if java_session(spark) is None else spark.sparkContext


def cores_of(spark: SparkSession) -> int:
    """Returns how many tasks can run at once. On Spark Connect, a small job finds it out."""
    context = context_of(spark)
    if context is not None:
        return context.defaultParallelism
    # Spark cuts a range into as many partitions.
    last: Any = spark.range(_ROWS).select(F.spark_partition_id().alias("n")).agg(F.max("n")).first()
    return int(last[0]) + 1


def plan_of(df: DataFrame) -> str | None:
    """Returns Spark's plan of a DataFrame as text; None if this Spark does not give it."""
    java = java_frame(df)
    if java is not None:
        return str(java.queryExecution().executedPlan().toString())
    # What `explain` prints. Spark Connect has no public call that returns it.
    explain = getattr(type(df), "_explain_string", None)
    return None if explain is None else str(explain(df))
