"""What a range of positions holds: partitions that depend on nothing but the range and its segments."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_fast.schema import OUTCOMES_SCHEMA
from pgoutput_fast.segment_stream import SegmentsGoneError, SegmentStream
from pgoutput_fast.segments import Segment, one_batch, outcomes_of
from pgoutput_fast.spark.source_plan import SourcePlan, TablePlan
from pgoutput_fast.spark.source_read import Bounds, SegmentRows, fates_of, may_have, ranges

__all__ = ["RangeRows"]

# So many segments' outcomes are kept, for the next batch asks for those of the last segment again.
_MOST_OUTCOMES = 4


class RangeRows:
    """Cuts ranges of positions into partitions.

    A range holds, as they were sent, the changes whose ordinals lie in it; of committed transactions, those whose
    commit lies in it, wherever their rows lie.

    Args:
        stream: the segments.
        plan: what is read.
    """

    def __init__(self, stream: SegmentStream, plan: SourcePlan) -> None:
        self._stream = stream
        self._plan = plan
        self._outcomes: OrderedDict[str, pa.RecordBatch] = OrderedDict()

    def partitions(
        self, start: int, end: int, tables: tuple[TablePlan, ...] | None = None
    ) -> list[SegmentRows]:
        """The rows between two positions.

        Args:
            start: ordinal of the first message.
            end: ordinal behind the last one.
            tables: what rows are decoded by, if not as it was planned.

        Raises:
            SegmentsGoneError: if messages that are needed are in no segment any more.
        """
        inside = self.segments(start, end)
        if self._plan.committed:
            return self._committed(inside, start, end, tables)
        return [
            SegmentRows(str(segment.path), taken, None, _bounds(segment, start, end), tables)
            for segment in inside
            for taken in ranges(segment, self._oids(tables), self._plan.partition_bytes)
        ]

    def segments(self, start: int, end: int) -> list[Segment]:
        """The segments between two positions.

        Raises:
            SegmentsGoneError: if one of them is gone.
        """
        return [self._stream.footer(named) for named in self._stream.between(start, end)]

    def _oids(self, tables: tuple[TablePlan, ...] | None) -> list[int]:
        if tables is None:
            return self._plan.oids
        return sorted({oid for table in tables for oid in table.oids})

    def _committed(
        self,
        inside: Sequence[Segment],
        start: int,
        end: int,
        tables: tuple[TablePlan, ...] | None,
    ) -> list[SegmentRows]:
        if not inside:
            return []
        told = one_batch([self._told(segment) for segment in inside], OUTCOMES_SCHEMA)
        commits = _commits(told, start, end)
        aborts = [_aborts(told)]
        txns = np.sort(commits.column("txn").to_numpy())
        # Those whose first rows lie before the range: they were streamed or prepared, or a segment was cut inside.
        older = txns[txns < inside[0].first_seq].tolist()
        before = self._before(older, inside[0].first_seq)
        aborts += [_aborts(self._told(each)) for each in before if _ends_parts_of(each, older)]
        fates = one_batch([commits, *aborts], OUTCOMES_SCHEMA)
        found = []
        for segment in [*before, *inside]:
            wanted = older if segment.last_seq < inside[0].first_seq else txns.tolist()
            theirs = fates.filter(pc.is_in(fates.column("txn"), pa.array(wanted, pa.int64())))
            for taken in ranges(segment, self._oids(tables), self._plan.partition_bytes, wanted):
                few = fates_of(segment, taken, theirs)
                found.append(SegmentRows(str(segment.path), taken, few, tables=tables))
        return found

    def _before(self, txns: Sequence[int], end: int) -> list[Segment]:
        """The segments before a position that can have rows of these transactions, which are in ascending order."""
        if not txns:
            return []
        try:
            found = self.segments(txns[0], end)
        except SegmentsGoneError as problem:
            raise SegmentsGoneError(
                f"{problem}. They are needed, for a transaction that began at message {txns[0]} commits only now"
            ) from None
        return found

    def _told(self, segment: Segment) -> pa.RecordBatch:
        path = str(segment.path)
        if path not in self._outcomes:
            self._outcomes[path] = outcomes_of(segment)
            while len(self._outcomes) > _MOST_OUTCOMES:
                self._outcomes.popitem(last=False)
        self._outcomes.move_to_end(path)
        return self._outcomes[path]


def _commits(told: pa.RecordBatch, start: int, end: int) -> pa.RecordBatch:
    """The commits between two positions."""
    at = told.column("at_seq").to_numpy()
    whole = told.column("subxid").is_null().to_numpy(zero_copy_only=False)
    committed = pc.equal(told.column("outcome"), "committed").to_numpy(zero_copy_only=False)
    return told.filter(pa.array(whole & committed & (at >= start) & (at < end)))


def _aborts(told: pa.RecordBatch) -> pa.RecordBatch:
    """The rollbacks of parts of transactions."""
    return told.filter(pc.is_valid(told.column("subxid")))


def _ends_parts_of(segment: Segment, txns: Sequence[int]) -> bool:
    """Whether something may be told of these transactions there."""
    return any(group.bare and may_have(group, txns) for group in segment.row_groups)


def _bounds(segment: Segment, start: int, end: int) -> Bounds:
    """Which of its rows are in the range, if not all of them are."""
    if segment.first_seq >= start and segment.last_seq < end:
        return {}
    return {"seq": (start, end - 1)}
