"""A shuffle that more than one query reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

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
        with _settings_for_tasks(frame.sparkSession):
            rows = session.internalCreateDataFrame(java.queryExecution().toRdd(), java.schema(), False)
    except (AttributeError, Py4JError) as problem:
        if hasattr(problem, "java_exception"):  # the query's own
            raise
        _log.warning("this Spark cannot share a shuffle: the input is read and shuffled twice")
        return frame
    return DataFrame(rows, frame.sparkSession)


@contextmanager
def _settings_for_tasks(session: SparkSession) -> Iterator[None]:
    """The session's settings as what tasks are told, as Spark does it around its own queries.

    An adaptive plan shuffles as soon as it is asked for its rows, and this is no query that Spark knows of. Without
    them, its tasks would have the default time zone, parsers and whatever else expressions look up.
    """
    context: Any = session.sparkContext  # whose types do not say that None takes a property back
    settings = {key: value for key, value in session.conf.getAll.items() if key.startswith("spark")}
    before = {key: context.getLocalProperty(key) for key in settings}
    try:
        for key, value in settings.items():
            context.setLocalProperty(key, value)
        yield
    finally:
        for key, said in before.items():
            context.setLocalProperty(key, said)


def _java(thing: Any, name: str) -> Any:
    return getattr(thing, name, None)
