"""A streaming reader that only says why there is none."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from pgoutput_fast.spark.source.stream import SupportsTriggerAvailableNow

__all__ = ["RefusedReader"]


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises an error whatever Spark asks for.

    If `streamReader` itself raises an error, Spark stops the reader that it did not get: the query ends with an
    UnboundLocalError, and nobody sees the cause.

    Args:
        problem: the error.
    """

    def __init__(self, problem: Exception) -> None:
        self._problem = problem

    def initialOffset(self) -> NoReturn:  # noqa: N802
        raise self._problem

    def latestOffset(self, start: Any = None, limit: Any = None) -> NoReturn:  # noqa: N802
        raise self._problem

    def getDefaultReadLimit(self) -> NoReturn:  # noqa: N802
        raise self._problem

    def prepareForTriggerAvailableNow(self) -> NoReturn:  # noqa: N802
        raise self._problem

    def partitions(self, start: Any, end: Any) -> NoReturn:
        raise self._problem

    def read(self, partition: Any) -> NoReturn:
        raise self._problem
