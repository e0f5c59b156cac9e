"""Batch reads of `format("pgoutput")`: executors read and decode segments. `plan.py` lists the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pgoutput_fast.segments.listing import SegmentList
from pgoutput_fast.segments.planner import ReadSpec, Span
from pgoutput_fast.segments.segment import Segment
from pgoutput_fast.spark.source.plan import SourcePlan
from pgoutput_fast.spark.source.read import RowsPartition, RowsReader
from pgoutput_fast.transactions.outcomes import TransactionOutcomes

__all__ = ["SegmentReader"]


class SegmentReader(RowsReader, DataSourceReader):
    """Reads the segments of a plan.

    Args:
        plan: the plan.
        schema: the schema that Spark expects.
        footers: the footers read while the schema was planned (`SegmentList.pack`), None for none.
    """

    def __init__(self, plan: SourcePlan, schema: StructType, footers: bytes | None = None) -> None:
        super().__init__(plan, schema)
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
        span = self._span(segments)
        if outcomes is not None and (plan.starting, plan.ending) != ("earliest", "latest"):
            outcomes = outcomes.between(*span)
        specs = self.specs_of(segments, span, plan.oids, outcomes)
        return [RowsPartition(spec) for spec in specs or [ReadSpec(())]]

    def _span(self, segments: Sequence[Segment]) -> Span:
        """The messages that the options ask for."""
        plan = self._plan
        begin, end = (segments[0].first_seq, segments[-1].last_seq + 1) if segments else (0, 0)
        first, stop = (
            default if text == word else int(text)
            for text, word, default in ((plan.starting, "earliest", 0), (plan.ending, "latest", end))
        )
        if (plan.starting != "earliest" and first < begin) or not first <= stop <= end:
            raise ValueError(
                f"options startingOffsets {plan.starting} and endingOffsets {plan.ending} do not fit the segments, "
                f"which have messages {begin} to {end - 1}. endingOffsets is the first message that is not read"
            )
        return Span(first, stop - 1)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of a partition, with one row group in memory at a time."""
        assert isinstance(partition, RowsPartition)
        return self.rows_of(partition)
