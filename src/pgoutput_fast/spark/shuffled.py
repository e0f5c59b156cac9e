"""A shuffle that more than one query reads."""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame

__all__ = ["shuffled_once"]

_log = logging.getLogger(__name__)


def shuffled_once(frame: DataFrame) -> DataFrame:
    """The same rows, for queries that begin with what the frame's shuffle wrote: Spark itself plans one for each query.

    What was written stays on the executors' disks for as long as a DataFrame made of it is in use; what is lost with an
    executor is made again. Spark has no public call for that. Where its inner one is missing, each query shuffles.

    Args:
        frame: that ends with a shuffle.
    """
    # The types of a session and a frame are those of Spark Connect, too, which has no JVM to ask.
    session, java = _java(frame.sparkSession, "_jsparkSession"), _java(frame, "_jdf")
    try:
        rows = session.internalCreateDataFrame(java.queryExecution().toRdd(), java.schema(), False)
    except (AttributeError, Py4JError) as problem:
        if hasattr(problem, "java_exception"):  # the query's own
            raise
        _log.warning("this Spark cannot share a shuffle: the input is read and shuffled twice")
        return frame
    return DataFrame(rows, frame.sparkSession)


def _java(thing: Any, name: str) -> Any:
    return getattr(thing, name, None)
