"""A streaming reader that only reports an error."""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from pgoutput_fast.spark.source.stream import SupportsTriggerAvailableNow

__all__ = ["RefusedReader"]


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises an error on every call.

    If `streamReader` itself raises an error, Spark tries to stop the nonexistent reader: the query ends with an
    UnboundLocalError, which hides the cause.

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
