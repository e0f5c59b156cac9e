"""Makes `spark.read.format("pgoutput")` work without registration: Spark searches packages with names `pyspark_*`.

Spark imports this package whenever it searches any format. So this package imports everything else only when needed.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The format `pgoutput`: see `pgoutput_fast.spark.source.plan`, and `snapshot` beside it for mode snapshot."""

    @classmethod
    def name(cls) -> str:
        return "pgoutput"

    def __init__(self, options: Any) -> None:
        self.options = options
        self._plan: Any = None
        self._footers: bytes | None = None

    def __reduce__(self) -> Any:
        from pgoutput_fast.spark.shipping import reduced

        return reduced(self)

    def schema(self) -> Any:
        if "mode" in self.options:
            from pgoutput_fast.spark.source.snapshot import plan_snapshot

            self._plan = plan_snapshot(self.options)
            return self._plan.spark_schema
        if "emit" in self.options:
            from pgoutput_fast.spark.source.stream_files import emits_files, files_schema

            if emits_files(self.options):
                return files_schema(self.options)
        from pgoutput_fast.spark.source.plan import STREAM_OPTIONS, plan_source

        if any(key in self.options for key in STREAM_OPTIONS):
            from pgoutput_fast.spark.source.stream_plan import check_options

            check_options(self.options)
        # The plan is kept. It travels from the planning process to the others, so all have the same schema. So do the
        # footers, so that the next process opens only segments that are new then.
        listed: list[Any] = []
        self._plan = plan_source(self.options, keep=listed.append)
        for segments in listed:
            self._footers = segments.pack(outcomes=self._plan.committed)
        return self._plan.spark_schema

    def reader(self, schema: Any) -> Any:
        if "mode" in self.options:
            from pgoutput_fast.spark.source.snapshot import make_snapshot_reader

            return make_snapshot_reader(self._plan, schema)
        from pgoutput_fast.spark.source.batch import SegmentReader
        from pgoutput_fast.spark.source.options import emitted
        from pgoutput_fast.spark.source.plan import STREAM_OPTIONS, plan_source

        only_streams = sorted(key for key in STREAM_OPTIONS if key in self.options)
        if emitted(self.options) == "files":
            only_streams.append("emit=files")
        if only_streams:
            raise ValueError(f"spark.read has no option {', '.join(only_streams)}: use spark.readStream")
        # `schema` was not called if the user gave a schema.
        plan = self._plan if self._plan is not None else plan_source(self.options, schema)
        if plan.starting == "latest":
            raise ValueError("spark.read ends at latest: let startingOffsets be earliest or an ordinal")
        # Spark sends this instance to the tasks, too. They need no footers: there may be very many.
        footers, self._footers = self._footers, None
        return SegmentReader(plan, schema, footers)

    def streamReader(self, schema: Any) -> Any:  # noqa: N802
        try:
            return self._stream_reader(schema)
        except Exception as problem:
            from pgoutput_fast.spark.source.refused import RefusedReader

            return RefusedReader(problem)

    def _stream_reader(self, schema: Any) -> Any:
        if "mode" in self.options:
            raise ValueError("spark.readStream has no option mode: use spark.read")
        if "emit" in self.options:
            from pgoutput_fast.spark.source.stream_files import emits_files, make_files_reader

            if emits_files(self.options):
                return make_files_reader(self.options, schema)
        from pgoutput_fast.spark.source.stream import StreamReader
        from pgoutput_fast.spark.source.stream_plan import plan_stream

        return StreamReader(plan_stream(self.options, schema, self._plan), schema)
