"""The two kinds of sessions. Other modules do not distinguish them.

A classic session has access to a JVM, and thus to calls that are faster than the public ones. A Spark Connect session
has a connection to a server: no JVM, no SparkContext, and perhaps no py4j. Everything works without the faster calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = ["context_of", "cores_of", "java_frame", "java_session", "plan_of", "session_of", "start_of"]

# A range of this many rows has a row in each of its partitions, unless there are more cores than rows.
_ROWS = 1 << 16


def java_session(spark: SparkSession) -> Any:
    """Returns the session's object in the JVM; None on Spark Connect."""
    return getattr(spark, "_jsparkSession", None)


def java_frame(df: DataFrame) -> Any:
    """Returns the DataFrame's object in the JVM; None on Spark Connect."""
    # Not from the frame itself, where an unknown attribute may become a column.
    return None if java_session(df.sparkSession) is None else getattr(df, "_jdf", None)


def context_of(spark: SparkSession) -> SparkContext | None:
    """Returns the session's SparkContext; None on Spark Connect."""
    return None if java_session(spark) is None else spark.sparkContext


def start_of(spark: SparkSession) -> str | None:
    """Names the start of the query whose batch this thread runs. None on Spark Connect."""
    try:
        return spark.sparkContext.getLocalProperty("spark.jobGroup.id")
    except (AttributeError, PySparkException):
        return None


def session_of(spark: SparkSession | None) -> SparkSession:
    """Returns the given session, or the active one.

    Raises:
        RuntimeError: if there is none.
    """
    if spark is not None:
        return spark
    try:
        return SparkSession.active()  # also in a thread other than the one that created it
    except PySparkRuntimeError:
        raise RuntimeError("there is no Spark session: make one, or pass spark=") from None


def cores_of(spark: SparkSession) -> int:
    """Returns how many tasks can run at once. On Spark Connect, determined by a small job."""
    context = context_of(spark)
    if context is not None:
        return context.defaultParallelism
    # Spark splits a range into this many partitions.
    last: Any = spark.range(_ROWS).select(F.spark_partition_id().alias("n")).agg(F.max("n")).first()
    return int(last[0]) + 1


def plan_of(df: DataFrame) -> str | None:
    """Returns Spark's plan of a DataFrame as text; None if this version of Spark does not provide it."""
    java = java_frame(df)
    if java is not None:
        return str(java.queryExecution().executedPlan().toString())
    # The output of `explain`. Spark Connect has no public call that returns it.
    explain = getattr(type(df), "_explain_string", None)
    return None if explain is None else str(explain(df))
