"""The batch side of `format("pgoutput")`: executors read segments and decode in place. Options: `source_plan`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.segments import list_segments, segment_outcomes
from pgoutput_fast.spark.source_plan import SourcePlan
from pgoutput_fast.spark.source_read import RowsReader, SegmentRows, fates_of, ranges

__all__ = ["SegmentReader", "make_reader"]

# The part of Spark that hands filters over.
_PUSHES = "pyspark.sql.worker.data_source_pushdown_filters"
# Tagged columns on which changes can be told apart before they are decoded.
_PUSHED = ("seq", "lsn", "txn", "xid")


class SegmentReader(RowsReader, DataSourceReader):
    """Reads what was planned.

    Args:
        plan: what was planned.
        schema: as Spark wants it.
    """

    def __init__(self, plan: SourcePlan, schema: StructType) -> None:
        super().__init__(plan, schema)
        self.bounds: dict[str, tuple[int, int]] = {}

    def partitions(self) -> Sequence[InputPartition]:
        """A partition per range of row groups that can hold rows of the tables."""
        plan = self._plan
        outcomes = segment_outcomes(plan.paths) if plan.committed else None
        found: list[InputPartition] = []
        for segment in list_segments(plan.paths):
            first, last = self.bounds.get("seq", (segment.first_seq, segment.last_seq))
            if last < segment.first_seq or first > segment.last_seq:
                continue
            for taken in ranges(segment, plan.oids, plan.partition_bytes):
                fates = fates_of(segment, taken, outcomes) if outcomes is not None else None
                found.append(SegmentRows(str(segment.path), taken, fates, self.bounds))
        return found or [SegmentRows("", ())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Record batches of a partition; one row group is in memory at a time."""
        assert isinstance(partition, SegmentRows)
        return self.rows_of(partition)


class PushingReader(SegmentReader):
    """The same, where Spark says which rows it wants. Spark looks at all rows again: here they are only left out."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
        names = {self._plan.prefix + name: name for name in _PUSHED}
        for each in filters:
            name = names.get(each.attribute[0]) if len(getattr(each, "attribute", ())) == 1 else None
            found = _range(each)
            if name is not None and found is not None:
                first, last = self.bounds.get(name, found)
                self.bounds[name] = max(first, found[0]), min(last, found[1])
            yield each


def _range(condition: Any) -> tuple[int, int] | None:
    """The numbers that a filter allows, at most; None for one that says nothing of a range."""
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


def make_reader(plan: SourcePlan, schema: StructType) -> SegmentReader:
    """The reader for what Spark is doing.

    A reader with pushFilters makes Spark fail while pushing is off. Where it is called by what pushes, it is on.
    """
    return (PushingReader if _is_pushing() else SegmentReader)(plan, schema)


def _is_pushing() -> bool:
    frame = inspect.currentframe()
    while frame is not None:
        spec = frame.f_globals.get("__spec__")
        if spec is not None and spec.name == _PUSHES:
            return True
        frame = frame.f_back
    return False
