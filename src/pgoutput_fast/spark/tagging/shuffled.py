"""Lets several queries read one shuffle."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pgoutput_fast.spark.sessions import java_frame, java_session

__all__ = ["shuffled_once"]

_log = logging.getLogger(__name__)


def shuffled_once(frame: DataFrame) -> DataFrame:
    """Returns the same rows. Queries on the result share one shuffle; without this, Spark plans one shuffle per query.

    The shuffled data stay on the executors' disks while a DataFrame derived from them is in use. If an executor is
    lost, Spark computes its data again. Spark has no public call for this. If its internal call is missing, as on Spark
    Connect, each query shuffles.

    Args:
        frame: a DataFrame that ends with a shuffle.
    """
    session, java = java_session(frame.sparkSession), java_frame(frame)
    if java is None:
        return frame
    from py4j.protocol import Py4JError  # a client of Spark Connect may not have it

    try:
        with _settings_for_tasks(frame.sparkSession):
            rows = session.internalCreateDataFrame(java.queryExecution().toRdd(), java.schema(), False)
    except (AttributeError, Py4JError) as problem:
        if hasattr(problem, "java_exception"):  # an error of the query itself
            raise
        _log.warning("this Spark cannot share a shuffle: the input is read and shuffled twice")
        return frame
    return DataFrame(rows, frame.sparkSession)


@contextmanager
def _settings_for_tasks(session: SparkSession) -> Iterator[None]:
    """Passes the session's settings to tasks, as Spark does for its own queries.

    An adaptive plan shuffles when its rows are requested, which Spark does not treat as a query. Without these settings
    its tasks would use the default time zone, the default parsers and defaults for all other settings used by
    expressions.
    """
    context: Any = session.sparkContext  # its annotations omit that None removes a property
    settings = {key: value for key, value in session.conf.getAll.items() if key.startswith("spark")}
    before = {key: context.getLocalProperty(key) for key in settings}
    try:
        for key, value in settings.items():
            context.setLocalProperty(key, value)
        yield
    finally:
        for key, value in before.items():
            context.setLocalProperty(key, value)
