"""Batch reads of `format("pgoutput")`: executors read and decode segments. `plan.py` lists the options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.segments.listing import SegmentList
from pgoutput_fast.segments.planner import ReadSpec, Span, bytes_per_partition, plan_read
from pgoutput_fast.spark.source.plan import SourcePlan
from pgoutput_fast.spark.source.read import RowsPartition, RowsReader
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = ["SegmentReader", "make_reader"]

# Spark's module that passes filters to a reader.
_PUSHES = "pyspark.sql.worker.data_source_pushdown_filters"
# Tagged columns that can filter changes before decoding.
_PUSHED = ("seq", "lsn", "txn", "xid")


class SegmentReader(RowsReader, DataSourceReader):
    """Reads the segments of a plan.

    Args:
        plan: the plan.
        schema: the schema that Spark expects.
        footers: the footers read while the schema was planned (`SegmentList.pack`), None for none.
    """

    def __init__(self, plan: SourcePlan, schema: StructType, footers: bytes | None = None) -> None:
        super().__init__(plan, schema)
        self.bounds: dict[str, tuple[int, int]] = {}
        self._footers = footers

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need no footers, of which there may be very many.
        return {**self.__dict__, "_footers": None}

    def partitions(self) -> Sequence[InputPartition]:
        """Returns partitions with the row groups that may contain rows of the tables."""
        plan, listed, outcomes = self._plan, SegmentList(self._plan.paths, whole=True), None
        if self._footers is not None:
            listed.unpack(self._footers)
        if plan.committed:
            segments, ended = listed.with_outcomes()
            outcomes = TransactionOutcomes.of_batch(ended)
        else:
            segments = listed.segments()
        span = Span(0, segments[-1].last_seq if segments else -1)
        relations = dict.fromkeys(plan.oids, 0)
        task_bytes = bytes_per_partition(plan.partition_bytes)
        specs = plan_read(segments, span, relations, outcomes, self.bounds, task_bytes, plan.on_error)
        return [RowsPartition(spec) for spec in specs or [ReadSpec(())]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a partition, with one row group in memory at a time."""
        assert isinstance(partition, RowsPartition)
        return self.rows_of(partition)


class PushingReader(SegmentReader):
    """A SegmentReader to which Spark passes filters.

    Filters only skip rows: Spark applies them again to all rows.
    """

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
        names = {self._plan.prefix + name: name for name in _PUSHED}
        for each in filters:
            name = names.get(each.attribute[0]) if len(getattr(each, "attribute", ())) == 1 else None
            limits = _range(each)
            if name is not None and limits is not None:
                first, last = self.bounds.get(name, limits)
                self.bounds[name] = max(first, limits[0]), min(last, limits[1])
            yield each


def _range(condition: Any) -> tuple[int, int] | None:
    """Returns the widest range (first, last) that a filter allows, or None if the filter does not limit a range."""
    lowest, highest = -(1 << 63), (1 << 63) - 1
    value = getattr(condition, "value", None)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    kind = type(condition).__name__
    if kind in ("EqualTo", "EqualNullSafe"):
        return value, value
    if kind in ("GreaterThan", "GreaterThanOrEqual"):
        return value, highest
    if kind in ("LessThan", "LessThanOrEqual"):
        return lowest, value
    return None


def make_reader(plan: SourcePlan, schema: StructType, footers: bytes | None = None) -> SegmentReader:
    """Returns the reader for the current phase of Spark.

    Spark fails on a reader with pushFilters while pushdown is off. Pushdown is on if the caller is Spark's pushdown
    module.
    """
    return (PushingReader if _is_pushing() else SegmentReader)(plan, schema, footers)


def _is_pushing() -> bool:
    frame = inspect.currentframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == _PUSHES:
            return True
        frame = frame.f_back
    return False
