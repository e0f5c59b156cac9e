"""Makes `spark.read.format("pgoutput")` work without registration: Spark looks for packages called `pyspark_*`.

It imports this one whenever it looks for any format, so everything else is imported when it is asked for.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format `pgoutput`: see `pgoutput_fast.spark.source`."""

    @classmethod
    def name(cls) -> str:
        return "pgoutput"

    def __init__(self, options: Any) -> None:
        self.options = options
        self._plan: Any = None

    def _planned(self) -> Any:
        from pgoutput_fast.spark.source import plan_source

        # Once: it goes from the process that plans to the others, so that all have the same schema.
        if self._plan is None:
            self._plan = plan_source(self.options)
        return self._plan

    def schema(self) -> Any:
        return self._planned().spark_schema

    def reader(self, schema: Any) -> Any:
        from pgoutput_fast.spark.source import make_reader

        return make_reader(self._planned(), schema)
